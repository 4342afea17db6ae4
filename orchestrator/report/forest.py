"""The forest of ratios: variant ÷ baseline with its 95 % interval, a row for each variant and concurrency.

Shows what the analysis says and decides nothing. The narrow form leaves numbers to the table below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from orchestrator.designs import ConcurrencyAnalysis
from orchestrator.metrics import METRICS
from orchestrator.report.drawing import BAND, INK, MUTED, PAPER, Form, figure, style_of, svg_of
from orchestrator.report.experiment_data import ExperimentReport
from orchestrator.report.words import chart_label, interval_words, margin_words, verdict_words

ROW_HEIGHT, TOP, BOTTOM = 24.0, 30.0, 52.0


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The axes with places for text beside them, in pixels from the left edge; rows count from 0 downwards.

    Attributes:
        columns: where ratio, pairs and verdict stand; None where there is no room for them.
    """

    axes: Any
    form: Form
    left: float
    right: float
    columns: tuple[float | None, float | None, float]

    def write(self, x: float | None, row: float, text: str, **style: Any) -> None:
        """Text in a row; nothing without a place."""
        if x is not None:
            at = (x - self.left) / (self.right - self.left)
            known = {"va": "center", "transform": self.axes.get_yaxis_transform(), "fontsize": self.form.font - 1}
            self.axes.text(at, row, text, **{**known, **style})


def ratios(report: ExperimentReport, form: Form) -> str:
    """A forest: variant ÷ baseline with its 95 % interval, a row for each variant and concurrency."""
    arms = report.analysis.arms if report.analysis else ()
    n_rows = sum(1 + len(arm.rows) for arm in arms)
    height = n_rows * ROW_HEIGHT + TOP + BOTTOM
    left, right = (62.0, 250.0) if form.is_narrow else (76.0, 510.0)
    box = (left / form.width, BOTTOM / height, (right - left) / form.width, n_rows * ROW_HEIGHT / height)
    with figure(form, height) as made:
        made.set_layout_engine("none")
        columns = (None, None, right + 12) if form.is_narrow else (right + 16, right + 180, right + 220)
        sheet = _Sheet(made.add_axes(box), form, left, right, columns)
        _axis(sheet, report, n_rows)
        _heads(sheet, report)
        y = 0
        for i, arm in enumerate(arms, start=1):
            sheet.write(0, y, _fitting(arm.arm, form), weight="bold", fontsize=form.font)
            for j, row in enumerate(arm.rows, start=y + 1):
                _row(sheet, row, j, i)
            y += 1 + len(arm.rows)
        label = chart_label(report, "of each variant as a ratio to the baseline")
        return svg_of(made, chart="ratios", form=form, label=label)


def _fitting(name: str, form: Form) -> str:
    """As much of a name as there is room for; the table has it whole."""
    most = int(form.width / (0.75 * form.font))
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _row(sheet: _Sheet, row: ConcurrencyAnalysis, y: float, i: int) -> None:
    colour, marker = style_of(i)
    weight = "bold" if row.is_primary else "normal"
    ratio_x, pairs_x, verdict_x = sheet.columns
    sheet.write(8, y, f"{row.concurrency} ★" if row.is_primary else str(row.concurrency), weight=weight)
    sheet.write(verdict_x, y, verdict_words(row), weight=weight)
    found = row.estimate
    if found is None:
        return
    line, mark = (3.4, 9.5) if row.is_primary else (1.8, 7)
    sheet.axes.plot([found.low95, found.high95], [y, y], color=colour, lw=line, solid_capstyle="butt")
    sheet.axes.plot(found.ratio, y, color=colour, marker=marker, ms=mark, mec=PAPER, mew=0.8)
    sheet.write(ratio_x, y, f"{found.ratio:.3f}  ({interval_words(found)})", weight=weight)
    sheet.write(pairs_x, y, str(found.n_pairs), weight=weight)


def _heads(sheet: _Sheet, report: ExperimentReport) -> None:
    """What stands in which column, above the first row."""
    heads = ("ratio  (95 % interval)", "pairs", "verdict")
    note = f"★ primary · band: ± {margin_words(report.plan.margin)}"
    places = [(sheet.left, note), *zip(sheet.columns, heads, strict=True)]
    for x, text in places:
        sheet.write(x, -0.6, text, color=MUTED, va="bottom")


def _axis(sheet: _Sheet, report: ExperimentReport, n_rows: int) -> None:
    """A log axis of ratios with the line at 1 and the margin."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes, margin = sheet.axes, report.plan.margin
    axes.axvspan(1 - margin, 1 + margin, color=BAND, lw=0, zorder=0)
    axes.axvline(1, color=INK, lw=1, zorder=1)
    axes.set_ylim(n_rows - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    low, high = _ratio_range(report)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _ratio_ticks(low, high, 4 if sheet.form.is_narrow else 7)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    decimals = 2 if all(math.isclose(tick, round(tick, 2)) for tick in ticks) else 3
    axes.set_xticklabels([f"{tick:.{decimals}f}" for tick in ticks])
    is_lower_better = METRICS[report.plan.metric].direction == "lower"
    ends = ("better", "worse") if is_lower_better else ("worse", "better")
    axes.set_xlabel(f"← {ends[0]} · variant ÷ baseline · {ends[1]} →")


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
