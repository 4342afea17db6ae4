"""Station: ``SourceFile`` → ``Deployment`` and back: push and its inverse, and the lease that fences both.

Touches the target's files and the folder ``.orch-NAME`` beside each, through the agent only; nothing on this machine.
What happened is never guessed: after a lost line the host is asked, and asking twice is safe.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TypeVar

from orchestrator.agent import Agent, PushedContent, RevertAnswer
from orchestrator.connection.base import Remote
from orchestrator.errors import (
    ConnectionError_,
    LeaseLostError,
    LineLostError,
    OrchError,
    RemoteTimeoutError,
    RevertError,
    UnknownNameError,
)
from orchestrator.records import (
    Deployment,
    FileState,
    Lease,
    Restoration,
    SourceFile,
    Target,
    TargetFile,
    manifest_digest,
    short,
)

DEFAULT_POLL_S = 5.0
RECONNECT_PAUSES_S = (0.2, 1.0, 3.0, 8.0)
RETRY_FOR_S = 60.0
RENEWALS_PER_TTL = 3
TRIES_PER_TTL = 12
_T = TypeVar("_T")


def new_nonce() -> str:
    """A name for one holder of a lease, never used before."""
    return secrets.token_hex(16)


def status(remote: Remote, target: Target) -> tuple[FileState, ...]:
    """The target's files as they are, in the target's order; writes nothing.

    Raises:
        TargetError: one is a directory, no regular file, or not readable.
    """
    return _until_answered(lambda: Agent(remote).stat(_paths(target)))


def push(
    remote: Remote,
    target: Target,
    files: Sequence[SourceFile],
    *,
    expected: Mapping[str, str],
    nonce: str,
    holder: str,
    ttl_s: float,
    poll_s: float = DEFAULT_POLL_S,
    floor_mtime_s: int | None = None,
    on_restore: str | None = None,
) -> Deployment:
    """Replaces the files on the host, all or none, and starts the watcher that restores them when the lease ends.

    Args:
        files: by name; those of the target.
        expected: digest of each file, by name, that must be live before.
        nonce: of ``new_nonce``; the lease is taken, or renewed when it is ours.
        ttl_s: until the host restores itself, unless renewed. Rounded up to whole seconds.
        floor_mtime_s: the highest mtime ever published for these files; the new ones are later.
        on_restore: sh source for the watcher, run after it had to restore a file.

    Returns:
        What the host acknowledged with digests. The same push again answers ``was_already_there``, also after a line
        that was lost before the first answer came.

    Raises:
        StaleBaseError: with the digest found; nothing was written.
        ForeignEditError, LeaseHeldError, TransferError, HostWriteError, TargetError: nothing was written, or what was
            written was restored.
        RevertError: a file of several failed, and another could not be put back.
        ConnectionError_, RemoteTimeoutError: no answer, and the host cannot be reached to ask; its watcher is on guard.
    """
    contents = [_pushed_content(target, file, expected) for file in files]
    answer = _until_answered(
        lambda: Agent(remote).push(
            contents,
            nonce=nonce,
            holder=holder,
            ttl_s=math.ceil(ttl_s),
            poll_s=poll_s,
            floor_mtime_s=floor_mtime_s or 0,
            on_restore=on_restore,
        )
    )
    names = [file.name for file in files]
    return Deployment(
        target=target.name,
        host=target.host,
        digest=manifest_digest(zip(names, (file.digest for file in answer.files), strict=True)),
        previous_digest=manifest_digest(zip(names, (file.previous_digest for file in answer.files), strict=True)),
        nonce=nonce,
        lease_expires_at=answer.lease.expires_at,
        files=answer.files,
        pushed_at=_now(),
    )


def revert(
    remote: Remote,
    target: Target,
    *,
    nonce: str | None,
    force: bool = False,
    expected: Mapping[str, str] | None = None,
) -> Restoration:
    """Puts back what was live before the first push, from the host's own backup, and ends the lease.

    Args:
        nonce: of the push; None for somebody else's, where the lease is no longer live (or with ``force``).
        force: keep a foreign edit aside on the host and restore all the same; end a live lease of somebody else.
        expected: digest of each file, by name, that must be live afterwards; None trusts the host's backup.

    Returns:
        The proof: the state of every file. Calling it again changes nothing.

    Raises:
        ForeignEditError, LeaseHeldError: refused; nothing was written.
        RevertError: a file is not restored, or it could not be asked whether it is.
    """
    try:
        answer = _until_answered(
            lambda: Agent(remote).revert(_paths(target), nonce=nonce, force=force), also_unsent=True
        )
    except (ConnectionError_, RemoteTimeoutError) as exc:
        raise RevertError(
            f"{target.host}: not known to be restored: {', '.join(_paths(target))} ({exc.message})",
            next_step="run `orch revert` when the host can be reached; its watcher restores it when the lease ends",
        ) from exc
    _require_restored(target, answer, expected)
    return Restoration(
        target=target.name,
        host=target.host,
        digest=manifest_digest(
            (file.name, state.digest or "") for file, state in zip(target.files, answer.states, strict=True)
        ),
        was_clean=not answer.restored,
        kept_foreign=answer.kept,
        states=answer.states,
        reverted_at=_now(),
    )


def lock(
    remote: Remote,
    target: Target,
    *,
    nonce: str,
    holder: str,
    ttl_s: float,
    poll_s: float = DEFAULT_POLL_S,
    on_restore: str | None = None,
) -> Lease:
    """Holds the target as it is, so that nobody pushes meanwhile; renews the lease when it is ours.

    Args:
        on_restore: sh source that the host runs when the lease ends without ``unlock``.

    Raises:
        LeaseHeldError: somebody else holds it.
    """
    return _until_answered(
        lambda: Agent(remote).lock(
            _paths(target), nonce=nonce, holder=holder, ttl_s=math.ceil(ttl_s), poll_s=poll_s, on_expiry=on_restore
        )
    )


def renew(remote: Remote, target: Target, *, nonce: str, ttl_s: float) -> Lease:
    """Extends our lease to ``ttl_s`` from now.

    Raises:
        LeaseLostError: it is gone; the host has restored itself, or somebody else took over.
    """
    return _until_answered(lambda: Agent(remote).renew(_paths(target), nonce=nonce, ttl_s=math.ceil(ttl_s)))


def unlock(remote: Remote, target: Target, *, nonce: str) -> tuple[FileState, ...]:
    """Gives our lease back and restores nothing: a pushed file stays, unwatched. One that is not ours is left alone."""
    return _until_answered(lambda: Agent(remote).unlock(_paths(target), nonce=nonce))


class LeaseKeeper:
    """Renews a lease three times per ttl in a thread of its own, for as long as the context is open.

    A line that is down is no lost lease: it keeps trying (more often), because only the host's clock judges.

    Attributes:
        lost: set once the host says that the lease is gone; then renewing has ended.
        trouble: the last failure to reach the host, until a renewal succeeds.
    """

    def __init__(self, remote: Remote, target: Target, *, nonce: str, ttl_s: float) -> None:
        self.lost: LeaseLostError | None = None
        self.trouble: OrchError | None = None
        self._remote, self._target, self._nonce, self._ttl_s = remote, target, nonce, ttl_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {target.name}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def require(self) -> None:
        """Renews at once, for who cannot wait until the next time; on every node that the engine spans.

        Raises:
            LeaseLostError: the lease is gone. ConnectionError_, RemoteTimeoutError: the host does not answer.
        """
        if self.lost is not None:
            raise self.lost
        errors: list[OrchError] = []
        for machine in self._remote.members:
            try:
                Agent(machine).renew(_paths(self._target), nonce=self._nonce, ttl_s=math.ceil(self._ttl_s))
            except OrchError as exc:  # the other nodes keep theirs
                errors.append(exc)
        if errors:
            raise next((exc for exc in errors if isinstance(exc, LeaseLostError)), errors[0])

    def _keep(self) -> None:
        while True:
            try:
                self.require()
                self.trouble = None
            except LeaseLostError as exc:
                self.lost = exc
                return
            except OrchError as exc:
                self.trouble = exc
            if self._stop.wait(self._ttl_s / (TRIES_PER_TTL if self.trouble else RENEWALS_PER_TTL)):
                return


def _until_answered(ask: Callable[[], _T], *, also_unsent: bool = False) -> _T:
    """Asks again after a lost line, for every question here may be asked twice; reconnecting is the remote's part.

    Args:
        also_unsent: keep trying also where the host could not be reached in the first place.

    Raises:
        ConnectionError_, RemoteTimeoutError: still no answer; it is not known what the host did.
    """
    give_up_s = time.monotonic() + RETRY_FOR_S
    try:
        return ask()
    except (ConnectionError_, RemoteTimeoutError) as exc:
        if not also_unsent and not isinstance(exc, (LineLostError, RemoteTimeoutError)):
            raise
        lost: OrchError = exc
    for pause_s in RECONNECT_PAUSES_S:
        if time.monotonic() + pause_s > give_up_s:
            break
        time.sleep(pause_s)
        try:
            return ask()
        except (ConnectionError_, RemoteTimeoutError) as exc:  # also a login that was cut half way: it worked before
            lost = exc
    raise lost


def _pushed_content(target: Target, file: SourceFile, expected: Mapping[str, str]) -> PushedContent:
    return PushedContent(_file_of(target, file.name).path, expected[file.name], file.digest, file.content)


def _file_of(target: Target, name: str) -> TargetFile:
    for file in target.files:
        if file.name == name:
            return file
    known = ", ".join(file.name for file in target.files)
    raise UnknownNameError(f"target {target.name} has no file {name!r}; it has {known}")


def _require_restored(target: Target, answer: RevertAnswer, expected: Mapping[str, str] | None) -> None:
    for file, state in zip(target.files, answer.states, strict=True):
        wanted = state.digest if expected is None else expected.get(file.name, state.digest)
        if state.digest is not None and state.digest == wanted:
            continue
        raise RevertError(
            f"{target.host}: {file.path} holds {state.digest or 'no file'}, wanted {wanted or 'a file'}, "
            "and the host has no backup of it",
            next_step=f"see `orch drift`; copy {short(wanted)} there from variants/{target.name}/baseline",
        )


def _paths(target: Target) -> list[str]:
    return [file.path for file in target.files]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
