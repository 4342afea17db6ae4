"""A stand-in for docker or podman: a program on PATH whose containers are processes in a real mount namespace.

``FakeDocker(folder)`` installs it; this file is also the program behind it. A container has a root of its own, made of
bind mounts, in a namespace of its own: what is mounted there has other paths than on this machine, and a file that is
mounted by itself keeps its old content when another takes its name. Needs root. Pids are this machine's, and so is the
network, unless a port is published.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

# beside this file, also when it runs as a program
sys.path.insert(0, str(Path(__file__).parent))
import fake_control_group as control_group

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/dev")
_ENTER = """
set -e
root=$1
shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
  mount --bind "$1" "$root$2"
  shift 2
done
shift
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
exec chroot . "$@"
"""
_IN_FOLDER = 'cd "$0" && exec "$@"'


def can_run() -> bool:
    """Whether this login may make a mount namespace."""
    return subprocess.run(["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"], capture_output=True).returncode == 0


class FakeDocker:
    """Installs the program, and says what it was asked."""

    def __init__(self, folder: Path, *, name: str = "docker") -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self.program = self.bin / name
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "{folder}" "$@"\n')
        self.program.chmod(0o755)

    def create(
        self,
        name: str,
        argv: list[str],
        *,
        mounts: dict[str, str],
        env: dict[str, str],
        cwd: str,
        published: tuple[int, int] | None = None,
    ) -> None:
        """A container that does not run yet.

        Args:
            mounts: path here → path inside; the system and this Python are mounted under their own paths.
            published: port here, port inside: then its network is its own, with a proxy between them.
        """
        prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)} | {sys.prefix}
        places = [path for path in (*SYSTEM, *sorted(prefixes)) if Path(path).exists() and not _is_in_system(path)]
        own = {path: path for path in places}
        root = self.folder / f"{name}.root"
        binds = [[source, inside] for source, inside in {**own, **mounts}.items()]
        for source, inside in binds:
            point = Path(f"{root}{inside}")
            if Path(source).is_dir():
                point.mkdir(parents=True, exist_ok=True)
            else:
                point.parent.mkdir(parents=True, exist_ok=True)
                point.touch()
        (root / "tmp").mkdir(exist_ok=True)
        spec = {"id": secrets.token_hex(32), "argv": argv, "binds": binds, "root": str(root), "env": env, "cwd": cwd}
        spec["published"] = published
        (self.folder / f"{name}.json").write_text(json.dumps(spec))

    def start(self, name: str) -> int:
        """As if its user had started it; its first process."""
        subprocess.run([self.program, "start", name], check=True, stdout=subprocess.DEVNULL)
        (self.folder / "calls").unlink()
        return self.pid(name)

    def pid(self, name: str) -> int:
        """The container's first process; 0 when it does not run."""
        pid = int(_state(self.folder, name).get("pid", 0))
        return pid if _is_alive(pid) else 0

    def calls(self, verb: str) -> list[list[str]]:
        """What it was asked with a verb."""
        lines = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [words for words in map(json.loads, lines) if words[0] == verb]

    def close(self) -> None:
        """Ends every container."""
        for path in self.folder.glob("*.state"):
            _stop(self.folder, path.stem, 0.0)
            control_group.remove(_state(self.folder, path.stem).get("group", ""))


def _is_in_system(path: str) -> bool:
    return path not in SYSTEM and path.startswith(tuple(f"{one}/" for one in SYSTEM))


def _state(folder: Path, name: str) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        state: dict[str, Any] = json.loads((folder / f"{name}.state").read_text())
        return state
    return {}


def _spec(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not path.exists():
        sys.exit(f"Error: No such container: {name}")
    spec: dict[str, Any] = json.loads(path.read_text())
    return spec


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _start(folder: Path, name: str) -> None:
    state, spec = _state(folder, name), _spec(folder, name)
    if not _is_alive(state.get("pid", 0)):
        group = state.get("group") or control_group.make(f"orch-test-{name}/docker-{spec['id']}.scope")
        binds = [word for bind in spec["binds"] for word in bind]
        argv = ["/bin/sh", "-c", _IN_FOLDER, spec["cwd"], *spec["argv"]]
        space = ["unshare", "-mn" if spec["published"] else "-m"]
        with (folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*space, "/bin/sh", "-c", _ENTER, "enter", spec["root"], *binds, "--", *argv],
                env={"PATH": os.environ["PATH"], **spec["env"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        control_group.enter(group, child.pid)
        child.returncode = 0  # it outlives this program
        _await_program(child.pid, spec["argv"][0])
        proxy_pid = _start_proxy(folder, child.pid, *spec["published"]) if spec["published"] else 0
        (folder / f"{name}.state").write_text(json.dumps({"pid": child.pid, "group": group, "proxy_pid": proxy_pid}))
    print(name)


def _await_program(pid: int, program: str) -> None:
    """Returns when the process is inside its root, or gone: docker says that it runs no earlier."""
    while _is_alive(pid) and Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0] != os.fsencode(program):
        time.sleep(0.005)


def _start_proxy(folder: Path, pid: int, outer: int, inner: int) -> int:
    """What docker calls docker-proxy: a process of the host that holds the published port."""
    with socket.create_server(("127.0.0.1", outer)) as listening:
        proxy = subprocess.Popen(
            [sys.executable, "-I", __file__, str(folder), "proxy", str(listening.fileno()), str(pid), str(inner)],
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    proxy.returncode = 0  # it outlives this program
    return proxy.pid


def _proxy(descriptor: int, pid: int, inner: int) -> None:
    """Answers on a socket of the host for a port in the network of a process."""
    listening = socket.socket(fileno=descriptor)
    with Path(f"/proc/{pid}/ns/net").open() as network:
        assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0
    with socket.socket() as any_socket:  # the loopback of a new network is down
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 0x41))
    while True:
        outside, _ = listening.accept()
        try:
            inside = socket.create_connection(("127.0.0.1", inner))
        except OSError:
            outside.close()
            continue
        for source, sink in ((outside, inside), (inside, outside)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


def _stop(folder: Path, name: str, grace_s: float) -> None:
    state = _state(folder, name)
    with contextlib.suppress(ProcessLookupError):
        if state.get("proxy_pid"):
            os.kill(state["proxy_pid"], signal.SIGKILL)
    (folder / f"{name}.state").write_text(json.dumps({**state, "pid": 0, "proxy_pid": 0}))
    first = {state.get("pid", 0)}
    for number, pids, patience_s in (
        (signal.SIGTERM, first, grace_s),
        (signal.SIGKILL, {*first, *control_group.pids(state.get("group", ""))}, 5.0),
    ):
        for pid in filter(_is_alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline_s = time.monotonic() + patience_s
        while any(map(_is_alive, pids)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    print(name)


def _exec(folder: Path, words: list[str]) -> None:
    env, cwd, is_detached = {}, None, False
    while words[0].startswith("-"):
        option = words.pop(0)
        if option == "-e":
            key, equals, value = words.pop(0).partition("=")
            env[key] = value if equals else os.environ[key]
        elif option == "-w":
            cwd = words.pop(0)
        is_detached |= option == "-d"
    name = words.pop(0)
    spec, pid = _spec(folder, name), _state(folder, name).get("pid", 0)
    if not _is_alive(pid):
        sys.exit(f"Error response from daemon: container {name} is not running")
    spaces = ["-m", "-r", *(["-n"] if spec["published"] else [])]
    argv = ["nsenter", "-t", str(pid), *spaces, "/bin/sh", "-c", _IN_FOLDER, cwd or spec["cwd"], *words]
    environment = {"PATH": os.environ["PATH"], **spec["env"], **env}
    if not is_detached:
        os.execvpe(argv[0], argv, environment)
    silent = subprocess.DEVNULL
    child = subprocess.Popen(argv, env=environment, stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
    control_group.enter(_state(folder, name).get("group", ""), child.pid)
    child.returncode = 0  # it outlives this program


def _inspect(folder: Path, words: list[str]) -> None:
    spec, pid = _spec(folder, words[-1]), _state(folder, words[-1]).get("pid", 0)
    is_running = _is_alive(pid)
    outer, inner = spec["published"] or (0, 0)
    ports = {f"{inner}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(outer)}]} if inner else {}
    values = {
        ".Id": spec["id"],
        ".State.Pid": pid if is_running else 0,
        ".State.Running": is_running,
        ".State.ExitCode": 0 if is_running else 137,
        ".NetworkSettings.Ports": ports,
    }
    text = words[words.index("--format") + 1]
    for key, value in values.items():
        text = text.replace(f"{{{{json {key}}}}}", json.dumps(value))
        text = text.replace(f"{{{{{key}}}}}", value if isinstance(value, str) else json.dumps(value))
    print(text)


def main() -> None:
    """One call of the program."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    if words[0] == "proxy":
        _proxy(*map(int, words[1:]))
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    verb = words.pop(0)
    if verb == "start":
        _start(folder, words[-1])
    elif verb == "stop":
        _stop(folder, words[-1], float(words[words.index("-t") + 1]))
    elif verb == "exec":
        _exec(folder, words)
    elif verb == "inspect":
        _inspect(folder, words)
    elif verb == "logs":
        sys.stdout.write((folder / f"{words[-1]}.log").read_text())
    else:
        sys.exit(f"docker: '{verb}' is not a docker command.")


if __name__ == "__main__":
    main()
