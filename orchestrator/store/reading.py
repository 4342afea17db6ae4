"""What comparisons and histories read: measurements of arms with the facts that must agree, and lists of trials.

Chooses no verdict and drops nothing silently: what a measurement leaves out (trials and loads that are not ``ok``)
is listed by ``trials`` with the reasons.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from orchestrator.metrics import PRIMARY_METRIC
from orchestrator.records import NOT_RECORDED, Measurement
from orchestrator.store.database import Database
from orchestrator.store.encoding import texts_from_json
from orchestrator.store.trials import TrialStatus

COMPARED_FACTS = (
    "gpu_uuids",
    "driver_version",
    "engine_version",
    "engine_command",
    "engine_env",
    "python_version",
    "torch_version",
    "triton_version",
    "model",
    "clock_policy",
)
"""The facts of an environment that two arms must share."""
COMPARED_WHERE_TOLD = ("engine_arguments",)
"""Likewise, but only an engine of a known kind tells them: where neither did, nothing is missing."""

_NOT_COMPARED_OF_WORKLOAD = ("name", "client", "client_command", "request_timeout_s", "load_timeout_s")
"""A name is only a name, the client is compared as it reported itself, and a limit that was not hit changes nothing."""


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """One trial, without its samples.

    Attributes:
        n_loads, n_loads_ok: how many loads were recorded, and how many of them can be trusted.
    """

    trial_id: int
    host: str
    target: str
    variant: str
    digest: str
    status: TrialStatus
    reasons: tuple[str, ...]
    workload: str
    deployment_id: int | None
    loaded_digest: str | None
    digest_before: str | None
    digest_after: str | None
    n_loads: int
    n_loads_ok: int
    started_at: str
    ended_at: str | None


class Reading(Database):
    """Reads across trials."""

    def trials(self, target: str | None = None) -> list[TrialSummary]:
        """Every trial, newest first; of one target when it is named."""
        rows = self._rows(
            "SELECT id, host, target, variant, digest, status, reasons, workload_name, deployment_id, loaded_digest,"
            " digest_before, digest_after, (SELECT count(*) FROM loads WHERE trial_id = trials.id),"
            " (SELECT count(*) FROM loads WHERE trial_id = trials.id AND status = 'ok'), started_at, ended_at"
            " FROM trials WHERE ?1 IS NULL OR target = ?1 ORDER BY id DESC",
            (target,),
        )
        return [replace(TrialSummary(*row), reasons=texts_from_json(row[6])) for row in rows]

    def latest_facts(self, host: str, target: str | None = None) -> dict[str, str | int | float | None]:
        """The newest facts recorded on a host; empty when no engine was ever ready there.

        Args:
            host: of a cluster, any of its nodes.
            target: its own newest start there counts before any other target's, for two targets of one host may have
                two engines, each with its own Triton.
        """
        row = self._row(
            "SELECT facts FROM trials JOIN environments ON environments.id = environment_id"
            " WHERE host = ?1 OR host GLOB ?1 || '/*' ORDER BY target IS ?2 DESC, trials.id DESC LIMIT 1",
            (host, target),
        )
        return {} if row is None else dict(json.loads(row[0]))

    def durations(self, target: str, workload: str) -> tuple[float | None, dict[int, float], int]:
        """What earlier good starts of a target took with a workload: medians, in seconds.

        Returns:
            Of a start without its loads (push to ready, and the end), None where there was none; of a load by
            concurrency; and the number of starts.
        """
        rows = self._rows(
            "SELECT trials.id, (julianday(trials.ended_at) - julianday(trials.started_at)) * 86400, concurrency_cap,"
            " (julianday(loads.ended_at) - julianday(loads.started_at)) * 86400 FROM trials JOIN loads ON trial_id ="
            " trials.id WHERE target = ? AND workload_name = ? AND trials.status = 'ok'"
            # where several clients loaded one start, its time is not that of one workload
            " AND NOT EXISTS (SELECT 1 FROM trials AS other WHERE other.workload_name != trials.workload_name AND"
            " other.host = trials.host AND other.pid = trials.pid AND other.engine_started_at ="
            " trials.engine_started_at) ORDER BY trials.id",
            (target, workload),
        )
        whole_s: dict[int, float] = {}
        loaded_s: dict[int, float] = {}
        by_cap: dict[int, list[float]] = {}
        for trial_id, trial_s, cap, load_s in rows:
            whole_s[trial_id] = trial_s
            loaded_s[trial_id] = loaded_s.get(trial_id, 0.0) + load_s
            by_cap.setdefault(cap, []).append(load_s)
        rests_s = [max(0.0, whole_s[trial_id] - loaded_s[trial_id]) for trial_id in whole_s]
        loads_s = {cap: statistics.median(values) for cap, values in by_cap.items()}
        return (statistics.median(rests_s) if rests_s else None), loads_s, len(rests_s)

    def measurements(
        self, target: str, workload: str, metric: str = PRIMARY_METRIC, *, digest: str
    ) -> list[Measurement]:
        """One value for each engine start and concurrency of a digest, in the order of the starts.

        Only trials and loads that are ``ok`` count. Loads repeated inside one start are averaged into it (their
        geometric mean), because they are no replicates. The arm is the name that was recorded with the trial.

        Args:
            workload: its name. metric: a name of ``metrics.py``. digest: of the deployed set of files.
        """
        rows = self._rows(_MEASURED, (metric, target, workload, digest))
        return [_measurement(digest, list(repeats)) for _, repeats in groupby(rows, key=lambda row: row[:2])]


_MEASURED = """
    SELECT trials.id, loads.concurrency_cap, metrics.value, trials.started_at, trials.host, trials.variant,
           trials.workload, loads.client, loads.client_version, environments.facts
    FROM trials
    JOIN loads ON loads.trial_id = trials.id
    JOIN metrics ON metrics.load_id = loads.id AND metrics.name = ?1
    LEFT JOIN environments ON environments.id = trials.environment_id
    WHERE trials.target = ?2 AND trials.workload_name = ?3 AND trials.digest = ?4
      AND trials.status = 'ok' AND loads.status = 'ok' AND metrics.value IS NOT NULL
    ORDER BY trials.id, loads.concurrency_cap, loads.id
"""


def _measurement(digest: str, repeats: list[tuple[Any, ...]]) -> Measurement:
    trial_id, cap, _, started_at, host, arm, workload, client, client_version, facts = repeats[0]
    return Measurement(
        trial_id=trial_id,
        arm=arm,
        digest=digest,
        concurrency_cap=cap,
        value=average([row[2] for row in repeats]),
        started_at=started_at,
        comparison_key=_comparison_key(host, json.loads(workload), client, client_version, json.loads(facts or "{}")),
    )


def average(values: list[float]) -> float:
    """Geometric mean, as comparisons are of ratios; the arithmetic one where a value is not positive (a count of 0)."""
    if len(values) == 1:
        return values[0]
    if min(values) <= 0:
        return math.fsum(values) / len(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _comparison_key(
    host: str, workload: Mapping[str, object], client: str, client_version: str, facts: Mapping[str, object]
) -> dict[str, str]:
    return {
        "host": host,
        **dict(_as_texts((name, facts.get(name)) for name in COMPARED_FACTS)),
        **{name: str(facts[name]) for name in COMPARED_WHERE_TOLD if facts.get(name) is not None},
        "client": client,
        "client_version": client_version,
        **dict(
            _as_texts(
                (f"workload.{name}", value) for name, value in workload.items() if name not in _NOT_COMPARED_OF_WORKLOAD
            )
        ),
    }


def _as_texts(pairs: Iterable[tuple[str, object]]) -> Iterable[tuple[str, str]]:
    return ((name, NOT_RECORDED if value is None else str(value)) for name, value in pairs)
