"""What must hold before a step: whose lease it is, what must be live, and a record that agrees with the host."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import workspace
from orchestrator.errors import LeaseHeldError, StaleBaseError
from orchestrator.experiment import everywhere
from orchestrator.interrupts import shielded
from orchestrator.pull import pull
from orchestrator.records import Snapshot, SourceFile, manifest_digest, short
from orchestrator.session import BASELINE, Live, Session, look, open_here
from orchestrator.store import LookSource


def reconcile(session: Session, live: Live) -> Live:
    """Finishes the record of what a killed controller or a lapsed lease left open; the host is the truth.

    Under our lease, an intent whose bytes are live arrived, and one whose bytes are not did not. A clean host without
    our lease was restored. Does nothing while another orch of this project is at work, nor where the nodes of a group
    differ: ``made_whole`` comes first.
    """
    if not session.is_locked or live.is_torn:
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


def made_whole(session: Session, live: Live) -> Live:
    """Puts every node of a group back where a push or a restore had reached only some of them; looks again then.

    So it is after an orch that was killed between two nodes, and where the lease of one node has ended by itself.

    Raises:
        ForeignEditError, LeaseHeldError, RevertError: a node cannot be put back.
    """
    if not live.is_torn or (live.lease is not None and not live.is_ours):
        return live  # alike, or held by somebody else, who is refused by name
    session.say("revert", f"putting {session.target.host} back: its nodes differ")
    with shielded("putting every node back"):
        everywhere.revert(session, nonce=live.nonce)
        if live.nonce is not None:
            everywhere.unlock(session, nonce=live.nonce)
        for opened in open_here(session):
            session.store.end_deployment(opened.id, "reverted", error="only some nodes of the group had it")
    return look(session, "push")


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
    where, snapshot = pull_odd(session, wanted.digest)
    session.store.record_snapshot(snapshot, source, wanted.by_file)
    return StaleBaseError(
        f"{where}: somebody else changed the live file (have {short(snapshot.digest)}, want "
        f"{wanted.name} {short(wanted.digest)}); nothing was written",
        found=snapshot.digest,
        expected=wanted.digest,
        next_step=f"see `orch drift`, then {_way_out(wanted)}",
        evidence=[line.rstrip("\n") for line in workspace.diff(wanted.files, snapshot.files)],
    )


def pull_odd(session: Session, digest: str) -> tuple[str, Snapshot]:
    """What is live, of a group on the first node where it is not what it must be; and the name of that node."""
    for member in session.remote.members:
        snapshot = pull(member, session.target)
        if snapshot.digest != digest and len(session.remote.members) > 1:
            return member.host.name, snapshot
    return session.target.host, snapshot


def _way_out(wanted: Wanted) -> str:
    if wanted.name == BASELINE:
        return "`orch pull` if the change is meant"
    return "`orch revert --force` (keeps that edit beside the file)"
