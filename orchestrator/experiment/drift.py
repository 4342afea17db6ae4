"""What is live against what should be, and whether the baseline has kept its speed: ``orch drift``."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import workspace
from orchestrator.experiment.guards import pull_odd, reconcile, wanted_files
from orchestrator.metrics import PRIMARY_METRIC
from orchestrator.records import Snapshot, Target
from orchestrator.session import Live, Session, look
from orchestrator.speed_drift import SpeedSeries, find_speed_changes
from orchestrator.store import Store


@dataclass(frozen=True, slots=True)
class FileDrift:
    """What is live against what should be. ``diff`` is empty when they agree.

    Attributes:
        where: the host; of an engine that spans several nodes the first one that has drifted.
    """

    live: Live
    expected_digest: str
    expected_name: str
    snapshot: Snapshot
    diff: tuple[str, ...]
    where: str

    @property
    def is_unexpected(self) -> bool:
        """Whether the live bytes are not those on record."""
        return self.snapshot.digest != self.expected_digest


def find_drift(session: Session) -> FileDrift:
    """Fetches what is live, stores it, and compares it with what should be: our deployed variant, or the baseline."""
    baseline = session.baseline()
    live = reconcile(session, look(session, "drift"))
    wanted = wanted_files(session, live, baseline)
    where, snapshot = pull_odd(session, wanted.digest)
    session.store.record_snapshot(snapshot, "drift", wanted.by_file)
    diff = workspace.diff(wanted.files, snapshot.files)
    return FileDrift(live, wanted.digest, wanted.name, snapshot, tuple(diff), where)


def find_speed_drift(store: Store, target: Target, metric: str = PRIMARY_METRIC) -> tuple[SpeedSeries, ...]:
    """The baseline's own good starts over time, of every workload on record; asks no host."""
    return find_speed_changes(store.baseline_values(target.host, target.name, metric))
