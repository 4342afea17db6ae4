"""The charts of an experiment, each in a wide and a narrow form: ``ExperimentReport`` → SVG.

Shows what the report holds and decides nothing. What a chart cannot show at its width is in the table below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from orchestrator.metrics import METRICS
from orchestrator.report.drawing import (
    ALARM,
    GRID,
    INK,
    MUTED,
    PAPER,
    Form,
    apart,
    figure,
    style_of,
    svg_of,
)
from orchestrator.report.experiment_data import ExperimentReport, StartReport
from orchestrator.report.summaries import Mean, all_samples, arm_mean, bins, value_of
from orchestrator.report.words import chart_label, metric_label

TELEMETRY = (("power_w", "power [W]"), ("sm_clock_mhz", "SM clock [MHz]"), ("temperature_c", "temperature [°C]"))
LATENCIES = ("tpot_ms_p50", "ttft_ms_p50", "ttft_ms_p99")


# ---- throughput against concurrency


def throughput(report: ExperimentReport, form: Form) -> str:
    """The plan's metric against concurrency, and below it each arm as a share of the baseline's mean."""
    plan = report.plan
    heights = (260, 190) if form.is_narrow else (290, 180)
    with figure(form, sum(heights)) as made:
        whole, shares = made.subplots(2, 1, height_ratios=heights)
        caps = sorted(plan.concurrencies)
        for i, arm in enumerate(plan.arms):
            found = [(cap, arm_mean(report, arm.name, plan.metric, cap)) for cap in caps]
            _curve(whole, [(cap, mean) for cap, mean in found if mean is not None], i)
            _shares(shares, report, [mean for _, mean in found], i)
        _concurrency_axis(whole, report, form)
        whole.set_ylim(bottom=0)
        whole.yaxis.set_major_formatter(_grouped)
        whole.set_title(f"{metric_label(plan.metric)} [{METRICS[plan.metric].unit}]")
        shares.set_xticks(range(len(caps)), [str(cap) for cap in caps])
        shares.set_xlabel("concurrency, evenly spaced")
        shares.set_title("the same, % of the baseline's mean")
        shares.yaxis.set_major_locator(_few_ticks(5))
        return svg_of(made, chart="throughput", form=form, label=chart_label(report, "against concurrency, each arm"))


def _curve(axes: Any, points: Sequence[tuple[float, Mean]], i: int) -> None:
    """One arm; where an interval is smaller than the mark, the lower panel shows it."""
    colour, marker = style_of(i)
    xs, means = [x for x, _ in points], [mean.mean for _, mean in points]
    axes.plot(xs, means, color=colour, marker=marker, lw=1.2, ls="-" if i else "--", ms=5.5, zorder=3)
    for x, mean in points:
        _interval(axes, x, mean, 1.0, colour)


def _shares(axes: Any, report: ExperimentReport, means: Sequence[Mean | None], i: int) -> None:
    """One arm's means in percent of the baseline's, beside the other arms'."""
    plan = report.plan
    colour, marker = style_of(i)
    shift = 0.16 * (i - (len(plan.arms) - 1) / 2) * min(1.0, 4 / len(plan.arms))
    for x, (cap, mean) in enumerate(zip(sorted(plan.concurrencies), means, strict=True)):
        base = arm_mean(report, plan.arms[0].name, plan.metric, cap)
        if mean is not None and base is not None:
            _interval(axes, x + shift, mean, 100 / base.mean, colour)
            axes.plot(x + shift, 100 * mean.mean / base.mean, color=colour, marker=marker, ms=6, zorder=3)


def _interval(axes: Any, x: float, mean: Mean, scale: float, colour: str) -> None:
    if mean.low95 is not None and mean.high95 is not None:
        axes.plot([x, x], [mean.low95 * scale, mean.high95 * scale], color=colour, marker="_", ms=7, lw=1.6, zorder=2)


def _grouped(value: float, _: int) -> str:
    """A tick's number: ``1,750``."""
    return f"{value:,.10g}"


def _concurrency_axis(axes: Any, report: ExperimentReport, form: Form) -> None:
    """A log axis whose ticks are the concurrencies; labels that would touch are left out, never the primary's."""
    from matplotlib.ticker import NullLocator

    caps = sorted(report.plan.concurrencies)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    span = math.log(caps[-1] / caps[0]) or 1.0
    positions = [math.log(cap / caps[0]) / span * form.width * 0.8 for cap in caps]
    may = apart(positions, 2.0 * form.font, first=caps.index(report.plan.primary_concurrency))
    axes.set_xticks(caps, [str(cap) if ok else "" for cap, ok in zip(caps, may, strict=True)])
    axes.set_xlabel("concurrency [requests in flight], log scale")


# ---- latency


def latency(report: ExperimentReport, form: Form) -> str:
    """Latencies against output throughput: a point for each arm and concurrency, joined in order of concurrency."""
    names = [name for name in LATENCIES if _is_measured(report, name)]
    height = 236.0 * max(1, len(names)) if form.is_narrow else 330.0
    with figure(form, height) as made:
        panels = made.subplots(*((len(names), 1) if form.is_narrow else (1, len(names))), squeeze=False)
        for axes, name in zip(panels.flat, names, strict=True):
            _latency_panel(axes, report, name, form)
        return svg_of(made, chart="latency", form=form, label="Latency against output throughput, each arm")


def has_latency(report: ExperimentReport) -> bool:
    """Whether any of the latencies was measured."""
    return any(_is_measured(report, name) for name in LATENCIES)


def _is_measured(report: ExperimentReport, metric: str) -> bool:
    plan = report.plan
    return any(arm_mean(report, arm.name, metric, c) for arm in plan.arms for c in plan.concurrencies)


def _latency_panel(axes: Any, report: ExperimentReport, metric: str, form: Form) -> None:
    curves = [_latency_curve(report, arm.name, metric) for arm in report.plan.arms]
    for i, curve in enumerate(curves):
        colour, marker = style_of(i)
        xs, ys = [x for _, x, _ in curve], [y for _, _, y in curve]
        axes.plot(xs, ys, color=colour, marker=marker, lw=1.2, ms=5, ls="-" if i else "--")
    most = max(x for curve in curves for _, x, _ in curve)
    axes.set_xlim(0, 1.12 * most)  # room for the last label
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    _point_labels(axes, max(curves, key=lambda curve: max((x for _, x, _ in curve), default=0.0)), most, form)
    axes.set_title(f"{metric_label(metric)} [ms]")
    axes.set_xlabel("output throughput [tok/s]")
    axes.xaxis.set_major_locator(_few_ticks(4))
    axes.yaxis.set_major_locator(_few_ticks(5))
    axes.xaxis.set_major_formatter(_grouped)
    axes.yaxis.set_major_formatter(_grouped)


def _latency_curve(report: ExperimentReport, arm: str, metric: str) -> list[tuple[int, float, float]]:
    """Concurrency, throughput, latency: where both were measured."""
    found = []
    for cap in sorted(report.plan.concurrencies):
        x, y = arm_mean(report, arm, "output_tokens_per_s", cap), arm_mean(report, arm, metric, cap)
        if x is not None and y is not None:
            found.append((cap, x.mean, y.mean))
    return found


def _point_labels(axes: Any, curve: Sequence[tuple[int, float, float]], most: float, form: Form) -> None:
    """The concurrency right below the points of the outermost curve, where there is room."""
    panel = form.width / form.n_columns * 0.75
    top = axes.get_ylim()[1]
    places = [(x / most * panel, y / top * 150) for _, x, y in curve]
    beside = {"textcoords": "offset points", "ha": "left", "va": "top", "color": MUTED, "fontsize": form.font - 2}
    shown: list[tuple[float, float]] = []
    for (cap, x, y), (at_x, at_y) in zip(reversed(curve), reversed(places), strict=True):
        if all(abs(at_x - x2) > 2.2 * form.font or abs(at_y - y2) > 1.4 * form.font for x2, y2 in shown):
            axes.annotate(str(cap), (x, y), xytext=(4, -3), **beside)
            shown.append((at_x, at_y))


def _few_ticks(most: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])


# ---- start by start


def starts(report: ExperimentReport, form: Form) -> str:
    """Every start's value in the order they ran, a panel for each concurrency; the primary's is the large one."""
    plan = report.plan
    others = [cap for cap in plan.concurrencies if cap != plan.primary_concurrency]
    n_rows = math.ceil(len(others) / form.n_columns)
    heights = [230.0, *[140.0 if form.is_narrow else 170.0] * n_rows]
    with figure(form, sum(heights)) as made:
        grid = made.add_gridspec(1 + n_rows, form.n_columns, height_ratios=heights)
        axes = made.add_subplot(grid[0, :])
        _starts_panel(axes, report, plan.primary_concurrency, form, is_large=True)
        for i, cap in enumerate(others):
            axes = made.add_subplot(grid[1 + i // form.n_columns, i % form.n_columns])
            _starts_panel(axes, report, cap, form, is_large=False)
        return svg_of(
            made, chart="starts", form=form, label=chart_label(report, "of each start, in the order they ran")
        )


def _starts_panel(axes: Any, report: ExperimentReport, cap: int, form: Form, *, is_large: bool) -> None:
    plan = report.plan
    order = {arm.name: i for i, arm in enumerate(plan.arms)}
    _blocks(axes, report.starts, form, is_named=is_large)
    for x, start in enumerate(report.starts, start=1):
        value = value_of(start, plan.metric, cap)
        if value is None:
            axes.plot(x, 0.03, marker="x", color=ALARM, ms=6, transform=axes.get_xaxis_transform(), clip_on=False)
            continue
        colour, marker = style_of(order[start.arm])
        counts = start.record.status == "ok"
        size = 7 if is_large else 5
        axes.plot(
            x,
            value,
            marker=marker,
            ms=size,
            color=colour,
            mec=colour,
            mfc=colour if counts else PAPER,
            mew=1.4,
            ls="",
            zorder=3,
        )
    base = arm_mean(report, plan.arms[0].name, plan.metric, cap)
    if base is not None:
        axes.axhline(base.mean, color=style_of(0)[0], lw=1, ls="--", zorder=1)
    axes.margins(y=0.12)
    axes.set_xlim(0.4, max(1, len(report.starts)) + 0.6)
    unit = METRICS[plan.metric].unit
    axes.set_title(
        f"{metric_label(plan.metric)} [{unit}] at {cap}, primary" if is_large else f"at {cap}",
        pad=20 if is_large else 6,
    )
    axes.xaxis.set_major_locator(_whole_ticks(9 if is_large else 5))
    axes.yaxis.set_major_locator(_few_ticks(5 if is_large else 3))
    axes.yaxis.set_major_formatter(_grouped)
    if is_large:
        axes.set_xlabel("start, in the order they ran")


def _whole_ticks(most: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most, integer=True, min_n_ticks=2)


def _blocks(axes: Any, ran: Sequence[StartReport], form: Form, *, is_named: bool) -> None:
    """A line between blocks; with their numbers, where there is room for them."""
    runs: list[tuple[int, int, int]] = []
    for x, start in enumerate(ran, start=1):
        block = start.record.planned.block
        if runs and runs[-1][0] == block:
            runs[-1] = (block, runs[-1][1], x)
        else:
            runs.append((block, x, x))
    for block, first, last in runs:
        if first > 1:
            axes.axvline(first - 0.5, color=GRID, lw=1, zorder=0)
        if is_named and (last - first + 1) / len(ran) * form.width > 22:
            word = "block 1" if block == 0 and not form.is_narrow else str(block + 1)
            axes.text(
                (first + last) / 2,
                1.01,
                word,
                color=MUTED,
                ha="center",
                va="bottom",
                fontsize=form.font - 2,
                transform=axes.get_xaxis_transform(),
            )


# ---- telemetry


def telemetry(report: ExperimentReport, form: Form) -> str:
    """Power, clock and temperature over the session, each start marked in its arm's colour."""
    watched = [(x, start) for x, start in enumerate(report.starts, start=1) if start.telemetry]
    began_s = min(sample.at_s for sample in all_samples(report.starts))
    ended_s = max(sample.at_s for sample in all_samples(report.starts))
    width_s = max(1.0, (ended_s - began_s) / (form.width * 0.6))
    with figure(form, 420 if form.is_narrow else 400) as made:
        panels = made.subplots(len(TELEMETRY), 1, sharex=True)
        for axes, (field, label) in zip(panels, TELEMETRY, strict=True):
            _mark_starts(axes, report, watched, began_s)
            for _, start in watched:
                _strip(axes, bins(start.telemetry, field, began_s=began_s, width_s=width_s))
            axes.set_title(label, pad=20 if axes is panels[0] else 5)
            axes.margins(y=0.15)
            axes.yaxis.set_major_locator(_few_ticks(3))
            axes.yaxis.set_major_formatter(_grouped)
        _throttled(panels[1], report, began_s)
        _number_starts(panels[0], watched, began_s, (ended_s - began_s) / 60, form)
        panels[-1].set_xlim(-0.01 * (ended_s - began_s) / 60, 1.01 * (ended_s - began_s) / 60)
        panels[-1].set_xlabel("minutes since the first load began")
        return svg_of(made, chart="telemetry", form=form, label="GPU power, SM clock and temperature over time")


def _strip(axes: Any, found: Sequence[Any]) -> None:
    minutes = [one.at_s / 60 for one in found]
    axes.fill_between(minutes, [one.low for one in found], [one.high for one in found], color=MUTED, alpha=0.35, lw=0)
    axes.plot(minutes, [one.mean for one in found], color=INK, lw=1)


def _mark_starts(
    axes: Any, report: ExperimentReport, watched: Sequence[tuple[int, StartReport]], began_s: float
) -> None:
    order = {arm.name: i for i, arm in enumerate(report.plan.arms)}
    for _, start in watched:
        first, last = ((start.telemetry[i].at_s - began_s) / 60 for i in (0, -1))
        axes.axvspan(first, last, color=style_of(order[start.arm])[0], alpha=0.16, lw=0, zorder=0)


def _throttled(axes: Any, report: ExperimentReport, began_s: float) -> None:
    """Ticks where the driver named a reason that slows the clock."""
    times = sorted({round((s.at_s - began_s) / 60, 1) for s in all_samples(report.starts) if s.throttle_reasons})
    if times:
        axes.plot(
            times, [0.06] * len(times), ls="", marker="|", ms=6, color=ALARM, transform=axes.get_xaxis_transform()
        )


def _number_starts(
    axes: Any, watched: Sequence[tuple[int, StartReport]], began_s: float, span: float, form: Form
) -> None:
    middles = [((start.telemetry[0].at_s + start.telemetry[-1].at_s) / 2 - began_s) / 60 for _, start in watched]
    may = apart([at / (span or 1) * form.width * 0.85 for at in middles], 1.9 * form.font)
    for (x, _), at, ok in zip(watched, middles, may, strict=True):
        if ok:
            axes.text(
                at,
                1.02,
                str(x),
                color=MUTED,
                ha="center",
                va="bottom",
                fontsize=form.font - 2,
                transform=axes.get_xaxis_transform(),
            )
