"""An experiment out of the record, whole: store → ``ExperimentReport``. Reads only; touches no host, judges nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from orchestrator.designs import Analysis, ExperimentRecord, StartRecord, TelemetrySample
from orchestrator.errors import ExperimentError
from orchestrator.records import AutotuneWinner, Workload
from orchestrator.report.document import analysis_from_document
from orchestrator.report.experiment_data import ExperimentReport, Fact, LoadReport, StartReport
from orchestrator.report.summaries import changed_facts, winners_seen
from orchestrator.store import Store
from orchestrator.version import VERSION


def gather(store: Store, experiment_id: int | None = None) -> ExperimentReport:
    """Everything that a report of an experiment shows, as it stands now.

    Args:
        experiment_id: the newest when None.

    Raises:
        ExperimentError: none is on record.
        StoreError: there is no such experiment.
    """
    experiment = _picked(store, experiment_id)
    looks = tuple(analysis_from_document(one.document) for one in store.analyses(experiment.id))
    trials = _trials(store, experiment.id)
    starts = tuple(_start(store, record, trials) for record in _in_order_run(experiment))
    return ExperimentReport(
        experiment=experiment,
        looks=looks,
        starts=starts,
        workload=next((trial.workload for trial in trials.values()), None),
        warnings=(*(looks[-1].warnings if looks else ()), *_warnings(experiment, looks, starts)),
        generated_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        orch_version=VERSION,
    )


def _picked(store: Store, experiment_id: int | None) -> ExperimentRecord:
    if experiment_id is not None:
        return store.experiment(experiment_id)
    found = store.experiments()
    if not found:
        raise ExperimentError(
            "no experiment is on record", next_step="run `orch run VARIANT --concurrency 1,8,64 --primary 64`"
        )
    return found[0]


def _in_order_run(experiment: ExperimentRecord) -> list[StartRecord]:
    """The starts that began, by their trials; one whose engine never came up has none and follows its place."""
    begun = [start for start in experiment.starts if start.trial_id is not None or start.status == "failed"]
    placed: list[tuple[int, StartRecord]] = []
    last = 0
    for start in begun:
        last = start.trial_id if start.trial_id is not None else last
        placed.append((last, start))
    return [start for _, start in sorted(placed, key=lambda one: (one[0], one[1].id))]


# ---- what its trials measured


@dataclass(frozen=True, slots=True)
class _Trial:
    """One engine start of the experiment; ``telemetry`` is asked for only where a load was."""

    loaded_digest: str | None
    started_at: str
    ended_at: str | None
    facts: Mapping[str, Fact]
    workload: Workload
    loads: tuple[LoadReport, ...]
    load_ids: tuple[int, ...]
    client: str | None
    winners: tuple[AutotuneWinner, ...] | None


_TRIALS = """
    SELECT trials.id, loaded_digest, trials.started_at, trials.ended_at, workload, facts, autotune_winners FROM trials
    JOIN experiment_starts AS starts ON starts.trial_id = trials.id
    LEFT JOIN environments ON environments.id = environment_id
    WHERE starts.experiment_id = ?
"""
_LOADS = """
    SELECT loads.trial_id, loads.id, concurrency_cap, loads.status, client, client_version, metrics.name, metrics.value
    FROM loads JOIN experiment_starts AS starts ON starts.trial_id = loads.trial_id
    LEFT JOIN metrics ON metrics.load_id = loads.id
    WHERE starts.experiment_id = ? ORDER BY loads.trial_id, loads.id
"""


def _trials(store: Store, experiment_id: int) -> dict[int, _Trial]:
    """By id. Requests and raw results stay where they are: a report shows none of them."""
    _, rows = store.query(_LOADS, (experiment_id,))
    loads = {int(str(trial_id)): list(group) for trial_id, group in groupby(rows, key=lambda row: row[0])}
    _, found = store.query(_TRIALS, (experiment_id,))
    return {int(str(row[0])): _trial(row, loads.get(int(str(row[0])), [])) for row in found}


def _trial(row: tuple[Any, ...], loads: list[tuple[Any, ...]]) -> _Trial:
    _, loaded_digest, started_at, ended_at, workload, facts, winners = row
    client = next((f"{one[4]} {one[5]}" for one in loads), None)
    return _Trial(
        loaded_digest=loaded_digest,
        started_at=started_at,
        ended_at=ended_at,
        facts=json.loads(facts) if facts else {},
        workload=Workload(**json.loads(workload)),
        loads=tuple(_loads(loads)),
        load_ids=tuple(dict.fromkeys(one[1] for one in loads)),
        client=client,
        winners=None if winners is None else tuple(AutotuneWinner(**one) for one in json.loads(winners)),
    )


def _loads(rows: list[tuple[Any, ...]]) -> Iterator[LoadReport]:
    for (_, cap, status), group in groupby(rows, key=lambda row: (row[1], row[2], row[3])):
        metrics = {row[6]: row[7] for row in group if row[6] is not None}
        yield LoadReport(cap, metrics if status == "ok" else {})


def _start(store: Store, record: StartRecord, trials: Mapping[int, _Trial]) -> StartReport:
    trial = None if record.trial_id is None else trials.get(record.trial_id)
    if trial is None:
        return StartReport(record=record)
    samples: list[TelemetrySample] = [one for load_id in trial.load_ids for one in store.telemetry(load_id)]
    return StartReport(
        record=record,
        loaded_digest=trial.loaded_digest,
        started_at=trial.started_at,
        ended_at=trial.ended_at,
        loads=trial.loads,
        telemetry=tuple(sorted(samples, key=lambda sample: (sample.at_s, sample.gpu))),
        facts=trial.facts,
        client=trial.client,
        winners=trial.winners,
    )


# ---- what a reader must know


def _warnings(
    experiment: ExperimentRecord, looks: tuple[Analysis, ...], starts: tuple[StartReport, ...]
) -> Iterator[str]:
    """What the analysis cannot know: the facts changed on the way, or the experiment has not ended well."""
    for name, values in changed_facts(starts).items():
        yield f"{name.replace('_', ' ')} changed between starts: {' → '.join(values)}"
    for (arm, kernel, _), configs in winners_seen(starts).items():
        if len(configs) > 1:
            yield f"the autotuner chose other configs of {kernel} between starts of {arm}: {' → '.join(configs)}"
    if experiment.status in ("planned", "running"):
        yield f"the experiment is {experiment.status}: what stands here is not its end"
    elif looks and not looks[-1].is_final:
        yield f"the experiment is {experiment.status} without a final look: nothing was decided"
