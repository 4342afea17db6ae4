"""What must hold before a step: whose lease it is, what must be live, and a record that agrees with the host."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import workspace
from orchestrator.errors import LeaseHeldError, StaleBaseError
from orchestrator.pull import pull
from orchestrator.records import Snapshot, short
from orchestrator.session import Live, Session, look


def reconcile(session: Session, live: Live) -> Live:
    """Finishes the record of what a killed controller or a lapsed lease left open; the host is the truth.

    Under our lease, an intent whose bytes are live arrived, and one whose bytes are not did not. A clean host without
    our lease was restored. Does nothing while another orch of this project is at work.
    """
    if not session.is_locked:
        return live
    store, n_ended = session.store, 0
    store.fail_running_trials(session.target.name, "its controller was gone before the end")
    for opened in store.open_deployments(session.target.name):
        is_leased = live.lease is not None and live.lease.nonce == opened.nonce
        if is_leased and opened.status != "pushed" and opened.digest == live.digest and not live.is_clean:
            store.end_deployment(opened.id, "pushed", error="its controller was gone before it said so")
        elif is_leased and opened.status != "pushed" and not live.is_clean:
            store.end_deployment(opened.id, "failed", error="it never arrived: its controller was gone before")
        elif not is_leased and live.is_clean:
            store.end_deployment(opened.id, "reverted", error="found restored: its lease had ended")
        else:
            continue
        n_ended += 1
    return look(session, "status") if n_ended else live


def refuse_foreign_lease(session: Session, live: Live) -> None:
    """Raises ``LeaseHeldError`` when somebody else holds the target."""
    if live.lease is None or live.is_ours or live.lease.remaining_s <= 0:
        return
    raise LeaseHeldError(
        f"{session.target.host}: {live.lease.holder} holds {session.target.name} for another "
        f"{live.lease.remaining_s:.0f} s (until {live.lease.expires_at})",
        next_step="wait for it, or ask them to run `orch revert`; `orch status` shows it",
    )


def expected_files(session: Session, live: Live, baseline: Snapshot) -> Mapping[str, str]:
    """Digest by file that must be live for a push: what we deployed before, else the baseline."""
    if live.is_ours and not live.is_clean:
        return {
            file.name: state.pushed_digest or state.base_digest or base.digest
            for file, state, base in zip(session.target.files, live.states, baseline.files, strict=True)
        }
    return {file.name: file.digest for file in baseline.files}


def with_diff(session: Session, exc: StaleBaseError, baseline: Snapshot) -> StaleBaseError:
    """The refusal with its evidence: what is live, against the baseline."""
    snapshot = pull(session.remote, session.target)
    session.store.record_snapshot(snapshot, "push", {file.name: file.digest for file in baseline.files})
    diff = workspace.diff(baseline.files, snapshot.files)
    return StaleBaseError(
        f"{session.target.host}: the live file changed since the pull (have {short(snapshot.digest)}, "
        f"want {short(baseline.digest)}); nothing was written",
        found=snapshot.digest,
        expected=baseline.digest,
        next_step="see `orch drift`, then `orch pull` if the change is meant",
        evidence=[line.rstrip("\n") for line in diff],
    )
