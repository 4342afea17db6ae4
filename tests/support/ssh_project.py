"""A user's project whose host is a real sshd on this machine: real ``orch`` commands, and bad luck on demand.

Below one folder lie ``laptop/`` (inventory.yaml, results.db, variants/) and ``host/`` (the kernel's package, scratch
folder). The engine is ``serving_engine.py``, which imports the kernel. ``SessionHost`` is the sshd of all tests: what
it runs for each session can be held at a gate, or given the faults of ``orch_agent.sh``. Processes are found by the
folders that they name, without orch's own code.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run_command as run
from orchestrator.demo.ssh_host import ThrowawaySshHost, find_sshd
from tests.support.cli_project import Ran
from tests.support.tcp_proxy import TcpProxy
from tests.support.tiny_host import free_port, is_alive
from tests.support.waiting import wait_until

SUPPORT = Path(__file__).parent
CHECKOUT = SUPPORT.parent.parent
ORCH_TIMEOUT_S = 200.0

KERNEL = '''\
"""Decode attention: one program a row."""

import triton
import triton.language as tl

from kernels.rows import ROWS


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),  # wins at high concurrency
    ],
    key=["n"],
)
@triton.jit
def fast_kernel(x_ptr, n, BLOCK_T: tl.constexpr):
    row = tl.program_id(0)
    tl.store(x_ptr + row * BLOCK_T, n)


def launch(x):
    fast_kernel[(ROWS,)](x, 1)
'''

ROWS = '''\
"""Sizes that the launcher and the engine share."""

ROWS = 64
'''

TRITON = '''\
"""As much of the interface as the kernel's decorators touch while it is imported."""


class Config:
    def __init__(self, kwargs, num_warps=4, num_stages=2):
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages

    def __repr__(self):
        return "t%d-w%d-s%d" % (self.kwargs["BLOCK_T"], self.num_warps, self.num_stages)


def jit(function):
    return function


def autotune(configs, key):
    def keep(function):
        function.configs = configs
        return function

    return keep
'''

SESSION = """\
#!/bin/sh
# sshd runs this for every session: it waits at the gate, takes the faults, and runs what was asked for.
while [ -e "$HOME/gate" ]; do sleep 0.02; done
[ ! -e "$HOME/faults" ] || . "$HOME/faults"
exec "${SHELL:-/bin/sh}" -c "$SSH_ORIGINAL_COMMAND"
"""


class SessionHost:
    """A throwaway sshd with a hand on each of its sessions."""

    def __init__(self, folder: Path) -> None:
        session = folder / "session"
        self.ssh = ThrowawaySshHost(folder, alias="gpu-a", sshd_options=[f'ForceCommand exec "{session}"'])
        self.gate = self.ssh.home_path / "gate"
        self.faults = self.ssh.home_path / "faults"
        folder.mkdir(parents=True)
        session.write_text(SESSION)
        session.chmod(0o755)

    def set_fault(self, kind: str, step: str) -> None:
        """Later sessions stop (``STOP``), are killed (``KILL``) or fail (``FAIL``) at a named step of the agent."""
        self.faults.write_text(f"export ORCH_{kind}={step}\n")

    def stopped_agents(self) -> list[int]:
        """Pids of the agents that stand still at their step."""
        mark = b"HOME=" + os.fsencode(self.ssh.home_path)
        return [pid for pid in pids() if state_of(pid) == "T" and mark in environment_of(pid)]

    def await_stopped_agent(self) -> int:
        """Pid of the one agent that stands still, once it does."""
        wait_until(lambda: len(self.stopped_agents()) == 1, timeout_s=60.0)
        return self.stopped_agents()[0]

    def await_waiting_agent(self) -> None:
        """Returns when another agent waits for the mutex, which the one that stands still holds."""
        mark = b"HOME=" + os.fsencode(self.ssh.home_path)
        naps = (b"sleep\0" + b"0.05\0", b"sleep\0" + b"1\0")
        wait_until(lambda: any(command_of(pid) in naps and mark in environment_of(pid) for pid in pids()))

    def await_no_agent(self) -> None:
        """Returns when no session runs any more: what a cut line left has ended."""
        mark = b"HOME=" + os.fsencode(self.ssh.home_path)
        wait_until(lambda: not any(command_of(p).endswith(b"\0orch\0") and mark in environment_of(p) for p in pids()))

    def let_go(self) -> None:
        """Every agent that stands still goes on; later ones do not stop."""
        self.faults.unlink(missing_ok=True)
        for pid in self.stopped_agents():
            os.kill(pid, signal.SIGCONT)

    def end_stopped(self) -> None:
        """Every agent that stands still is killed, as when the host loses it; later ones do not stop."""
        self.faults.unlink(missing_ok=True)
        for pid in self.stopped_agents():
            os.kill(pid, signal.SIGKILL)

    def reset(self) -> None:
        """No faults, an open gate, nobody stopped."""
        self.gate.unlink(missing_ok=True)
        self.end_stopped()


@pytest.fixture(scope="session")
def session_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionHost]:
    """One sshd for the whole session."""
    if find_sshd() is None:
        pytest.skip("no sshd is installed here")
    host = SessionHost(tmp_path_factory.mktemp("session-host") / "sshd")
    with host.ssh:
        yield host


@pytest.fixture
def project(session_host: SessionHost, tmp_path: Path) -> Iterator[SshProject]:
    """A project on that host, with nothing pulled yet; whatever it started is ended with the test."""
    made = SshProject(tmp_path, session_host)
    made.write_host()
    made.write_inventory()
    yield made
    session_host.reset()
    made.close()


class SshProject:
    """The project.

    ``begin`` starts a command as a process, which the test then disturbs; ``orch`` runs one in this process, for what
    comes before and after that (a start of Python for each would double the time of these tests).

    Attributes:
        live, rows: the files on the host. ready_file, hold_file: gates of the engine; see ``serving_engine``.
    """

    def __init__(self, folder: Path, host: SessionHost, *, laptop: str = "laptop") -> None:
        self.host = host
        self.laptop = folder / laptop
        self.site = folder / "host"
        self.scratch = self.site / "scratch"
        self.live = self.site / "kernels" / "fast.py"
        self.rows = self.site / "kernels" / "rows.py"
        self.ready_file = self.site / "ready"
        self.hold_file = self.site / "hold"
        self.port = free_port()
        self.begun: list[RunningOrch] = []

    def write_host(self) -> None:
        """The kernel's package as somebody installed it a while ago."""
        (self.site / "triton").mkdir(parents=True)
        (self.site / "triton" / "__init__.py").write_text(TRITON)
        (self.site / "triton" / "language.py").write_text("constexpr = int\n")
        self.live.parent.mkdir(exist_ok=True)
        (self.live.parent / "__init__.py").write_text("")
        for path, text in ((self.live, KERNEL), (self.rows, ROWS)):
            path.write_text(text)
            path.chmod(0o640)
            os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
        self.scratch.mkdir(mode=0o700)

    def write_inventory(
        self,
        *engine_words: str,
        n_files: int = 1,
        host: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        target: dict[str, Any] | None = None,
        workload: dict[str, Any] | None = None,
    ) -> None:
        """Writes inventory.yaml (JSON is YAML).

        Args:
            engine_words: added to the engine's command.
            n_files: how many files the target has. host, engine, target, workload: keys that replace the usual ones.
        """
        modules = ["kernels.fast", "kernels.rows"][:n_files]
        paths = [str(self.live), str(self.rows)][:n_files]
        command = [sys.executable, "-m", "serving_engine", "--port", str(self.port)]
        for module in modules:
            command += ["--module", module]
        inventory = {
            "hosts": {
                "gpu-a": {
                    "ssh_config": str(self.host.ssh.ssh_config_path),
                    "scratch_dir": str(self.scratch),
                    **(host or {}),
                }
            },
            "engines": {
                "serving": {
                    "command": [*command, *engine_words],
                    "python": sys.executable,
                    "cwd": str(self.site),
                    "env": {"PYTHONPATH": str(SUPPORT)},
                    "base_url": f"http://127.0.0.1:{self.port}",
                    "loaded_path": "/loaded",
                    "ready_timeout_s": 30.0,
                    "stop_grace_s": 3.0,
                    **(engine or {}),
                }
            },
            "targets": {
                "fast": {
                    "files": [{"path": p, "module": m} for p, m in zip(paths, modules, strict=True)],
                    "kernel": "fast_kernel",
                    **(target or {}),
                }
            },
            "workloads": {
                "short": {
                    "input_tokens": 8,
                    "output_tokens": 4,
                    "prompts_per_concurrency": 3,
                    "warmup_per_concurrency": 1,
                    **(workload or {}),
                }
            },
        }
        self.laptop.mkdir(exist_ok=True)
        self.inventory.write_text(json.dumps(inventory, indent=1))

    # ---- commands

    def orch(self, *words: str) -> Ran:
        """``orch WORDS`` in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["--inventory", str(self.inventory), *words])
        return Ran(code, out.getvalue(), err.getvalue())

    def done(self, *words: str) -> Ran:
        """The same; it must succeed."""
        ran = self.orch(*words)
        assert ran.code == 0, ran.err
        return ran

    def begin(self, *words: str) -> RunningOrch:
        """``orch WORDS`` as a process, which runs on."""
        argv = [sys.executable, "-m", "orchestrator", "--inventory", str(self.inventory), *words]
        running = RunningOrch(argv, self.laptop)
        self.begun.append(running)
        return running

    @property
    def inventory(self) -> Path:
        """The project's inventory."""
        return self.laptop / "inventory.yaml"

    def with_variants(self) -> SshProject:
        """Itself, with a baseline and two variants of the same size: V1 is faster, V2 has another pipeline."""
        self.done("pull")
        self.done("variant", "new", "V1", "--set", "BLOCK_T=64")
        self.done("variant", "new", "V2", "--set", "num_stages=3")
        return self

    def pushed(self, name: str = "V1", *words: str) -> SshProject:
        """Itself, with a variant live."""
        self.with_variants()
        self.done("push", "--variant", name, *words)
        return self

    def status(self) -> dict[str, Any]:
        """What ``orch status --json`` says of the host now."""
        now: dict[str, Any] = self.done("status", "--json").document["now"]
        return now

    # ---- what is there

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the record, read without orch."""
        return query(self.laptop / "results.db", sql)

    def identity(self, path: Path | None = None) -> tuple[object, ...]:
        """All of a file that a revert must bring back: bytes, inode, mode, owner, mtime."""
        path = path or self.live
        found = path.stat()
        return path.read_bytes(), found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns

    @property
    def digest(self) -> str:
        """Of the live file."""
        return "sha256:" + sha256(self.live.read_bytes()).hexdigest()

    def digest_of(self, variant: str) -> str:
        """Of a variant's working copy, or of the pulled baseline."""
        path = self.laptop / "variants" / "fast" / variant / "fast.py"
        return "sha256:" + sha256(path.read_bytes()).hexdigest()

    @property
    def state_dir(self) -> Path:
        """Where the host's agent keeps what it knows of the target."""
        return self.live.parent / ".orch-fast.py"

    @property
    def traces(self) -> list[str]:
        """What orch left beside the files."""
        return [path.name for path in self.live.parent.iterdir() if path.name.startswith(".orch")]

    def get(self, path: str) -> Any:
        """What the engine answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def is_serving(self) -> bool:
        """Whether anything answers on the engine's port."""
        with contextlib.suppress(OSError):
            return bool(self.get("/config"))
        return False

    def await_held_load(self) -> None:
        """Returns when the engine holds back a completion: the load is under way and goes no further."""

        def holds() -> bool:
            with contextlib.suppress(OSError):
                return bool(self.get("/waiting")["n_waiting"])
            return False

        wait_until(holds, timeout_s=60.0)

    def host_pids(self) -> list[int]:
        """What runs on the host for this project: engine, load client, watcher, agent."""
        marks = [os.fsencode(self.site), b"\0--port\0%d\0" % self.port]
        own = {os.getpid(), *(one.process.pid for one in self.begun)}
        return [
            pid for pid in pids() if pid not in own and any(m in command_of(pid) + environment_of(pid) for m in marks)
        ]

    def named_pids(self, word: bytes) -> list[int]:
        """Those whose command line has a word, such as ``orch-watch`` or ``serving_engine``."""
        return [pid for pid in self.host_pids() if word in command_of(pid)]

    def close(self) -> None:
        """Ends what is left of the test."""
        for running in self.begun:
            running.kill()
        for pid in self.host_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.host_pids())


class RunningOrch:
    """An ``orch`` process whose standard error is read as it comes."""

    def __init__(self, argv: list[str], cwd: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._threads = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._pieces]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        with getattr(self.process, name) as stream:
            while piece := stream.read1(1 << 16):
                self._pieces[name].append(piece)

    def text(self, name: str = "stderr") -> str:
        """What it has written so far."""
        return b"".join(self._pieces[name]).decode()

    def await_text(self, text: str, *, name: str = "stderr", count: int = 1) -> None:
        """Returns as soon as it has written this so many times; fails when it ends before."""

        def is_there() -> bool:
            is_over = self.process.poll() is not None
            found = self.text(name).count(text) >= count
            assert found or not is_over, f"ended with {self.process.returncode} without {text!r}:\n{self.text()}"
            return found

        wait_until(is_there, timeout_s=ORCH_TIMEOUT_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9, and waits for its end."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def end(self, timeout_s: float = ORCH_TIMEOUT_S) -> Ran:
        """Waits for its end."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.process.args!r} does not end; so far: {self.text('stdout')}\n{self.text()}")
        for thread in self._threads:
            thread.join()
        return Ran(code, self.text("stdout"), self.text())


@contextlib.contextmanager
def behind_proxy(project: SshProject, *lines: str, **host: Any) -> Iterator[TcpProxy]:
    """A network between orch and the host that a test can break.

    Args:
        lines: further lines of the ssh configuration. host: keys of the host in the inventory.
    """
    ssh = project.host.ssh
    with TcpProxy(ssh.port) as proxy:
        known = ssh.known_hosts_path.read_text().split()
        known_path, config_path = project.laptop / "known_hosts", project.laptop / "ssh_config"
        known_path.write_text(f"through-proxy {known[1]} {known[2]}\n")
        first = [f"Port {proxy.port}", "HostKeyAlias through-proxy", f'UserKnownHostsFile "{known_path}"', *lines]
        text = f"Host {ssh.alias}\n" + "".join(f"  {line}\n" for line in first)
        config_path.write_text(text + ssh.ssh_config_path.read_text())
        project.write_inventory(host={"ssh_config": str(config_path), **host})
        yield proxy
        for running in project.begun:
            running.kill()


def query(db_path: Path, sql: str) -> list[dict[str, Any]]:
    """Rows of a record, read without orch."""
    with contextlib.closing(sqlite3.connect(f"file:{db_path}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def pids() -> list[int]:
    """Every live process, zombies aside."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and is_alive(int(path.name))]


def state_of(pid: int) -> str:
    """``R``, ``S``, ``T`` … as the kernel says; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def command_of(pid: int) -> bytes:
    """Its command line; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def environment_of(pid: int) -> bytes:
    """The environment that it was started with; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def folder_of(pid: int) -> bytes:
    """The folder that it is in; empty when it is gone."""
    with contextlib.suppress(OSError):
        return os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
    return b""


def pids_of(folder: Path) -> list[int]:
    """Live processes that name a folder in their command line or environment, or are in it."""
    mark, own = os.fsencode(folder), os.getpid()
    return [pid for pid in pids() if pid != own and mark in command_of(pid) + environment_of(pid) + folder_of(pid)]
