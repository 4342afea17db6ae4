"""This machine as a host, with a tiny engine and the module that it imports; everything lies below one folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.connection import Remote
from orchestrator.connection.local import LocalRemote
from orchestrator.records import Engine, Host, Target, TargetFile, digest_of

SUPPORT = Path(__file__).parent
WAIT_S = 20.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits until a condition holds; returns its value."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {WAIT_S:g} s in vain: {what}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Whether a process lives and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class TinyHost:
    """A host, a target ``kernels/fast.py`` and engines for it; ``close`` ends whatever still carries its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.path = self.site / "kernels" / "fast.py"
        self.path.parent.mkdir(parents=True)
        (self.site / "kernels" / "__init__.py").write_text("")
        self.path.write_text("VALUE = 1\n")
        self.remote: Remote = LocalRemote(Host(name="here", transport="local", scratch_dir=str(folder / "scratch")))
        self.target = Target(
            name="fast",
            host="here",
            engine="tiny",
            files=(TargetFile(path=str(self.path), name="fast.py", module="kernels.fast"),),
            kernel="fast",
        )
        self.port = free_port()
        self.strangers: list[subprocess.Popen[bytes]] = []

    def engine(self, *options: str, wrapper: tuple[str, ...] = (), **changes: Any) -> Engine:
        """A tiny engine started as ``python -m tiny_engine`` in the site folder."""
        env = {"PYTHONPATH": str(SUPPORT), "PYTHONDONTWRITEBYTECODE": "", **changes.pop("env", {})}
        given = {
            "name": "tiny",
            "command": (*wrapper, sys.executable, "-m", "tiny_engine", "--port", str(self.port), *options),
            "python": sys.executable,
            "base_url": f"http://127.0.0.1:{self.port}",
            "cwd": str(self.site),
            "ready_timeout_s": 20.0,
            "stop_grace_s": 5.0,
        }
        return Engine(**{**given, "env": env, **changes})

    def deploy(self, text: str) -> str:
        """Replaces the target as a push does: renamed into place, with an mtime above every earlier one."""
        mtime_ns = self.path.stat().st_mtime_ns + 1_000_000_000 if self.path.exists() else None
        new = self.path.with_suffix(".new")
        new.write_text(text)
        if mtime_ns:
            os.utime(new, ns=(mtime_ns, mtime_ns))
        new.replace(self.path)
        return digest_of(text.encode())

    @property
    def digest(self) -> str:
        """Digest of what is deployed now."""
        return digest_of(self.path.read_bytes())

    def get(self, path: str) -> Any:
        """What the engine answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def stranger(self) -> int:
        """Somebody else's web server on the engine's port; its pid."""
        argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(self.port)]
        (self.folder / "health").write_text("fine")
        process = subprocess.Popen(
            argv, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.strangers.append(process)

        def answers() -> bool:
            with suppress(OSError):
                return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200)
            return False

        until(answers, "the stranger listens")
        return process.pid

    def own_pids(self) -> list[int]:
        """Every live process that names this host's folder or carries its mark: found without orch's own code."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                ours = b"ORCH_ENGINE=" + os.fsencode(self.folder) in text or (
                    b"tiny_engine" in text and b"\0%d\0" % self.port in text
                )
                if ours and is_alive(int(entry.name)):
                    found.append(int(entry.name))
        return sorted(found)

    def close(self) -> None:
        """Ends what the tests left."""
        for stranger in self.strangers:
            stranger.kill()
            stranger.wait()
        for pid in self.own_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.remote.close()
