"""What was watched: the GPUs during each load, the engine just before and after it, and the events of experiments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, Literal

from orchestrator.designs import EngineCounters, TelemetrySample
from orchestrator.store.database import Database, insert_row, utc_now
from orchestrator.store.encoding import check_finite, storable_text, to_json

_NUMBERS = (
    *("at_s", "power_w", "sm_clock_mhz", "memory_clock_mhz"),
    *("temperature_c", "memory_used_bytes", "utilization_pct"),
)
_LISTS = ("throttle_reasons", "foreign_pids", "unknown")
_COLUMNS = ("load_id", "node", "gpu", *_NUMBERS, *_LISTS)
_COUNTERS = tuple(field.name for field in fields(EngineCounters))

Moment = Literal["before", "after"]
"""Of a load."""

MOMENTS: tuple[Moment, ...] = ("before", "after")


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of what ``orch run --json`` tells.

    Attributes:
        id: rises with time, over all experiments; what ``events(after=…)`` takes.
        kind: for programs. text: for a person. detail: whatever the kind has to say.
    """

    id: int
    experiment_id: int
    at: str
    kind: str
    text: str
    detail: Mapping[str, Any]


class Watching(Database):
    """Telemetry, counters and events."""

    def record_telemetry(self, load_id: int, samples: Sequence[TelemetrySample]) -> None:
        """Keeps the samples of a load. One that is there already (same node, GPU and moment) stays as it is, so that
        the same file may be collected twice.

        Raises:
            StoreError: there is no such load, or a number is not finite.
        """
        rows = [_sample_row(load_id, sample) for sample in samples]
        marks = ", ".join(f":{column}" for column in _COLUMNS)
        with self._transaction() as connection:
            connection.executemany(
                f"INSERT INTO telemetry ({', '.join(_COLUMNS)}) VALUES ({marks})"
                " ON CONFLICT (load_id, node, gpu, at_s) DO NOTHING",
                rows,
            )

    def telemetry(self, load_id: int) -> tuple[TelemetrySample, ...]:
        """The samples of a load by time, then node and GPU; empty where nobody looked."""
        rows = self._rows(
            "SELECT at_s, gpu, power_w, sm_clock_mhz, memory_clock_mhz, temperature_c, memory_used_bytes,"
            " utilization_pct, throttle_reasons, foreign_pids, coalesce(unknown, '[]'), node FROM telemetry"
            " WHERE load_id = ? ORDER BY at_s, node, gpu",
            (load_id,),
        )
        return tuple(_sample(*row) for row in rows)

    def record_engine_counters(self, trial_id: int, concurrency: int, moment: Moment, counters: EngineCounters) -> None:
        """Keeps what an engine told of itself just before or just after a load; the newest look counts.

        Raises:
            StoreError: there is no such trial.
        """
        with self._transaction() as connection:
            connection.execute(
                f"INSERT OR REPLACE INTO engine_counters (trial_id, concurrency_cap, moment, {', '.join(_COUNTERS)})"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (trial_id, concurrency, moment, *astuple(counters)),
            )

    def engine_counters(self, trial_id: int) -> dict[int, dict[Moment, EngineCounters]]:
        """By concurrency and moment; without those at which nobody looked."""
        found: dict[int, dict[Moment, EngineCounters]] = {}
        for concurrency, moment, *counters in self._rows(
            f"SELECT concurrency_cap, moment, {', '.join(_COUNTERS)} FROM engine_counters WHERE trial_id = ?",
            (trial_id,),
        ):
            found.setdefault(concurrency, {})[moment] = EngineCounters(*counters)
        return found

    def record_event(
        self, experiment_id: int, kind: str, text: str, detail: Mapping[str, Any] | None = None
    ) -> RecordedEvent:
        """Keeps an event, and gives it back as ``events`` will.

        Raises:
            StoreError: there is no such experiment, or a number is not finite.
        """
        row = {
            "experiment_id": experiment_id,
            "at": utc_now(),
            "kind": kind,
            "text": storable_text(text),
            "detail": to_json(dict(detail or {})),
        }
        with self._transaction() as connection:
            event_id = insert_row(connection, "events", row)
        return _event(event_id, *row.values())

    def events(self, experiment_id: int, after: int = 0) -> tuple[RecordedEvent, ...]:
        """The events of an experiment, in their order.

        Args:
            after: id of the last event that the caller has; 0 for all.
        """
        rows = self._rows(
            "SELECT id, experiment_id, at, kind, text, detail FROM events WHERE experiment_id = ? AND id > ?"
            " ORDER BY id",
            (experiment_id, after),
        )
        return tuple(_event(*row) for row in rows)


def _event(*columns: Any) -> RecordedEvent:
    return replace(RecordedEvent(*columns), detail=json.loads(columns[-1]))


def _sample(*columns: Any) -> TelemetrySample:
    sample = TelemetrySample(*columns)
    reasons, pids, unknown = (tuple(json.loads(getattr(sample, name))) for name in _LISTS)
    return replace(sample, throttle_reasons=reasons, foreign_pids=pids, unknown=unknown)


def _sample_row(load_id: int, sample: TelemetrySample) -> dict[str, object]:
    row = asdict(sample)
    check_finite({name: row[name] for name in _NUMBERS}, f"telemetry of load {load_id}")
    lists = {name: to_json(row[name]) for name in _LISTS}
    return {"load_id": load_id, **row, **lists}
