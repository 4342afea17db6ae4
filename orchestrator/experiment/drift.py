"""What is live against what should be: ``orch drift``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import workspace
from orchestrator.experiment.guards import expected_files, reconcile
from orchestrator.pull import pull
from orchestrator.records import Snapshot, manifest_digest
from orchestrator.session import BASELINE, Live, Session, look


@dataclass(frozen=True, slots=True)
class FileDrift:
    """What is live against what should be. ``diff`` is empty when they agree."""

    live: Live
    expected_digest: str
    expected_name: str
    snapshot: Snapshot
    diff: tuple[str, ...]

    @property
    def is_unexpected(self) -> bool:
        """Whether the live bytes are not those on record."""
        return self.snapshot.digest != self.expected_digest


def find_drift(session: Session) -> FileDrift:
    """Fetches what is live, stores it, and compares it with what should be: our deployed variant, or the baseline."""
    baseline = session.baseline()
    live = reconcile(session, look(session, "drift"))
    snapshot = pull(session.remote, session.target)
    wanted: Sequence[tuple[str, str]] = tuple(expected_files(session, live, baseline).items())
    files = baseline.files
    expected_digest, name = baseline.digest, BASELINE
    if live.deployment is not None and not live.is_clean:
        expected_digest, name = manifest_digest(wanted), live.deployment.variant
        files = session.store.files(expected_digest)
    session.store.record_snapshot(snapshot, "drift", dict(wanted))
    diff = workspace.diff(files, snapshot.files) if snapshot.digest != expected_digest else []
    return FileDrift(live, expected_digest, name, snapshot, tuple(diff))
