"""Runs one command in a process group of its own, until it ends, its deadline passes, or nobody listens any more.

Whatever happens, the group is killed with it. What it prints is kept up to a bound.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import time
from typing import Dict, Mapping, NamedTuple, Optional, Sequence

MAX_STDOUT_BYTES = 4 << 20
MAX_STDERR_BYTES = 1 << 16
CHUNK_BYTES = 1 << 16
LOOK_EVERY_S = 0.1
_STDOUT = 1


class CannotStart(Exception):
    """The command could not be started; one line says why."""


class LineLost(Exception):
    """Nobody waits for the answer any more."""


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        exit_code: minus the signal's number for one that a signal ended; None when it passed its deadline.
        stdout: its last bytes; ``is_whole`` when nothing of it was dropped. stderr: its last bytes.
    """

    exit_code: Optional[int]
    stdout: bytes
    is_whole: bool
    stderr: bytes
    elapsed_s: float


class _Tail:
    """The end of a stream."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.content = bytearray()
        self.is_whole = True

    def take(self, piece: bytes) -> None:
        """The next bytes."""
        self.content += piece
        excess = len(self.content) - self.limit_bytes
        if excess > 0:
            self.is_whole = False
            del self.content[:excess]


def forbid_core_dumps() -> None:
    """A command that crashes must not leave its memory in the engine's folder."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def run(
    argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin_path: str, timeout_s: float, parent: int
) -> Ended:
    """Runs a command to its end.

    Args:
        stdin_path: file that it reads as its standard input.
        parent: read end of a pipe that ends when the process ends that the line belongs to.

    Raises:
        CannotStart: no such program, no such folder.
        LineLost: the line's process ended, or the other end of standard output is closed.
    """
    began_s = time.monotonic()
    try:
        with open(stdin_path, "rb") as stdin:
            child = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(env),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
    except (OSError, ValueError) as exc:
        raise CannotStart(str(exc)) from exc
    out, err = _Tail(MAX_STDOUT_BYTES), _Tail(MAX_STDERR_BYTES)
    try:
        assert child.stdout and child.stderr
        streams = {child.stdout.fileno(): out, child.stderr.fileno(): err}
        is_late = not _follow(child, streams, began_s + timeout_s, parent)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    elapsed_s = time.monotonic() - began_s
    exit_code = None if is_late else child.returncode
    return Ended(exit_code, bytes(out.content), out.is_whole, bytes(err.content), elapsed_s)


def _follow(child: subprocess.Popen[bytes], streams: Dict[int, _Tail], deadline_s: float, parent: int) -> bool:
    """Reads until the command has ended and nothing more comes; whether that was before the deadline."""
    poller = select.poll()
    for descriptor in streams:
        poller.register(descriptor, select.POLLIN)
    for descriptor in (parent, _STDOUT):  # asked for nothing, a poll still tells that the other end is closed
        poller.register(descriptor, 0)
    while True:
        has_ended = child.poll() is not None  # asked before the look, so that what it printed last is seen
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return has_ended
        events = poller.poll(0 if has_ended else min(left_s, LOOK_EVERY_S) * 1000)
        for descriptor, _ in events:
            if descriptor not in streams:
                raise LineLost
            piece = os.read(descriptor, CHUNK_BYTES)
            if piece:
                streams[descriptor].take(piece)
            else:
                poller.unregister(descriptor)
                del streams[descriptor]
        if has_ended and not events:  # a stream that is still open is held by something that it left behind
            return True
