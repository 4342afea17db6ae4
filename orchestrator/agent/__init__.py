"""``Agent``: speaks to ``orch_agent.sh``, the script that reads, replaces and restores target files on a host.

Each method is one round trip. Every answer is checked for its closing line and its digests; an answer without them is
a lost line, after which ``stat`` tells what happened. Nothing here retries.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from orchestrator.agent.answers import Answer, FileAnswer, MalformedAnswerError, Refusal, parse
from orchestrator.agent.refusals import copy_command, error_for, repair_command
from orchestrator.connection.base import Remote
from orchestrator.errors import LeaseLostError, LineLostError, OrchError, TargetError
from orchestrator.records import DeployedFile, FileState, Lease, digest_of

__all__ = ["Agent", "PushAnswer", "PushedContent", "RevertAnswer", "copy_command", "repair_command"]

TIMEOUT_S = 60.0
SLOWEST_LINE_BYTES_PER_S = 50_000
N_READ_TRIES = 5
CHANGING_PART = "# ==== only to change things"
CLOSING_PART = "# ==== always"


@dataclass(frozen=True, slots=True)
class PushedContent:
    """What one file is to become, and what it must be before.

    Attributes:
        path: on the host. expected_digest, digest: ``sha256:…`` before and after.
    """

    path: str
    expected_digest: str
    digest: str
    content: bytes


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """An acknowledged push; the files in the order in which they were given."""

    files: tuple[DeployedFile, ...]
    states: tuple[FileState, ...]
    lease: Lease


@dataclass(frozen=True, slots=True)
class RevertAnswer:
    """An acknowledged revert.

    Attributes:
        restored: paths whose content or metadata had to be put back. kept: where foreign edits lie now.
    """

    states: tuple[FileState, ...]
    restored: tuple[str, ...]
    kept: tuple[str, ...]


class Agent:
    """The agent on one host. Holds nothing between calls; safe to use from several threads."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def stat(self, paths: Sequence[str]) -> tuple[FileState, ...]:
        """How the files are now; writes nothing. A file that is missing has no digest.

        Raises:
            TargetError: one is a directory, no regular file, or not readable.
        """
        return _states(self._ask("stat", paths))

    def read(self, paths: Sequence[str]) -> tuple[tuple[FileState, bytes], ...]:
        """The exact bytes of the files, proved by digest; writes nothing.

        Raises:
            TargetError: one is missing, a directory, not readable, or kept changing while it was read.
        """
        for _ in range(N_READ_TRIES):
            answer = self._ask("read", paths)
            contents = _cut(answer)
            if contents is not None:
                return contents
        raise TargetError(
            f"{self._remote.host.name}: {', '.join(paths)} changed while being read, {N_READ_TRIES} times in a row",
            next_step="find out who is writing there, then try again",
        )

    def lock(
        self,
        paths: Sequence[str],
        *,
        nonce: str,
        holder: str,
        ttl_s: int,
        poll_s: float,
        on_expiry: str | None = None,
    ) -> Lease:
        """Takes the lease on all files, or renews it when it is ours, and starts the watcher.

        An expired lease of somebody else is ended first: their files are restored.

        Args:
            on_expiry: sh source that the watcher runs when the lease ends without having been given back.

        Raises:
            LeaseHeldError: somebody else's lease is live.
        """
        script = (on_expiry or "").encode()
        words = [nonce, str(ttl_s), _seconds(poll_s), _one_line(holder), str(len(script)), *paths]
        return self._lease(self._ask("lock", words, stdin=script), nonce)

    def renew(self, paths: Sequence[str], *, nonce: str, ttl_s: int) -> Lease:
        """Extends our lease to ``ttl_s`` from now, and starts a watcher where none lives (after a reboot).

        Raises:
            LeaseLostError: it is gone: expired and ended, or taken.
        """
        return self._lease(self._ask("renew", [nonce, str(ttl_s), *paths]), nonce)

    def unlock(self, paths: Sequence[str], *, nonce: str) -> tuple[FileState, ...]:
        """Gives the lease back; restores nothing. One that is not ours, or gone, is left alone."""
        return _states(self._ask("unlock", [nonce, *paths]))

    def push(
        self,
        files: Sequence[PushedContent],
        *,
        nonce: str,
        holder: str,
        ttl_s: int,
        poll_s: float,
        floor_mtime_s: int = 0,
        on_restore: str | None = None,
    ) -> PushAnswer:
        """Replaces all files or none: lease, watcher, compare-and-swap, rename, proof. The same push twice is one.

        Args:
            floor_mtime_s: the files' new mtimes are later than this.
            on_restore: sh source that the watcher runs after it had to restore a file.

        Raises:
            StaleBaseError, ForeignEditError, LeaseHeldError, LeaseLostError, TransferError, TargetError,
            HostWriteError: nothing was written, or what was written is restored.
            RevertError: one file failed, and another could not be put back.
            LineLostError: unknown what happened; ask ``stat``, or push the same again.
        """
        script = (on_restore or "").encode()
        payload = b"".join(file.content for file in files) + script
        words = [nonce, str(ttl_s), _seconds(poll_s), str(floor_mtime_s), _one_line(holder), str(len(script))]
        for file in files:
            words += [file.path, _hex(file.expected_digest), _hex(file.digest), str(len(file.content))]
        answer = self._ask("push", words, stdin=payload)
        return PushAnswer(
            tuple(self._deployed(wanted, found) for wanted, found in zip(files, answer.files, strict=True)),
            _states(answer),
            self._lease(answer, nonce),
        )

    def revert(self, paths: Sequence[str], *, nonce: str | None = None, force: bool = False) -> RevertAnswer:
        """Puts back what was there before the first push, proves it, and ends the lease. Clean files stay as they are.

        Args:
            nonce: ours; without it only where nobody's lease is live.
            force: keep a foreign edit aside and restore all the same; end somebody else's lease.

        Raises:
            ForeignEditError, LeaseHeldError: nothing was written.
            RevertError: a file is not restored; says how to repair it.
            LineLostError: unknown what happened; revert again.
        """
        answer = self._ask("revert", [nonce or "-", "1" if force else "0", *paths])
        return RevertAnswer(
            _states(answer),
            tuple(file.state.path for file in answer.files if file.outcome == "restored"),
            tuple(file.kept for file in answer.files if file.kept),
        )

    def _ask(self, operation: str, words: Sequence[str], *, stdin: bytes = b"") -> Answer:
        """One exec of the agent.

        Raises:
            LineLostError: what came back is not a whole answer.
        """
        done = self._remote.run(
            _source(operation),
            [operation, *words],
            stdin=stdin,
            timeout_s=TIMEOUT_S + len(stdin) / SLOWEST_LINE_BYTES_PER_S,
        )
        evidence = done.stderr.decode("utf-8", "backslashreplace").splitlines()[-25:]
        try:
            answer = parse(done.stdout, has_content=operation == "read")
        except MalformedAnswerError as exc:
            raise self._no_answer(f"{exc} (exit code {done.exit_code})", evidence) from exc
        if isinstance(answer, Refusal):
            raise error_for(answer, self._remote.host, done.exit_code) or self._no_answer(
                f"an unknown refusal {answer.word!r} (exit code {done.exit_code})", evidence
            )
        if done.exit_code:
            raise self._no_answer(f"an answer with exit code {done.exit_code}", evidence)
        return answer

    def _no_answer(self, why: str, evidence: Sequence[str]) -> OrchError:
        return LineLostError(
            f"{self._remote.host.name}: the agent gave no whole answer: {why}",
            next_step="whether the host acted must be asked: `orch status`",
            evidence=evidence,
        )

    def _deployed(self, wanted: PushedContent, found: FileAnswer) -> DeployedFile:
        state = found.state
        if state.digest != wanted.digest or found.mtime_s is None or found.outcome not in ("pushed", "already"):
            raise self._no_answer(f"{state.path} acknowledged with {state.digest}, not {wanted.digest}", ())
        return DeployedFile(
            path=wanted.path,
            real_path=state.real_path,
            digest=wanted.digest,
            previous_digest=found.previous_digest or wanted.expected_digest,
            mtime_s=found.mtime_s,
            was_already_there=found.outcome == "already",
        )

    def _lease(self, answer: Answer, nonce: str) -> Lease:
        """Ours on all files; of several the one that ends first."""
        leases = [file.state.lease for file in answer.files if file.state.lease and file.state.lease.nonce == nonce]
        if len(leases) < len(answer.files):
            raise LeaseLostError(
                f"{self._remote.host.name}: our lease was taken at once", next_step="`orch status` shows who has it"
            )
        return min(leases, key=lambda lease: lease.remaining_s)


def _states(answer: Answer) -> tuple[FileState, ...]:
    return tuple(file.state for file in answer.files)


def _cut(answer: Answer) -> tuple[tuple[FileState, bytes], ...] | None:
    """The content of each file; None when a digest does not fit, because the file changed in between."""
    contents, at = [], 0
    for state in _states(answer):
        size = state.size_bytes or 0
        content = answer.content[at : at + size]
        if digest_of(content) != state.digest:
            return None
        contents.append((state, content))
        at += size
    return tuple(contents) if at == len(answer.content) else None


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "somebody"


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


@functools.cache
def _source(operation: str) -> str:
    """The script as it is sent: comments stay here, and what only changes things is not sent in order to look."""
    text = resources.files(__name__).joinpath("orch_agent.sh").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.split("\n")]
    if operation in ("stat", "read"):
        first, last = (
            next(i for i, line in enumerate(lines) if line.startswith(p)) for p in (CHANGING_PART, CLOSING_PART)
        )
        lines = lines[:first] + lines[last:]
    source = "\n".join(line for line in lines if line and not line.startswith("#"))
    if operation in ("stat", "read", "revert", "unlock"):
        return source
    return f'ORCH_SOURCE={shlex.quote(source)}\neval "$ORCH_SOURCE"'  # the watcher is started from it
