"""A real Slurm of two or more nodes on one machine, for tests: munged, slurmctld, and a slurmd for each node.

Each node has namespaces of its own: network (an address on a bridge, its own loopback), processes, and mounts, in which
a folder of the node stands in the place of ``/…/node-local`` and shared memory is its own. So all nodes have the same
paths and ports with their own files and servers behind them, as identical machines have, and a node whose first process
is killed goes down with everything on it while its disk stays. Needs root and Debian's ``slurm-wlm``, ``munge`` and
``iproute2``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.waiting import wait_until

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "ip", "unshare", "nsenter")

_CONF = """\
ClusterName=orch
SlurmctldHost={hostname}({login_address})
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerType=sched/backfill
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What this machine lacks for a cluster, in words; empty when nothing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "needs root, for namespaces and slurmd"
    space = f"orch-try-{secrets.token_hex(4)}"
    tries = (
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        ["ip", "netns", "add", space],
        ["ip", "netns", "del", space],
    )
    refused = [argv for argv in tries if subprocess.run(argv, env={"PATH": path}, capture_output=True).returncode]
    return f"not allowed here: {' '.join(refused[0])}" if refused else ""


MOST_JOBS = 500


class SlurmCluster:
    """Nodes, ``n1`` and ``n2``, which know each other by name; this machine is the login host.

    ``environment`` finds it.

    Attributes:
        local: the folder that each node has for itself, under the same path. ``disk_of`` is where it lies here.
        copied: folders of this machine of which each node has a copy of its own in their place; see ``own``.
    """

    def __init__(self, folder: Path, names: tuple[str, ...] = ("n1", "n2"), *, copied: tuple[Path, ...] = ()) -> None:
        self.folder, self.names, self.copied = folder, names, copied
        self.local = folder / "node-local"
        self._token = secrets.token_hex(2)  # namespaces and links are the machine's: other tests may have theirs
        self._net = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
        self._first_job = 1_000_000 + MOST_JOBS * int(self._token, 16)  # a keeper's folder in /tmp is named by its job
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._bridge = f"orch{self._token}"
        for name in ("state", "node-local", *(f"disk-{node}" for node in names)):
            (folder / name).mkdir(parents=True)
        self._spool = Path(tempfile.mkdtemp(prefix="orch-slurm-"))  # a step's socket there has 108 characters at most
        for node in names:
            (self._spool / node).mkdir()
            for place in copied:
                shutil.copytree(place, self.own(node, place), symlinks=True)

    @property
    def environment(self) -> dict[str, str]:
        """What the tools of Slurm need to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def disk_of(self, node: str) -> Path:
        """What the node has at ``local``."""
        return self.folder / f"disk-{node}"

    def own(self, node: str, path: Path) -> Path:
        """Where the node's own copy of a file or folder of ``copied`` lies here."""
        place = next(place for place in self.copied if path.is_relative_to(place))
        return self.folder / f"copies-{node}" / str(self.copied.index(place)) / path.relative_to(place)

    def start(self) -> None:
        """Starts all of it; returns once both nodes are idle."""
        self._write_files()
        self._make_bridge()
        munge = {name: str(self.folder / f"munge.{name}") for name in ("key", "socket", "pid", "log", "seed")}
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (self.folder / "munge.key").chmod(0o400)
        words = ["--force", "--foreground", f"--key-file={munge['key']}", f"--socket={munge['socket']}"]
        words += [f"--pid-file={munge['pid']}", f"--log-file={munge['log']}", f"--seed-file={munge['seed']}"]
        self._begin("munged", ["munged", *words])
        wait_until(lambda: (self.folder / "munge.socket").exists(), timeout_s=20.0)
        self._begin("slurmctld", ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for node in self.names:
            self.boot(node)
        wait_until(lambda: self.states() == dict.fromkeys(self.names, "idle"), timeout_s=60.0)

    def boot(self, node: str) -> None:
        """Starts a node, with what its disk holds."""
        script = (
            f'mount --bind "{self.disk_of(node)}" "{self.local}" && ip link set lo up'
            f' && mount --bind "{self.folder}/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm'
            + "".join(f' && mount --bind "{self.own(node, place)}" "{place}"' for place in self.copied)
            + f' && {{ slurmd -D -N {node} -f "{self.folder}/slurm.conf" & wait; }}'
        )
        inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]
        self._begin(node, ["nsenter", f"--net=/run/netns/{self._namespace(node)}", *inside])

    def power_off(self, node: str) -> None:
        """The node is gone at once, with every process on it; its disk stays as it is."""
        self._daemons.pop(node).kill()

    def on(self, node: str, *words: str) -> str:
        """Runs a command among a node's own mounts and processes; what it printed."""
        inside = ["nsenter", f"--target={self._first_on(node)}", "--mount", "--pid", *words]
        return subprocess.run(inside, check=True, stdout=subprocess.PIPE).stdout.decode()

    def processes_on(self, node: str) -> dict[int, str]:
        """Pid, as it is here, and title of everything that runs on a node but for Slurm's own."""
        found = {}
        space = Path(f"/proc/{self._first_on(node)}/ns/pid").readlink()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                if (folder / "ns" / "pid").readlink() == space:
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return {pid: title for pid, title in found.items() if title and "slurm" not in title}

    def states(self) -> dict[str, str]:
        """State of each node as ``sinfo`` tells it."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %t")
        return dict(line.split() for line in done.splitlines() if line.count(" ") == 1)

    def run(self, *words: str) -> str:
        """Runs a tool of Slurm's; what it printed."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=False).stdout.decode()

    def jobs(self) -> list[str]:
        """Jobs that wait or run."""
        return self.run("squeue", "--noheader", "--array", "--format=%i %T %N").splitlines()

    def stop(self) -> None:
        """Ends all of it, by pid."""
        self.run("scancel", "--user=root")
        for name in (*self.names, "slurmctld", "munged"):
            daemon = self._daemons.pop(name, None)
            if daemon is not None:
                daemon.send_signal(signal.SIGKILL if name in self.names else signal.SIGTERM)
                daemon.wait()
        for node in self.names:
            self._ip("netns", "del", self._namespace(node), check=False)
        self._ip("link", "del", self._bridge, check=False)
        shutil.rmtree(self._spool, ignore_errors=True)
        for keeper in Path("/tmp").glob("orch-node-*-*"):  # of a node that was killed
            if int(keeper.name.rpartition("-")[2]) in range(self._first_job, self._first_job + MOST_JOBS):
                shutil.rmtree(keeper, ignore_errors=True)

    # ---- within

    def _first_on(self, node: str) -> int:
        """Pid of the node's first process, as it is here."""
        starter = self._daemons[node].pid
        return int(Path(f"/proc/{starter}/task/{starter}/children").read_text().split()[0])

    def _namespace(self, node: str) -> str:
        return f"orch-{self._token}-{node}"

    def _write_files(self) -> None:
        hostname = os.uname().nodename
        nodes = [
            f"NodeName={node} NodeHostname={hostname} NodeAddr={self._net}.{11 + i} CPUs=2 RealMemory=4000"
            for i, node in enumerate(self.names)
        ]
        text = _CONF.format(
            hostname=hostname,
            login_address=f"{self._net}.1",
            first_job=self._first_job,
            port=26000 + int(self._token, 16) % 2000,
            node_port=28000,
            folder=self.folder,
            spool=self._spool,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text)
        known = "".join(f"{self._net}.{11 + i} {node}\n" for i, node in enumerate(self.names))
        (self.folder / "hosts").write_text(Path("/etc/hosts").read_text() + known)

    def _make_bridge(self) -> None:
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")
        for i, node in enumerate(self.names):
            outer, inner, space = f"o{self._token}{i}", "eth0", self._namespace(node)
            self._ip("netns", "add", space)
            self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            self._ip("link", "set", outer, "master", self._bridge, "up")
            self._ip("-n", space, "addr", "add", f"{self._net}.{11 + i}/24", "dev", inner)
            self._ip("-n", space, "link", "set", inner, "up")

    def _ip(self, *words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)

    def _begin(self, name: str, argv: list[str]) -> None:
        log = (self.folder / f"{name}.out").open("ab")
        environment = {**os.environ, **self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        with log:
            self._daemons[name] = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


if __name__ == "__main__":  # to look at one by hand: python -m tests.support.slurm_cluster FOLDER
    by_hand = SlurmCluster(Path(sys.argv[1]))
    by_hand.start()
    print(f"export SLURM_CONF={by_hand.folder}/slurm.conf", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        by_hand.stop()
