"""``Remote``: the small interface through which everything else sees a host.

One method does the work: ``run`` sends a POSIX sh script and its standard input in one exec, and returns the exact
bytes that it wrote. Success is the closing sentinel, never an exit code alone: a lost line gives none, and then
``LineLostError`` says that the host must be asked what happened.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.connection import scripts
from orchestrator.errors import HostWriteError, RemoteCommandError, RemoteError, TargetError, UsageError
from orchestrator.records import Host

DEFAULT_TIMEOUT_S = 30.0
N_READ_TRIES = 3
N_EVIDENCE_LINES = 25


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
    _scratch_dir: str | None = None

    @property
    def members(self) -> tuple[Remote, ...]:
        """The machines that one engine spans here, the head first; this one alone, but for a group of nodes."""
        return (self,)

    @abstractmethod
    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """Runs a POSIX sh script on the host: one round trip, three when no shell was prepared for it yet.

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
        """Absolute path of orch's scratch folder on the host (mode 700, made when missing); asked once.

        A folder that already exists keeps its mode.

        Raises:
            HostWriteError: it cannot be made or written.
        """
        if self._scratch_dir is None:
            done = self.run(scripts.SCRATCH_DIR, [self.host.scratch_dir or ""])
            if done.exit_code:
                raise HostWriteError(
                    f"{self.host.name}: no scratch folder{_because(done)}",
                    next_step=f"set scratch_dir of host {self.host.name} in inventory.yaml",
                )
            self._scratch_dir = done.stdout[:-1].decode("utf-8", "surrogateescape")
        return self._scratch_dir

    def read(self, path: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """The exact bytes of a file on the host, checked against its digest in the same round trip.

        For files that stand still: of one that keeps growing (a log) ask for a part with ``run``.

        Raises:
            TargetError: missing, unreadable, a directory, or it changed each time while it was read.
        """
        for _ in range(N_READ_TRIES):
            done = self.run(scripts.READ, [path], timeout_s=timeout_s)
            if done.exit_code:
                raise self._read_error(path, done)
            digest, _, content = done.stdout.partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() == digest:
                return content
        raise TargetError(
            f"{self.host.name}: {path} changed while it was read, {N_READ_TRIES} times in a row",
            next_step="find out who is writing it, then try again",
        )

    def _read_error(self, path: str, done: Completed) -> RemoteError:
        if done.exit_code == scripts.NO_DIGEST_TOOL:
            return RemoteCommandError(f"{self.host.name}: cannot compute a digest{_because(done)}")
        reason = {
            scripts.MISSING: "there is no such file",
            scripts.NOT_A_FILE: "not a regular file",
            scripts.UNREADABLE: "not readable by this login",
        }.get(done.exit_code, f"exit code {done.exit_code}")
        return TargetError(f"{self.host.name}: cannot read {path}: {reason}", evidence=_last_lines(done.stderr))

    def write(self, path: str, content: bytes, *, mode: int = 0o600, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Replaces a file of orch's own on the host atomically (never a target), with its missing folders.

        The mode is the given one whatever the login's umask; folders are made with mode 700.

        Raises:
            HostWriteError: the host could not write; what was there is untouched.
        """
        digest = hashlib.sha256(content).hexdigest()
        done = self.run(scripts.WRITE, [path, f"{mode:o}", digest], stdin=content, timeout_s=timeout_s)
        if done.exit_code == scripts.NO_DIGEST_TOOL:
            raise RemoteCommandError(f"{self.host.name}: cannot compute a digest{_because(done)}")
        if done.exit_code:
            what = "other bytes arrived" if done.exit_code == scripts.BAD_TRANSFER else f"exit code {done.exit_code}"
            raise HostWriteError(
                f"{self.host.name}: could not write {path} ({len(content)} bytes, {what}){_because(done)}",
                next_step=f"look at the space and the permissions of {path.rpartition('/')[0] or '/'} on the host",
            )

    def spawn(
        self, argv: Sequence[str], *, log_path: str, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> Spawned:
        """Starts a process that outlives the connection: own session, all three descriptors redirected.

        It returns when the program itself runs (or has already ended), not merely a shell that will try to run it.
        The start time is read just before, so it is never later than the true one.

        Args:
            argv: run without a shell. env: added to the login's environment. cwd: scratch folder when None.
            log_path: standard output and error, truncated first; folders are made.

        Raises:
            RemoteCommandError: it could not be started (no such program, no such folder).
            UsageError: an environment variable's name is not one.
        """
        words = _environment_words(env or {})
        if not argv or argv[0].startswith("-"):
            raise UsageError(f"not a command: {list(argv)!r}")
        token = f"orch-spawn-{secrets.token_hex(8)}"
        folder = self.scratch_dir() if cwd is None else cwd
        done = self.run(scripts.SPAWN, [log_path, folder, token, str(len(words)), *words, *argv])
        if done.exit_code:
            raise RemoteCommandError(
                f"{self.host.name}: could not start {shlex.join(argv)[:200]} in {folder}",
                next_step="check the program's path and the folder in inventory.yaml",
                evidence=_last_lines(done.stderr),
            )
        pid, ticks, started_s = done.text.split()
        return Spawned(int(pid), None if ticks == "-" else int(ticks), float(started_s))

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
            raise RemoteCommandError(
                f"{self.host.name}: could not {doing} (exit code {done.exit_code})",
                evidence=_last_lines(done.stderr),
            )
        return done


def command_line(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """One line of sh that runs ``argv`` with ``env`` added; everything is quoted."""
    assignments = [f"{name}={value}" for name, value in (env or {}).items()]
    return shlex.join(["env", *assignments, *argv] if assignments else list(argv))


def _environment_words(env: Mapping[str, str]) -> list[str]:
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"not the name of an environment variable: {name!r}", next_step="correct it under env")
    return [f"{name}={value}" for name, value in env.items()]


def _last_lines(stream: bytes) -> list[str]:
    return stream.decode("utf-8", "backslashreplace").splitlines()[-N_EVIDENCE_LINES:]


def _because(done: Completed) -> str:
    """The last line of standard error, ready to be put behind a message; empty when there is none."""
    lines = [line for line in _last_lines(done.stderr) if line.strip()]
    return f" ({lines[-1].strip()})" if lines else ""
