"""What ``orch bench --client`` prints: numbers of several load clients side by side, and what each means by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.bench import COLUMNS, load_row, print_start, trial_document
from orchestrator.cli.output import Output
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.side_by_side import SideBySide
    from orchestrator.experiment.trial import Trial
    from orchestrator.records import LoadResult


def print_side_by_side(out: Output, made: SideBySide) -> None:
    """A table with a row for each load, those of one concurrency together; then what makes them doubtful and unlike."""
    from orchestrator.clients.definitions import NOT_COMPARED
    from orchestrator.metrics import METRICS
    from orchestrator.records import short

    first = made.trials[0]
    headers = ["workload", "client", "concurrency", "status", "ok/asked"]
    headers += [f"{name} [{METRICS[name].unit}]" for name in COLUMNS]
    rows = [
        [workload, f"{load.client} {load.client_version}", *load_row(load, METRICS)]
        for workload, load in _by_concurrency(made)
    ]
    title = f"{first.arm} {short(first.digest)}, one engine start (n = 1) loaded by {len(made.trials)} clients in turn"
    out.table(Table(headers, rows, right=frozenset(headers[5:]) | {"concurrency", "ok/asked"}, title=title))
    for workload, load in _by_concurrency(made):
        for reason in load.reasons:
            out.line(f"{workload} at concurrency {load.concurrency_cap} is {load.status}: {reason}", style="yellow")
    for one in made.skipped:
        out.line(f"skipped: {one.client}{f' of {one.workload}' if one.workload else ''}: {one.reason}", style="yellow")
    for line in _definition_lines(made):
        out.line(line)
    print_start(out, first)
    out.line(NOT_COMPARED)
    arm = "V2" if first.arm == "baseline" else first.arm
    out.line(f"next: `orch compare {arm} --workload {made.workloads[0].name}` compares arms by one of them")


def _by_concurrency(made: SideBySide) -> list[tuple[str, LoadResult]]:
    """(workload, load), those of one concurrency together, in the order of the clients."""
    caps = dict.fromkeys(load.concurrency_cap for trial in made.trials for load in trial.loads)
    return [
        (workload.name, load)
        for cap in caps
        for workload, trial in zip(made.workloads, made.trials, strict=True)
        for load in trial.loads
        if load.concurrency_cap == cap
    ]


def _definition_lines(made: SideBySide) -> list[str]:
    from orchestrator.clients.definitions import definitions_of

    lines = []
    for one in definitions_of(workload.client for workload in made.workloads):
        lines.append(f"{one.quantity}: {one.common}")
        lines += [f"  {client}: {text}" for client, text in one.by_client.items()]
    return lines


def side_by_side_document(made: SideBySide) -> dict[str, Any]:
    """The JSON of one start that several clients loaded; keys are stable."""
    from dataclasses import asdict

    from orchestrator.clients.definitions import definitions_of

    return {
        "clients": [
            {"client": workload.client, "client_version": _version(trial), **trial_document(trial, workload.name)}
            for workload, trial in zip(made.workloads, made.trials, strict=True)
        ],
        "skipped": [asdict(one) for one in made.skipped],
        "definitions": [
            {"quantity": one.quantity, "common": one.common, "by_client": dict(one.by_client)}
            for one in definitions_of(workload.client for workload in made.workloads)
        ],
    }


def _version(trial: Trial) -> str | None:
    """As the client told it in its first load."""
    return trial.loads[0].client_version if trial.loads else None
