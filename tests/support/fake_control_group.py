"""A real control group for a fake manager, where this machine lets one be made. Standard library only."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

ROOTS = tuple(map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")))


def make(name: str) -> str:
    """The path of a new group as /proc/PID/cgroup shows it; empty where none can be made."""
    for root in ROOTS:
        if (root / "cgroup.procs").exists():
            with contextlib.suppress(OSError):
                (root / name).mkdir(parents=True, exist_ok=True)
                return f"/{name}"
    return ""


def _folders(path: str) -> list[Path]:
    return [folder for root in ROOTS if path and (folder := root / path[1:]).exists()]


def enter(path: str, pid: int) -> None:
    """Puts a process into it."""
    for folder in _folders(path):
        (folder / "cgroup.procs").write_text(f"{pid}\n")


def pids(path: str) -> list[int]:
    """The processes in it."""
    return [int(line) for folder in _folders(path) for line in (folder / "cgroup.procs").read_text().split()]


def remove(path: str) -> None:
    """Takes it away with its parent, once it is empty."""
    deadline_s = time.monotonic() + 5
    while _folders(path) and time.monotonic() < deadline_s:
        for folder in _folders(path):
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()
        time.sleep(0.01)
