"""``Remote``: the small interface through which everything else sees a host.

One method does the work: ``run`` sends a POSIX sh script and its standard input in one exec, and returns the exact
bytes that it wrote. Success is the closing sentinel, never an exit code alone: a lost line gives none, and then
``LineLostError`` says that the host must be asked what happened.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import RemoteCommandError
from orchestrator.records import Host

DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Spawned:
    """A detached process on the host: leader of its own session, so pid = process group = session id.

    Attributes:
        start_ticks: field 22 of /proc/PID/stat; None where there is no /proc.
        started_s: seconds since the epoch by the host's clock.
    """

    pid: int
    start_ticks: int | None
    started_s: float


@dataclass(frozen=True, slots=True)
class Completed:
    """A remote script that ran to its end: exit code, and the exact bytes of both streams."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are shown as escapes."""
        return self.stdout.decode("utf-8", "backslashreplace")


class Remote(ABC):
    """A host that can be asked to run POSIX sh.

    Safe to use from several threads. ``close`` may be called twice.
    """

    host: Host

    @abstractmethod
    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """Runs a POSIX sh script on the host in one round trip (two with the connection's channel opening).

        Args:
            script: sh source; ``$1 …`` are ``args``. It may read ``stdin`` to its end. ``exit`` ends the script only.
            args: any text without NUL, passed unchanged.
            stdin: bytes for the script's standard input.
            timeout_s: deadline for the whole call.

        Returns:
            What it wrote and its exit code, whatever that is.

        Raises:
            LineLostError: the line died or the closing sentinel did not come.
            RemoteTimeoutError: the deadline passed; the script may still run.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the connection; what was detached on the host lives on."""

    def scratch_dir(self) -> str:
        """Absolute path of orch's scratch folder on the host (mode 700, made when missing); asked once."""
        raise NotImplementedError

    def read(self, path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """The exact bytes of a file on the host, checked against its digest in the same round trip.

        Raises:
            TargetError: missing, unreadable, or a directory.
        """
        raise NotImplementedError

    def write(self, path: str, content: bytes, *, mode: int = 0o600, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Replaces a file of orch's own on the host atomically (never a target), with its missing folders.

        Raises:
            HostWriteError: the host could not write; what was there is untouched.
        """
        raise NotImplementedError

    def spawn(
        self, argv: Sequence[str], *, log_path: str, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Spawned:
        """Starts a process that outlives the connection: own session, all three descriptors redirected.

        Args:
            argv: run without a shell. env: added to the login's environment. cwd: scratch folder when None.
            log_path: standard output and error, truncated first; folders are made.

        Raises:
            RemoteCommandError: it could not be started (no such program, no such folder).
        """
        raise NotImplementedError

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        doing: str,
    ) -> Completed:
        """Like ``run``, but a non-zero exit is an error that brings its evidence.

        Args:
            doing: what was tried, for the message ("start the engine").

        Raises:
            RemoteCommandError: the exit code was not 0; evidence is the last 25 lines of standard error.
        """
        done = self.run(script, args, stdin=stdin, timeout_s=timeout_s)
        if done.exit_code:
            lines = done.stderr.decode("utf-8", "backslashreplace").splitlines()[-25:]
            raise RemoteCommandError(
                f"{self.host.name}: could not {doing} (exit code {done.exit_code})",
                evidence=lines,
            )
        return done


def command_line(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """One line of sh that runs ``argv`` with ``env`` added; everything is quoted."""
    assignments = [f"{name}={value}" for name, value in (env or {}).items()]
    return shlex.join(["env", *assignments, *argv] if assignments else list(argv))
