"""Drift of speed as text and as JSON, for ``orch drift``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import Output, counted
from orchestrator.cli.table import Table
from orchestrator.metrics import METRICS

if TYPE_CHECKING:
    from orchestrator.speed_drift import SpeedChange, SpeedSeries

_COLUMNS = ("at", "workload", "concurrency", "before", "after", "ratio", "95 %", "n", "environment")
_NUMBERS = frozenset(("concurrency", "before", "after", "ratio"))


def print_speed(out: Output, series: Sequence[SpeedSeries], metric: str) -> None:
    """The change points as a table; what was too short to tell is said, so that silence is not taken for calm."""
    changes = [(one, change) for one in series for change in one.changes]
    starts = {value.trial_id for one in series for value in one.values}
    if not starts:
        out.line("speed: no good start of the baseline on record yet")
        return
    if changes:
        out.line()
        rows = [_row(one, change, metric) for one, change in changes]
        title = f"speed of the baseline: {counted(len(rows), 'change')} of {metric} [{METRICS[metric].unit}]"
        out.table(Table(_COLUMNS, rows, right=_NUMBERS, title=title))
    elif any(one.is_long_enough for one in series):
        out.line(f"speed of the baseline: no change in {counted(len(starts), 'start')}")
    newest = {(one.workload, one.concurrency): one for one in series}
    short = [one for one in newest.values() if not one.is_long_enough]
    if short:
        longest = max(len(one.values) for one in short)
        where = ", ".join(map(str, sorted({one.concurrency for one in short})))
        out.line(
            f"speed: too few starts under equal conditions to tell at concurrency {where}"
            f" (at most {longest}, {short[0].n_starts_needed} are needed)"
        )


def _row(series: SpeedSeries, change: SpeedChange, metric: str) -> list[str | int]:
    show = METRICS[metric].format
    is_known = change.ratio is not None and change.low95 is not None and change.high95 is not None
    environment = {True: "changed too", False: "same", None: "not recorded"}[change.is_environment_changed]
    return [
        change.at[:16],
        series.workload,
        series.concurrency,
        show(change.before),
        show(change.after),
        f"{change.ratio:.3f}" if is_known else "–",
        f"{change.low95:.3f}–{change.high95:.3f}" if is_known else "–",
        f"{change.n_before}+{change.n_after}",
        environment,
    ]


def speed_document(series: Sequence[SpeedSeries], metric: str, false_alarm_rate: float) -> dict[str, Any]:
    """The JSON of every series, also of those without a change; keys are stable."""
    return {
        "metric": metric,
        "unit": METRICS[metric].unit,
        "false_alarm_rate": false_alarm_rate,
        "series": [
            {
                "workload": one.workload,
                "concurrency": one.concurrency,
                "digest": one.digest,
                "n_starts": len(one.values),
                "n_starts_needed": one.n_starts_needed,
                "first_at": one.values[0].started_at,
                "last_at": one.values[-1].started_at,
                "changes": [asdict(change) for change in one.changes],
            }
            for one in series
        ],
    }
