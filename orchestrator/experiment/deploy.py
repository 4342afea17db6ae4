"""Put a variant live, with its intent on record before and its outcome after: ``orch push``.

``deploy_baseline`` does the same with the baseline's bytes, for an experiment: under the lease that is held already, so
that nobody else gets in between two starts, and with the baseline's file as new as a variant's would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import push, serve
from orchestrator.errors import (
    ConnectionError_,
    InterruptedError_,
    OrchError,
    RemoteTimeoutError,
    RevertError,
    StaleBaseError,
    VariantError,
)
from orchestrator.experiment import everywhere
from orchestrator.experiment.check import Attempt, check_if_possible
from orchestrator.experiment.guards import made_whole, reconcile, refuse_foreign_lease, wanted_files, with_diff
from orchestrator.interrupts import shielded
from orchestrator.project import holder
from orchestrator.records import Deployment, SourceFile, Variant, short
from orchestrator.session import BASELINE, Live, Session, look, open_here

PUSH_TTL_S = 3600.0
"""How long a pushed variant stays without anybody renewing; then the host restores itself."""

MISSING = "missing"
"""Stands for the digest of files that are not all there."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """What was put live, and what the check before it said. ``is_forced``: against that verdict."""

    deployment: Deployment
    attempt: Attempt
    is_forced: bool


def deploy(
    session: Session,
    variant: Variant,
    *,
    ttl_s: float = PUSH_TTL_S,
    is_forced: bool = False,
    attempt: Attempt | None = None,
) -> Deployed:
    """Checks a variant and puts it live: the intent is stored before the push and the outcome after it.

    Args:
        is_forced: push it also when it cannot launch, or is the baseline's binary.
        attempt: the check of these very bytes, where it was made already.

    Raises:
        VariantError: the variant was made from another baseline than the recorded one, or the check refuses it.
        StaleBaseError: the live file is not the one on record; the evidence is the diff.
        LeaseHeldError: somebody else holds the target.
        InterruptedError_: Ctrl-C; the host was put back.
    """
    serve.require_restartable(session.engine, is_attended=session.ask is not None)
    baseline = session.baseline()
    if variant.base_digest != baseline.digest:
        raise VariantError(
            f"variant {variant.name} was made from baseline {short(variant.base_digest)}, "
            f"the recorded baseline is {short(baseline.digest)}",
            next_step=f"look at `orch diff {variant.name}`, then drop it and make it again with `orch variant new`",
        )
    if attempt is None:
        session.say("check", f"checking {variant.name} {short(variant.digest)} offline")
        attempt = check_if_possible(session.project, session.store, session.target, variant, session.report)
    refusal = attempt.refusal
    if refusal is not None and not is_forced:
        raise refusal
    session.store.record_variant(variant)
    content = _Content(variant.name, variant.digest, variant.files, attempt, refusal is not None)
    return Deployed(_put_live(session, content, ttl_s), attempt, refusal is not None)


def deploy_baseline(session: Session, *, ttl_s: float) -> Deployment:
    """Puts the baseline's bytes over what is live.

    Raises:
        StaleBaseError, LeaseHeldError, InterruptedError_: as ``deploy``.
    """
    baseline = session.baseline()
    return _put_live(session, _Content(BASELINE, baseline.digest, baseline.files), ttl_s)


@dataclass(frozen=True, slots=True)
class _Content:
    """What is to be live. ``is_forced``: against the verdict of the check."""

    name: str
    digest: str
    files: Sequence[SourceFile]
    attempt: Attempt | None = None
    is_forced: bool = False


def _put_live(session: Session, content: _Content, ttl_s: float) -> Deployment:
    """One push, on record before and after."""
    everywhere.refuse_shared_in_group(session)
    live = reconcile(session, made_whole(session, look(session, "push")))
    refuse_foreign_lease(session, live)
    wanted = wanted_files(session, live, session.baseline())
    nonce = live.nonce or push.new_nonce()
    recorded = content.attempt.recorded if content.attempt else None
    deployment_id = session.store.begin_deployment(
        target=session.target.name,
        host=session.target.host,
        variant=content.name,
        digest=content.digest,
        previous_digest=live.digest or MISSING,
        nonce=nonce,
        holder=holder(),
        check_id=recorded.check_id if recorded else None,
        is_forced=content.is_forced,
    )
    try:
        session.say("push", f"pushing {content.name} {short(content.digest)} to {session.target.host}")
        deployment = everywhere.push_files(
            session,
            content.files,
            expected=wanted.by_file,
            nonce=nonce,
            ttl_s=ttl_s,
            floor_mtime_s=_highest_mtime_s(session, live),
        )
        session.store.end_deployment(deployment_id, "pushed", deployment=deployment)
    except StaleBaseError as exc:
        session.store.end_deployment(deployment_id, "failed", error=str(exc))
        raise with_diff(session, "push", wanted) from exc
    except KeyboardInterrupt:
        with shielded("putting the host back"):
            restored = _put_back(session, nonce)
        raise InterruptedError_(f"interrupted: the push was undone, live is {short(restored)} as before orch") from None
    # only the host knows whether it arrived, or what is left of it: `orch status` asks
    except (ConnectionError_, RemoteTimeoutError, RevertError) as exc:
        session.store.end_deployment(deployment_id, "unknown", error=str(exc))
        raise
    except OrchError as exc:
        session.store.end_deployment(deployment_id, "failed", error=str(exc))
        raise
    return deployment


def _put_back(session: Session, nonce: str) -> str:
    """Restores what was live before the first push under this lease; returns its digest."""
    restored = everywhere.revert(session, nonce=nonce)
    everywhere.unlock(session, nonce=nonce)
    for opened in open_here(session):
        if opened.nonce == nonce:
            session.store.end_deployment(opened.id, "reverted", error="interrupted")
    return restored.digest


def _highest_mtime_s(session: Session, live: Live) -> int:
    known = (session.store.highest_mtime_s(session.target.host, state.real_path) for state in live.states)
    return max((mtime_s for mtime_s in known if mtime_s is not None), default=0)
