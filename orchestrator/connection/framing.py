"""The frame around one remote script: what goes into a shell's standard input, and how its answer is read back.

Pure: no sockets and no processes. Every transport starts the same constant command line, so that nothing of a user's
stands on it (process lists show command lines, and csh or fish as login shell would quote it by other rules).
The first line of standard input is the whole program, with its arguments set inside; the payload follows it.

Both output streams carry a begin line and an end line with a random token. What a login shell prints before the begin
line is ignored, what stands between is the script's output to the byte, and an answer without the end line is none.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.errors import LineLostError, UsageError

BOOTSTRAP = """exec /bin/sh -c 'IFS= read -r s; eval "$(printf %b "$s")"' orch"""
"""The command line of every exec. Read by the login shell, be it bash, dash, zsh, busybox sh, tcsh or fish."""

BOOTSTRAP_ARGV = ("/bin/sh", "-c", 'IFS= read -r s; eval "$(printf %b "$s")"', "orch")
"""The same for a transport that has no login shell."""

MAX_CODE_BYTES = 4
"""An exit code and its newline."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One script ready to be sent.

    Attributes:
        token: random; part of both sentinels.
        first_line: the program as one line, with its newline; to be followed by the payload.
    """

    token: str
    first_line: bytes

    @property
    def begin(self) -> bytes:
        """The line that precedes the script's output on both streams."""
        return f"orch-begin-{self.token}\n".encode()

    @property
    def end(self) -> bytes:
        """How the line after the script's output begins; the exit code and a newline follow."""
        return f"\norch-end-{self.token} ".encode()


def frame(script: str, args: Sequence[str] = (), *, token: str | None = None) -> Frame:
    """Packs a script and its arguments.

    The script runs in a subshell through ``eval``, so that its ``exit`` or a syntax error ends it alone.

    Args:
        script: POSIX sh; a trailing newline is not needed.
        args: its ``$1 …``.
        token: for tests; random otherwise.

    Raises:
        UsageError: the script or an argument holds a NUL, which no shell can carry.
    """
    for text in (script, *args):
        if "\0" in text:
            raise UsageError(f"a NUL character cannot be passed to a shell: {text[:60]!r}")
    token = token or secrets.token_hex(16)
    program = "\n".join(
        (
            "{",  # a shell reads a group to its end before it runs any of it: a line cut in here does nothing
            "set -- " + shlex.join(args) if args else "set --",
            f"echo orch-begin-{token}; echo orch-begin-{token} >&2",
            f"(eval {shlex.quote(script)})",
            "set -- $?",
            f"printf '\\norch-end-{token} %d\\n' \"$1\" >&2; printf '\\norch-end-{token} %d\\n' \"$1\"",
            "}",
        )
    )
    escaped = program.replace("\\", "\\0134").replace("\n", "\\n")
    return Frame(token, escaped.encode("utf-8", "surrogateescape") + b"\n")


@dataclass(slots=True)
class StreamParser:
    """Takes one stream piece by piece and cuts the script's output out of it.

    Pieces are kept as they come and joined once, so that a long answer costs no copying.

    Attributes:
        exit_code: as the end line says; None until it has come.
    """

    frame: Frame
    exit_code: int | None = None
    _pieces: list[bytes] = field(default_factory=list)
    _has_begun: bool = False
    _tail: bytes = b""
    _n_bytes: int = 0
    _end_at: int = -1

    @property
    def is_complete(self) -> bool:
        """Whether the end line has come; what follows it is not ours."""
        return self.exit_code is not None

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes of the stream; those after the end line are ignored."""
        if not piece or self.is_complete:
            return
        if not self._has_begun:
            piece = self._skip_banner(piece)
            if not piece:
                return
        self._pieces.append(piece)
        self._n_bytes += len(piece)
        self._look_for_end(piece)

    def _skip_banner(self, piece: bytes) -> bytes:
        noise = self._tail + piece
        at = noise.find(self.frame.begin)
        if at < 0:
            self._tail = noise
            return b""
        self._has_begun, self._tail = True, b""
        return noise[at + len(self.frame.begin) :]

    def _look_for_end(self, piece: bytes) -> None:
        """Searches the new bytes and as many old ones as an end line may have begun in."""
        window = self._tail + piece
        at = window.find(self.frame.end)
        while at >= 0:
            code, newline, _ = window[at + len(self.frame.end) :][:MAX_CODE_BYTES].partition(b"\n")
            if newline and code.isdigit():
                self.exit_code = int(code)
                self._end_at = self._n_bytes - len(window) + at
                return
            at = window.find(self.frame.end, at + 1)
        self._tail = window[-(len(self.frame.end) + MAX_CODE_BYTES) :]

    def content(self) -> bytes:
        """The script's output to the byte.

        Raises:
            LineLostError: the end line has not come.
        """
        if self.exit_code is None:
            raise LineLostError(
                "the answer ended without its closing line"
                if self._has_begun
                else "the remote shell never started the script",
                next_step="ask the host for its state before trying again (`orch status`)",
                evidence=self.last_lines(),
            )
        return b"".join(self._pieces)[: self._end_at]

    def last_lines(self, n: int = 25) -> list[str]:
        """The last lines that came, whatever they are, for an error's evidence."""
        raw = b"".join(self._pieces[-4:]) if self._has_begun else self._tail
        return raw[-4096:].decode("utf-8", "backslashreplace").splitlines()[-n:]
