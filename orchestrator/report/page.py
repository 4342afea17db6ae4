"""The page of an experiment: one HTML file that needs no network and no script. Pure: gives text, writes no file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from orchestrator.metrics import METRICS
from orchestrator.report import charts, forest, tables
from orchestrator.report.drawing import N_ARM_STYLES, NARROW, WIDE, Form
from orchestrator.report.experiment_data import ExperimentReport
from orchestrator.report.summaries import all_samples
from orchestrator.report.words import findings, headline, margin_words, metric_label, verdict_words

TEMPLATE = "page.html.j2"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart in both forms. ``caption``: how to read it."""

    id: str
    title: str
    caption: str
    wide: str
    narrow: str


def page(report: ExperimentReport) -> str:
    """The whole document."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.filters["code"] = code
    return environment.get_template(TEMPLATE).render(
        report=report,
        plan=report.plan,
        analysis=report.analysis,
        headline=headline(report),
        findings=findings(report),
        tone=_tone(report),
        metric=metric_label(report.plan.metric),
        margin=margin_words(report.plan.margin),
        charts={chart.id: chart for chart in all_charts(report)},
        has_telemetry=bool(all_samples(report.starts)),
        verdict_words=verdict_words,
        blocks=_blocks(report),
        styles={arm.name: i % N_ARM_STYLES for i, arm in enumerate(report.plan.arms)},
        definitions=_definitions(report),
        verdicts=tables.verdict_sheet(report.analysis, report.plan) if report.analysis else None,
        values=tables.values_sheet(report),
        starts=tables.starts_sheet(report),
        looks=tables.looks_sheet(report),
        plan_facts=tables.plan_sheet(report),
        provenance=tables.provenance_sheet(report),
    )


def code(text: str) -> str:
    """The text as HTML, with what stands between two backticks as code."""
    import markupsafe

    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner
        return markupsafe.escape(text)
    made = (
        f"<code>{markupsafe.escape(one)}</code>" if i % 2 else markupsafe.escape(one) for i, one in enumerate(pieces)
    )
    return markupsafe.Markup("").join(map(markupsafe.Markup, made))


def unbroken(text: str) -> str:
    """The text with no line break between a number and what belongs to it."""
    return re.sub(r"(?<=\d) (?=%|×|pairs)|(?<=[±=×<]) | (?=[=×<] )", "\u00a0", text)


def all_charts(report: ExperimentReport) -> list[Chart]:
    """Every chart that there is something to show for."""
    found = []
    if report.starts:
        found.append(_chart(report, "throughput", charts.throughput))
        found.append(_chart(report, "starts", charts.starts))
    if report.analysis is not None and report.analysis.arms:
        found.append(_chart(report, "ratios", forest.ratios))
    if charts.has_latency(report):
        found.append(_chart(report, "latency", charts.latency))
    if all_samples(report.starts):
        found.append(_chart(report, "telemetry", charts.telemetry))
    return found


def _chart(report: ExperimentReport, chart: str, draw: Callable[[ExperimentReport, Form], str]) -> Chart:
    metric = metric_label(report.plan.metric)
    titles = {
        "throughput": (
            f"{metric[0].upper()}{metric[1:]} against concurrency",
            "Geometric mean over the starts that count, with its 95 % interval; below it the same as a share of the "
            "baseline's mean, so that the intervals can be seen. They hold what all arms share, such as drift over "
            "the session: the verdict rests on the paired ratios above.",
        ),
        "ratios": (
            "Ratio to the baseline",
            "Estimate and 95 % interval from pairs of one block, the effect of being started first or second taken "
            f"out. The line is 1.00, no change; the band is the margin of ± {margin_words(report.plan.margin)}.",
        ),
        "starts": (
            "Every start, in the order they ran",
            "One mark a start; the dashed line is the baseline's mean, vertical lines part the blocks. A hollow mark "
            "was set aside and does not count; × at the bottom has no value. A slope shared by all arms is drift.",
        ),
        "latency": (
            "Latency against throughput",
            "One mark an arm and concurrency (numbers: concurrency), geometric means over starts; lower and further "
            "right is better. Intervals are in the table of values.",
        ),
        "telemetry": (
            "GPU while it was loaded",
            "Mean over all GPUs with the lowest and highest as a band; the colour behind says which arm ran, the "
            "number which start. Red ticks: the driver named a reason that slows the clock.",
        ),
    }
    title, caption = titles[chart]
    return Chart(chart, title, caption, draw(report, WIDE), draw(report, NARROW))


def _tone(report: ExperimentReport) -> str:
    """``good`` when something ships, ``bad`` when everything is rejected, else ``open``."""
    arms = report.analysis.arms if report.analysis else ()
    if report.plan.is_aa or not arms:
        return "open"
    if any(arm.ships for arm in arms):
        return "good"
    return "bad" if all(arm.ships is False for arm in arms) else "open"


def _blocks(report: ExperimentReport) -> list[tuple[int, list[str], bool]]:
    """Number, arms in their order, and whether it began: the planned order for show."""
    begun = {start.record.planned.block for start in report.starts}
    by_block = groupby(report.plan.starts, key=lambda start: start.block)
    return [(block + 1, [start.arm for start in starts], block in begun) for block, starts in by_block]


def _definitions(report: ExperimentReport) -> list[tuple[str, str]]:
    """What the shown metrics mean."""
    names = dict.fromkeys((report.plan.metric, *tables.SHOWN_METRICS))
    return [(f"{metric_label(name)} [{METRICS[name].unit}]", METRICS[name].definition) for name in names]
