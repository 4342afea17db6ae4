"""Fetch the target and record it as the baseline: ``orch pull``."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import workspace
from orchestrator.errors import StaleBaseError
from orchestrator.experiment.guards import pull_odd
from orchestrator.pull import pull
from orchestrator.records import Snapshot, short
from orchestrator.session import BASELINE, Session, known_names


@dataclass(frozen=True, slots=True)
class Prepared:
    """A pulled baseline. ``previous`` is the one recorded before, when there was one; ``diff`` what moved."""

    snapshot: Snapshot
    previous: Snapshot | None
    diff: tuple[str, ...]

    @property
    def has_moved(self) -> bool:
        """Whether the host's files differ from the baseline recorded before."""
        return self.previous is not None and self.previous.digest != self.snapshot.digest


def prepare(session: Session, *, force: bool = False) -> Prepared:
    """Fetches the target's files and records them as the baseline, in the store and in the workspace.

    Args:
        force: take bytes that are those of a known variant as a baseline all the same.

    Raises:
        StaleBaseError: a variant is live, or the file is byte-identical to one: it would contaminate the baseline. Or
            the nodes that one engine spans have different files.
    """
    n = len(session.target.files)
    session.say("pull", f"pulling {n} file{'s' * (n != 1)} from {session.target.host}")
    snapshot = pull(session.remote, session.target)
    _refuse_odd_node(session, snapshot)
    previous = session.store.baseline(session.target.name)
    _refuse_variant_as_baseline(session, snapshot, force=force)
    session.store.record_snapshot(snapshot, "pull")
    session.store.set_baseline(snapshot)
    workspace.write_baseline(session.project.variants_root, snapshot)
    diff = workspace.diff(previous.files, snapshot.files) if previous is not None else []
    return Prepared(snapshot, previous, tuple(diff))


def _refuse_odd_node(session: Session, snapshot: Snapshot) -> None:
    """Refuses other bytes on another node of an engine that spans several."""
    if len(session.remote.members) == 1:
        return
    where, odd = pull_odd(session, snapshot.digest)
    if odd.digest != snapshot.digest:
        raise StaleBaseError(
            f"{where}: {session.target.name} is {short(odd.digest)} there and {short(snapshot.digest)} on the head, "
            "and one engine spans both",
            found=odd.digest,
            expected=snapshot.digest,
            next_step="`orch revert` if orch had pushed something; else make them alike on the nodes, then pull again",
            evidence=workspace.diff(snapshot.files, odd.files),
        )


def _refuse_variant_as_baseline(session: Session, snapshot: Snapshot, *, force: bool) -> None:
    name = known_names(session.project, session.store, session.target).get(snapshot.digest)
    is_deployed = any(state.phase != "clean" for state in snapshot.states)
    if not is_deployed and (force or name in (None, BASELINE)):
        return
    what = f"variant {name}" if name else "a variant"
    why = f"{what} is deployed" if is_deployed else f"the live file is byte for byte {what}: a leftover edit?"
    raise StaleBaseError(
        f"{session.target.host}: {why} ({short(snapshot.digest)}), so it cannot be taken as the baseline",
        found=snapshot.digest,
        expected="a file that is no variant",
        next_step="run `orch revert`" if is_deployed else "restore the file, or `orch pull --force` if it is meant",
    )
