"""The forest of ratios: variant ÷ baseline with its 95 % interval, a row for each variant and concurrency.

Shows what the analysis says and decides nothing. The narrow form leaves numbers to the table below it.
"""

from __future__ import annotations

import math
from typing import Any

from orchestrator.designs import ConcurrencyAnalysis
from orchestrator.metrics import METRICS
from orchestrator.report.drawing import BAND, INK, MUTED, PAPER, Form, figure, style_of, svg_of
from orchestrator.report.experiment_data import ExperimentReport
from orchestrator.report.words import chart_label, interval_words, margin_words, verdict_words


def ratios(report: ExperimentReport, form: Form) -> str:
    """A forest: variant ÷ baseline with its 95 % interval, a row for each variant and concurrency."""
    analysis, plan = report.analysis, report.plan
    arms = analysis.arms if analysis else ()
    row_height = 26.0
    n_rows = sum(1 + len(arm.rows) for arm in arms)
    height = n_rows * row_height + (88 if form.is_narrow else 84)
    left, right = (74, 112) if form.is_narrow else (84, 392)
    with figure(form, height) as made:
        made.set_layout_engine("none")
        axes = made.add_axes(
            (left / form.width, 52 / height, (form.width - left - right) / form.width, (n_rows * row_height) / height)
        )
        axes.axvspan(1 - plan.margin, 1 + plan.margin, color=BAND, lw=0, zorder=0)
        axes.axvline(1, color=INK, lw=1, zorder=1)
        y = 0
        for i, arm in enumerate(arms, start=1):
            axes.text(
                -left / (form.width - left - right),
                y,
                _fitting(arm.arm, form),
                weight="bold",
                va="center",
                transform=axes.get_yaxis_transform(),
            )
            for j, row in enumerate(arm.rows, start=y + 1):
                _forest_row(axes, row, j, i, form, left / (form.width - left - right))
            y += 1 + len(arm.rows)
        _forest_axis(axes, report, form, n_rows)
        return svg_of(
            made, chart="ratios", form=form, label=chart_label(report, "of each variant as a ratio to the baseline")
        )


def _fitting(name: str, form: Form) -> str:
    """As much of a name as there is room for; the table has it whole."""
    most = int(form.width / (0.75 * form.font))
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _forest_row(axes: Any, row: ConcurrencyAnalysis, y: float, i: int, form: Form, label_x: float) -> None:
    colour, marker = style_of(i)
    weight = "bold" if row.is_primary else "normal"
    beside = {"va": "center", "weight": weight, "transform": axes.get_yaxis_transform(), "fontsize": form.font - 1}
    name = f"{row.concurrency} ★" if row.is_primary else str(row.concurrency)
    axes.text(-label_x + 0.02, y, f"  {name}", **beside)
    if row.estimate is None:
        axes.text(1.02, y, "no verdict", **beside)
        return
    found = row.estimate
    axes.plot(
        [found.low95, found.high95], [y, y], color=colour, lw=3.2 if row.is_primary else 1.8, solid_capstyle="butt"
    )
    axes.plot(found.ratio, y, color=colour, marker=marker, ms=9 if row.is_primary else 6, mec=PAPER, mew=0.8)
    if form.is_narrow:
        axes.text(1.03, y, verdict_words(row), **{**beside, "fontsize": form.font - 2})
        return
    axes.text(1.03, y, f"{found.ratio:.3f}  ({interval_words(found)})", **beside)
    axes.text(1.47, y, f"{found.n_pairs}", **beside)
    axes.text(1.56, y, verdict_words(row), **beside)


def _forest_axis(axes: Any, report: ExperimentReport, form: Form, n_rows: int) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_ylim(n_rows - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    low, high = _ratio_range(report)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _ratio_ticks(low, high, 4 if form.is_narrow else 7)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.set_xticklabels([f"{tick:.2f}" if tick * 100 % 1 < 1e-6 else f"{tick:.3f}" for tick in ticks])
    lower_wins = METRICS[report.plan.metric].direction == "lower"
    ends = ("better", "worse") if lower_wins else ("worse", "better")
    axes.set_xlabel(f"← {ends[0]} · variant ÷ baseline · {ends[1]} →")
    band = f"band: ± {margin_words(report.plan.margin)}"
    y = -0.62
    if form.is_narrow:
        axes.text(
            0,
            y,
            f"★ primary, {band}",
            color=MUTED,
            va="bottom",
            transform=axes.get_yaxis_transform(),
            fontsize=form.font - 1,
        )
        return
    heads = ((0, f"★ primary; {band}"), (1.03, "ratio  (95 % interval)"), (1.47, "pairs"), (1.56, "verdict"))
    for x, text in heads:
        axes.text(x, y, text, color=MUTED, va="bottom", transform=axes.get_yaxis_transform(), fontsize=form.font - 1)


def _ratio_range(report: ExperimentReport) -> tuple[float, float]:
    """All intervals and the margin, with some room."""
    found = [row.estimate for arm in (report.analysis.arms if report.analysis else ()) for row in arm.rows]
    ends = [end for one in found if one is not None for end in (one.low95, one.high95)]
    low = min([1 - 2 * report.plan.margin, *ends])
    high = max([1 + 2 * report.plan.margin, *ends])
    room = (high / low) ** 0.04
    return low / room, high * room


def _ratio_ticks(low: float, high: float, most: int) -> list[float]:
    """Round ratios, 1 among them."""
    for step in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        first, last = math.ceil((low - 1) / step), math.floor((high - 1) / step)
        if last - first + 1 <= most:
            return [1 + k * step for k in range(first, last + 1) if 1 + k * step > 0]
    return [1.0]
