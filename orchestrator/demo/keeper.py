"""Runs one server for as long as its starter lives; stdlib only, started by path as a process of its own.

The starter holds the other end of this process's standard input. When that closes, because the starter stopped it or
was itself killed, even with -9, the server and its sessions end. A process that was detached from a session (an
engine) has another parent by then and is left alone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

LOOK_EVERY_S = 0.2
GRACE_S = 3.0


def children_of(parent: int) -> list[int]:
    """Process ids of the direct children."""
    pairs: list[tuple[int, int]] = []
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for path in stats:
        try:
            fields = path.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pairs.append((int(path.parent.name), int(fields[1])))
    if not stats:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        pairs = [(int(pid), int(ppid)) for pid, ppid in (line.split() for line in listing.splitlines())]
    return [pid for pid, ppid in pairs if ppid == parent]


def end(server: subprocess.Popen[bytes]) -> None:
    """Ends the server's sessions, then the server."""
    for pid in children_of(server.pid):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    server.terminate()
    try:
        server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main(argv: list[str]) -> int:
    """Starts ``argv``, prints its process id, and stays until it ends or standard input does."""
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(server.pid, flush=True)
    while server.poll() is None:
        readable, _, _ = select.select([0], [], [], LOOK_EVERY_S)
        if readable and not os.read(0, 1):
            end(server)
    return server.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
