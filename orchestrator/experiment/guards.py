"""What must hold before a step: whose lease it is, what must be live, and a record that agrees with the host."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import workspace
from orchestrator.errors import LeaseHeldError, StaleBaseError
from orchestrator.pull import pull
from orchestrator.records import Snapshot, SourceFile, manifest_digest, short
from orchestrator.session import BASELINE, Live, Session, look, open_here
from orchestrator.store import LookSource


def reconcile(session: Session, live: Live) -> Live:
    """Finishes the record of what a killed controller or a lapsed lease left open; the host is the truth.

    Under our lease, an intent whose bytes are live arrived, and one whose bytes are not did not. A clean host without
    our lease was restored. Does nothing while another orch of this project is at work.
    """
    if not session.is_locked:
        return live
    store, n_ended = session.store, 0
    store.fail_running_trials(
        session.target.name, "its controller was gone before the end", session.target.host if session.is_node else None
    )
    for opened in open_here(session):
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be live: the variant that this project deployed, or else the baseline."""

    name: str
    files: tuple[SourceFile, ...]

    @property
    def digest(self) -> str:
        """Digest of the set (of one file: its own)."""
        return manifest_digest(self.by_file.items())

    @property
    def by_file(self) -> dict[str, str]:
        """Digest by file name."""
        return {file.name: file.digest for file in self.files}


def wanted_files(session: Session, live: Live, baseline: Snapshot) -> Wanted:
    """What the record and the host's journal say must be live, whatever is."""
    if live.deployment is None or live.is_clean:
        return Wanted(BASELINE, baseline.files)
    if live.digest == live.deployment.digest:  # also where a later push was cut off after its journal entry
        return Wanted(live.deployment.variant, session.store.files(live.deployment.digest))
    digests = [
        (file.name, state.pushed_digest or state.base_digest or base.digest)
        for file, state, base in zip(session.target.files, live.states, baseline.files, strict=True)
    ]
    content = session.store.artifact_content
    files = tuple(SourceFile(name, digest, content(digest)) for name, digest in digests)
    return Wanted(live.deployment.variant, files)


def with_diff(session: Session, source: LookSource, wanted: Wanted) -> StaleBaseError:
    """The refusal of a file that is not what it must be, with its evidence: the diff of what is live."""
    snapshot = pull(session.remote, session.target)
    session.store.record_snapshot(snapshot, source, wanted.by_file)
    return StaleBaseError(
        f"{session.target.host}: somebody else changed the live file (have {short(snapshot.digest)}, want "
        f"{wanted.name} {short(wanted.digest)}); nothing was written",
        found=snapshot.digest,
        expected=wanted.digest,
        next_step=f"see `orch drift`, then {_way_out(wanted)}",
        evidence=[line.rstrip("\n") for line in workspace.diff(wanted.files, snapshot.files)],
    )


def _way_out(wanted: Wanted) -> str:
    if wanted.name == BASELINE:
        return "`orch pull` if the change is meant"
    return "`orch revert --force` (keeps that edit beside the file)"
