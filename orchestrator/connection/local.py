"""``LocalRemote``: this machine behind the same seam, for someone who works on the GPU host itself.

The same frame and the same scripts as over SSH, through a child ``/bin/sh``; so nothing behaves differently here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence

from orchestrator.connection import framing
from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote
from orchestrator.errors import LineLostError, RemoteTimeoutError
from orchestrator.records import Host

CHUNK_BYTES = 1 << 16


class LocalRemote(Remote):
    """This machine. Every ``run`` is a child of its own, so calls from several threads do not meet."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """Runs the script in a child ``/bin/sh``; past the deadline that child is killed with its group."""
        frame = framing.frame(script, args)
        shell = subprocess.Popen(
            framing.BOOTSTRAP_ARGV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at the controller must not end a script half way
        )
        with shell:
            try:
                return _converse(shell, frame, stdin, time.monotonic() + timeout_s)
            except TimeoutError as exc:
                raise RemoteTimeoutError(
                    f"{self.host.name}: a command did not end within {timeout_s:g} s and was killed"
                ) from exc
            except LineLostError as exc:
                raise LineLostError(f"{self.host.name}: {exc.message}", evidence=exc.evidence) from exc
            finally:
                _end(shell)

    def close(self) -> None:
        """Nothing is held between calls."""


def _end(shell: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the script's process group; a script that ended has left nothing in it to kill."""
    if shell.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(0.2)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def _converse(shell: subprocess.Popen[bytes], frame: framing.Frame, payload: bytes, deadline: float) -> Completed:
    """One loop over all three descriptors: a script may fill its output before it has read its input."""
    assert shell.stdin and shell.stdout and shell.stderr
    out, err = framing.StreamParser(frame), framing.StreamParser(frame)
    unsent = memoryview(frame.first_line + payload)
    with selectors.DefaultSelector() as selector:
        os.set_blocking(shell.stdin.fileno(), False)
        selector.register(shell.stdin, selectors.EVENT_WRITE)
        selector.register(shell.stdout, selectors.EVENT_READ, out)
        selector.register(shell.stderr, selectors.EVENT_READ, err)
        while selector.get_map() and not (out.is_complete and err.is_complete):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            for key, _ in selector.select(remaining_s):
                if key.fileobj is shell.stdin:
                    unsent = _send(shell, unsent)
                    if not unsent:
                        selector.unregister(shell.stdin)
                        shell.stdin.close()
                elif piece := os.read(key.fd, CHUNK_BYTES):
                    key.data.feed(piece)
                else:
                    selector.unregister(key.fileobj)
    stdout = out.content()
    assert out.exit_code is not None
    return Completed(out.exit_code, stdout, err.content())


def _send(shell: subprocess.Popen[bytes], unsent: memoryview) -> memoryview:
    """Writes what fits and returns the rest; nothing more when the script reads no further."""
    assert shell.stdin
    try:
        return unsent[os.write(shell.stdin.fileno(), unsent[:CHUNK_BYTES]) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]
