"""Files and leases of a target on every node that its engine spans: all of them, or none. On one host it is that one.

A push that fails on one node is undone on the others. What puts back or gives back goes to every node, whatever is
wrong with another, and is proved on each; the first error stands, once all were tried.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from orchestrator import push, serve
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import GroupRemote, node_of
from orchestrator.errors import (
    ConnectionError_,
    ExperimentError,
    LeaseHeldError,
    LeaseLostError,
    OrchError,
    RemoteTimeoutError,
    RevertError,
)
from orchestrator.interrupts import shielded
from orchestrator.project import holder
from orchestrator.records import Deployment, Restoration, SourceFile, Target
from orchestrator.session import Session

GROUP_LOOK_S = 10.0
"""How often Slurm is asked during a load whether it still gives every node of an engine that spans several."""

_T = TypeVar("_T")


def push_files(
    session: Session,
    files: Sequence[SourceFile],
    *,
    expected: Mapping[str, str],
    nonce: str,
    ttl_s: float,
    floor_mtime_s: int | None = None,
) -> Deployment:
    """``push.push`` on every node, the head first; one that fails has the others restored to what was before orch.

    Raises:
        As ``push.push``, for the node that failed; every other one was put back, as the evidence says.
        RevertError: and one of those could not be put back.
    """
    scripts = serve.restore_scripts(session.remote, session.engine)
    pushed: list[Deployment] = []
    for member, script in zip(session.remote.members, scripts, strict=True):
        try:
            deployment = push.push(
                member,
                session.target,
                files,
                expected=expected,
                nonce=nonce,
                holder=holder(),
                ttl_s=ttl_s,
                floor_mtime_s=floor_mtime_s,
                on_restore=script,
            )
        except OrchError as exc:
            if len(scripts) > 1:
                _undo(session, member, nonce, exc)
            raise
        pushed.append(deployment)
    return _one_deployment(pushed)


def revert(session: Session, *, nonce: str | None, force: bool = False) -> Restoration:
    """``push.revert`` on every node.

    Raises:
        As ``push.revert``. RevertError: the nodes were restored to different bytes.
    """
    restored = _on_each(
        session, lambda member: push.revert(member, _target_of(session, member), nonce=nonce, force=force)
    )
    if len(restored) == 1:
        return restored[0]
    digests = {one.digest for one in restored}
    if len(digests) > 1:
        raise RevertError(
            f"{session.target.host}: each node was restored to its own backup, and they are not the same bytes",
            next_step="see `orch drift`; make the files alike by hand, then `orch pull`",
            evidence=[f"{one.host}: {one.digest}" for one in restored],
        )
    return replace(
        restored[0],
        host=session.target.host,
        was_clean=all(one.was_clean for one in restored),
        kept_foreign=tuple(f"{one.host}:{path}" for one in restored for path in one.kept_foreign),
        states=session.together([one.states for one in restored]).states,
    )


def lock(session: Session, *, nonce: str, ttl_s: float) -> None:
    """``push.lock`` on every node; whoever calls gives the lease back, also after an error."""
    scripts = serve.restore_scripts(session.remote, session.engine)
    for member, script in zip(session.remote.members, scripts, strict=True):
        push.lock(member, session.target, nonce=nonce, ttl_s=ttl_s, holder=holder(), on_restore=script)


def unlock(session: Session, *, nonce: str) -> None:
    """``push.unlock`` on every node; a lease that is gone is given back."""

    def give_back(member: Remote) -> None:
        with contextlib.suppress(LeaseLostError):
            push.unlock(member, session.target, nonce=nonce)

    _on_each(session, give_back)


def refuse_shared_files(session: Session, places: Sequence[Remote]) -> None:
    """Refuses machines that have a file of the target in common.

    A mark made beside each file on the first must be seen on no other: on a shared disk a variant that is pushed on
    one would be live on all, and each would restore what another holds.

    Args:
        places: nodes, and groups of them.

    Raises:
        ExperimentError: two share a file.
    """
    first, *others = [member for place in places for member in place.members]
    marks = [f"{file.path.rpartition('/')[0]}/.orch-shared-{secrets.token_hex(6)}" for file in session.target.files]
    first.check('for mark; do : >"$mark" || exit 1; done', marks, doing=f"write beside {session.target.name}")
    try:
        for other in others:
            seen = other.run('for mark; do [ ! -e "$mark" ] || exit 1; done', marks)
            if seen.exit_code:
                raise ExperimentError(
                    f"{session.target.name} is one and the same file on {node_of(first)} and {node_of(other)}: a "
                    "variant that is pushed on one would be live on both",
                    next_step=_way_out(session),
                )
    finally:
        first.run('rm -f -- "$@"', marks)


def refuse_shared_in_group(session: Session) -> None:
    """The same for the nodes that one engine spans; asked once for each group that a command works on."""
    remote = session.remote
    if isinstance(remote, GroupRemote) and not remote.has_files_apart:
        refuse_shared_files(session, [remote])
        remote.has_files_apart = True


def _way_out(session: Session) -> str:
    apart = "give the engine an installation on each node's own disk"
    return apart if len(session.remote.members) > 1 else f"set nodes: 1 under slurm, or {apart}"


def watch_nodes(session: Session) -> Callable[[], None]:
    """Of an engine that spans several nodes: asks now and then whether each is still ours, for its head may only wait.

    What it returns raises ``NodeLostError``.
    """
    remote, asked_s = session.remote, time.monotonic()

    def look_at_all() -> None:
        nonlocal asked_s
        if isinstance(remote, GroupRemote) and time.monotonic() - asked_s >= GROUP_LOOK_S:
            asked_s = time.monotonic()
            remote.refuse_lost()

    return look_at_all


# ---- within


def _on_each(session: Session, act: Callable[[Remote], _T]) -> list[_T]:
    """Acts on every node; the first error stands, a host that is not restored before any other."""
    done: list[_T] = []
    errors: list[OrchError] = []
    for member in session.remote.members:
        try:
            done.append(act(member))
        except OrchError as exc:
            errors.append(exc)
    if errors:
        raise next((exc for exc in errors if isinstance(exc, RevertError)), errors[0])
    return done


def _undo(session: Session, failed: Remote, nonce: str, error: OrchError) -> None:
    """Puts every node back after a push that failed on one, and says so in that error's evidence.

    Raises:
        RevertError: another node than the one that failed is not proved to be put back.
    """
    for member in session.remote.members:
        name = member.host.name
        try:
            with shielded(f"putting {name} back"):
                push.revert(member, _target_of(session, member), nonce=nonce)
                with contextlib.suppress(LeaseLostError):
                    push.unlock(member, session.target, nonce=nonce)
        except LeaseHeldError:
            continue  # somebody else's: nothing of this push was written there
        except OrchError as exc:
            if member is failed and isinstance(error, (ConnectionError_, RemoteTimeoutError)):
                error.evidence = (*error.evidence, f"{name}: not known to be as before; its watcher restores it")
                continue
            raise RevertError(
                f"{name} is not put back after a push that failed elsewhere ({error.message}): {exc.message}",
                next_step="run `orch revert`",
                evidence=exc.evidence,
            ) from error
        error.evidence = (*error.evidence, f"{name}: as before orch, proved by digest")


def _target_of(session: Session, member: Remote) -> Target:
    """The target as it is on one node, for what is said of it."""
    return replace(session.target, host=member.host.name) if len(session.remote.members) > 1 else session.target


def _one_deployment(pushed: Sequence[Deployment]) -> Deployment:
    """Of every node the same files: the newest times, the lease that ends first."""
    head = pushed[0]
    if len(pushed) == 1:
        return head
    return replace(
        head,
        lease_expires_at=min(one.lease_expires_at for one in pushed),
        files=tuple(
            replace(
                of_file[0],
                mtime_s=max(file.mtime_s for file in of_file),
                was_already_there=all(file.was_already_there for file in of_file),
            )
            for of_file in zip(*(one.files for one in pushed), strict=True)
        ),
    )
