"""``orch history``."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import Output, counted

if TYPE_CHECKING:
    from orchestrator.store import HistoryRow


@click.command("history")
@target_argument
@json_option
@click.pass_obj
@example("orch history", "orch history flash_mla --json")
def command(obj: dict[str, str], target_name: str | None, is_json: bool) -> None:
    """Every experiment: hypothesis, verdict, effect, and why a variant was rejected.

    Newest first, of every target unless one is named. What did not work is as much of a result as what did, and is
    listed the same way. The effect is variant ÷ baseline at the primary concurrency with its 95 % interval.
    """
    from orchestrator.project import Project
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = None if target_name is None else project.target(target_name).name
    with Store.open_read_only(project.db_path) as store:
        history = store.history(target)
    experiments = [list(rows) for _, rows in groupby(history, key=lambda row: row.experiment_id)]
    for rows in experiments:
        _print_experiment(out, rows)
    if not experiments:
        out.line(f"no experiment{'' if target is None else f' on {target}'} is on record")
        out.line("next: `orch variant new`, then `orch run VARIANT --concurrency 1,8,64 --primary 64`")
    out.document({"experiments": [_document(rows) for rows in experiments]})


def _print_experiment(out: Output, rows: list[HistoryRow]) -> None:
    from orchestrator.metrics import METRICS

    first = rows[0]
    metric = METRICS[first.metric]
    better = {"higher": "higher is better", "lower": "lower is better", "none": "no direction is better"}
    out.line(
        f"experiment {first.experiment_id}, {first.at[:16]}, {first.target} on {first.host}: {first.status}",
        style="bold",
    )
    out.line(
        f"  {metric.name} at concurrency {first.primary_concurrency}, {better[metric.direction]}; {_starts(first)}"
    )
    if first.hypothesis:
        out.line(f"  hypothesis: {first.hypothesis}")
    for row in rows:
        out.line(f"  {row.arm}: {row.verdict or 'no verdict'}{_effect(row)}{_decision(row)}", style=_style(row))
        if row.message and row.message != row.hypothesis:
            out.line(f"    hypothesis: {row.message}")
        if row.why:
            out.line(f"    why: {row.why}")
    out.line()


def _starts(row: HistoryRow) -> str:
    bad = f", {row.n_starts_bad} set aside or failed" if row.n_starts_bad else ""
    return f"{counted(row.n_starts_ok, 'good start')}{bad}"


def _effect(row: HistoryRow) -> str:
    if row.ratio is None or row.low95 is None or row.high95 is None:
        return ""
    return f", ratio {row.ratio:.4f} [{row.low95:.4f}, {row.high95:.4f}], {counted(row.n_pairs or 0, 'pair')}"


def _decision(row: HistoryRow) -> str:
    """Whether it ships; nothing where that is not the question: the baseline against itself."""
    if row.is_aa:
        return ", the baseline against itself"
    return {True: ", ships", False: ", rejected", None: ""}[row.ships]


def _style(row: HistoryRow) -> str | None:
    return {"FASTER": "green", "SLOWER": "red"}.get(row.verdict or "")


def _document(rows: list[HistoryRow]) -> dict[str, Any]:
    first = rows[0]
    return {
        "experiment_id": first.experiment_id,
        "target": first.target,
        "host": first.host,
        "workload": first.workload,
        "status": first.status,
        "at": first.at,
        "ended_at": first.ended_at,
        "stop_reason": first.stop_reason,
        "hypothesis": first.hypothesis or None,
        "metric": first.metric,
        "primary_concurrency": first.primary_concurrency,
        "is_aa": first.is_aa,
        "n_starts_ok": first.n_starts_ok,
        "n_starts_bad": first.n_starts_bad,
        "variants": [_variant_document(row) for row in rows],
    }


def _variant_document(row: HistoryRow) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "digest": row.digest,
        "message": row.message or None,
        "verdict": row.verdict,
        "ratio": row.ratio,
        "low95": row.low95,
        "high95": row.high95,
        "n_pairs": row.n_pairs,
        "ships": row.ships,
        "why": row.why,
    }
