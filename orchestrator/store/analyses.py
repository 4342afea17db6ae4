"""Analyses of experiments and their verdicts, and the values that they are made of.

Keeps what ``stats`` said and computes no verdict. Values are those of starts, trials and loads that are all ``ok``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from orchestrator.designs import (
    Analysis,
    ArmAnalysis,
    BaselineValue,
    ConcurrencyAnalysis,
    ExperimentStatus,
    StartValues,
    VerdictWord,
)
from orchestrator.store.database import Database, insert_row, utc_now
from orchestrator.store.encoding import check_finite, storable_text, to_json
from orchestrator.store.reading import average


@dataclass(frozen=True, slots=True)
class RecordedAnalysis:
    """One analysis as it was recorded.

    Attributes:
        look: index into the plan's looks; None between them. document: as it was printed.
    """

    id: int
    at: str
    look: int | None
    n_blocks: int
    threshold: float | None
    is_final: bool
    stop_reason: str | None
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One variant of one experiment, and what came of it at the primary concurrency.

    Attributes:
        at: when the experiment was started; when it was planned, where it was not started.
        hypothesis: the experiment's. message: the variant's own.
        n_starts_ok, n_starts_bad: starts of the whole experiment that count, and that were set aside or failed.
        verdict, ratio, low95, high95, n_pairs: None without a final analysis, or where that had none.
        ships: None while undecided.
        why: it ships, was rejected, or is open; why the experiment ended, where no final analysis was made.
    """

    experiment_id: int
    target: str
    host: str
    workload: str
    status: ExperimentStatus
    at: str
    ended_at: str | None
    stop_reason: str | None
    hypothesis: str
    metric: str
    primary_concurrency: int
    is_aa: bool
    n_starts_ok: int
    n_starts_bad: int
    arm: str
    digest: str
    message: str
    verdict: VerdictWord | None
    ratio: float | None
    low95: float | None
    high95: float | None
    n_pairs: int | None
    ships: bool | None
    why: str | None


class Analyses(Database):
    """What experiments showed."""

    def record_analysis(self, experiment_id: int, analysis: Analysis, document: Mapping[str, Any]) -> int:
        """Keeps an analysis; of a final one each verdict as a row too, which replaces that of an earlier final one.

        Args:
            document: what is printed of it as JSON.

        Returns:
            The analysis' id.

        Raises:
            StoreError: there is no such experiment, or a number is not finite.
        """
        row = {
            "experiment_id": experiment_id,
            "at": utc_now(),
            "look": analysis.look,
            "n_blocks": analysis.n_blocks,
            "threshold": analysis.threshold,
            "is_final": int(analysis.is_final),
            "stop_reason": storable_text(analysis.stop_reason),
            "document": to_json(document),
        }
        verdicts = [_verdict_row(arm, at) for arm in analysis.arms for at in arm.rows] if analysis.is_final else []
        with self._transaction() as connection:
            analysis_id = insert_row(connection, "analyses", row)
            if verdicts:  # an experiment that was taken up again has a later final analysis
                connection.execute("DELETE FROM verdicts WHERE experiment_id = ?", (experiment_id,))
            for verdict in verdicts:
                insert_row(connection, "verdicts", {"experiment_id": experiment_id, **verdict})
        return analysis_id

    def analyses(self, experiment_id: int) -> tuple[RecordedAnalysis, ...]:
        """The analyses of an experiment, in the order in which they were made."""
        rows = self._rows(
            "SELECT id, at, look, n_blocks, threshold, is_final, stop_reason, document FROM analyses"
            " WHERE experiment_id = ? ORDER BY id",
            (experiment_id,),
        )
        return tuple(_recorded(*row) for row in rows)

    def start_values(self, experiment_id: int, metric: str) -> tuple[StartValues, ...]:
        """What each start that counts measured, in the order of the plan; a start without a value has no number.

        Loads repeated inside one start are averaged into it (their geometric mean), because they are no replicates.

        Args:
            metric: a name of ``metrics.py``.
        """
        rows = self._rows(_START_VALUES, (experiment_id, metric))
        return tuple(_start_values(list(group)) for _, group in groupby(rows, key=itemgetter(0)))

    def baseline_values(
        self, host: str, target: str, metric: str, workload: str | None = None
    ) -> tuple[BaselineValue, ...]:
        """Every good start of the target's baselines on a host, over time, one value a start and concurrency.

        A start counts by its bytes: those of any baseline that was pulled, under whatever name they ran, in an
        experiment or not. Loads repeated inside one start are averaged into it.

        Args:
            host: of a cluster, all its nodes. metric: a name of ``metrics.py``. workload: its name; all when None.
        """
        rows = self._rows(_BASELINE_VALUES, (host, target, metric, workload))
        groups = (list(group) for _, group in groupby(rows, key=itemgetter(0, 1)))
        return tuple(_baseline_value(group) for group in groups)

    def history(self, target: str | None = None) -> list[HistoryRow]:
        """Every experiment, newest first, one row a variant; of one target when it is named."""
        return [_history_row(*row) for row in self._rows(_HISTORY, (target,))]


_START_VALUES = """
    SELECT starts.trial_id, starts.block, starts.position, starts.arm, loads.concurrency_cap, metrics.value
    FROM experiment_starts AS starts
    JOIN trials ON trials.id = starts.trial_id
    LEFT JOIN loads ON loads.trial_id = trials.id AND loads.status = 'ok'
    LEFT JOIN metrics ON metrics.load_id = loads.id AND metrics.name = ?2
    WHERE starts.experiment_id = ?1 AND starts.status = 'ok' AND trials.status = 'ok'
    ORDER BY starts.i, starts.attempt, loads.concurrency_cap, loads.id
"""

_BASELINE_VALUES = """
    SELECT trials.id, loads.concurrency_cap, metrics.value, trials.started_at, trials.workload_name, trials.digest,
           trials.environment_id, trials.workload, loads.client, loads.client_version
    FROM trials
    JOIN loads ON loads.trial_id = trials.id
    JOIN metrics ON metrics.load_id = loads.id AND metrics.name = ?3
    WHERE (trials.host = ?1 OR trials.host GLOB ?1 || '/*') AND trials.target = ?2
      AND (?4 IS NULL OR trials.workload_name = ?4)
      AND trials.digest IN (SELECT digest FROM baselines WHERE target = ?2)
      AND trials.status = 'ok' AND loads.status = 'ok' AND metrics.value IS NOT NULL
    ORDER BY trials.id, loads.concurrency_cap, loads.id
"""

_HISTORY = """
    SELECT experiments.id, target, host, workload, status, coalesce(started_at, created_at), ended_at, stop_reason,
           hypothesis, metric, primary_concurrency, is_aa,
           (SELECT count(*) FROM experiment_starts WHERE experiment_id = experiments.id AND status = 'ok'),
           (SELECT count(*) FROM experiment_starts
            WHERE experiment_id = experiments.id AND status IN ('set-aside', 'failed')),
           json_extract(arm.value, '$.name'), json_extract(arm.value, '$.digest'), json_extract(arm.value, '$.message'),
           verdict, ratio, low95, high95, n_pairs, ships, coalesce(why, stop_reason)
    FROM experiments
    JOIN json_each(plan, '$.arms') AS arm ON arm.key > 0
    LEFT JOIN verdicts
        ON experiment_id = experiments.id AND verdicts.arm = json_extract(arm.value, '$.name') AND is_primary = 1
    WHERE ?1 IS NULL OR target = ?1
    ORDER BY experiments.id DESC, arm.key
"""


def _verdict_row(arm: ArmAnalysis, row: ConcurrencyAnalysis) -> dict[str, object]:
    found = row.estimate
    numbers = {
        "ratio": found.ratio if found else None,
        "low95": found.low95 if found else None,
        "high95": found.high95 if found else None,
        "p": found.p if found else None,
        "p_adjusted": row.p_adjusted,
    }
    check_finite(numbers, f"verdict of {arm.arm} at concurrency {row.concurrency}")
    return {
        "arm": arm.arm,
        "digest": arm.digest,
        "concurrency": row.concurrency,
        "is_primary": int(row.is_primary),
        "verdict": row.verdict,
        **numbers,
        "n_pairs": found.n_pairs if found else None,
        "ships": None if arm.ships is None else int(arm.ships),
        "why": storable_text(arm.why),
    }


def _recorded(*columns: Any) -> RecordedAnalysis:
    found = RecordedAnalysis(*columns)
    return replace(found, is_final=bool(found.is_final), document=json.loads(columns[-1]))


def _history_row(*columns: Any) -> HistoryRow:
    row = HistoryRow(*columns)
    return replace(row, is_aa=bool(row.is_aa), ships=None if row.ships is None else bool(row.ships))


def _start_values(rows: list[tuple[Any, ...]]) -> StartValues:
    trial_id, block, position, arm, _, _ = rows[0]
    measured = [(cap, value) for *_, cap, value in rows if value is not None]
    values = {cap: average([value for _, value in group]) for cap, group in groupby(measured, key=itemgetter(0))}
    return StartValues(trial_id, block, position, arm, values)


def _baseline_value(repeats: list[tuple[Any, ...]]) -> BaselineValue:
    trial_id, cap, _, started_at, workload_name, digest, environment_id, workload, client, client_version = repeats[0]
    return BaselineValue(
        trial_id=trial_id,
        started_at=started_at,
        workload=workload_name,
        concurrency=cap,
        value=average([row[2] for row in repeats]),
        digest=digest,
        environment_id=environment_id,
        conditions=to_json([workload, client, client_version]),
    )
