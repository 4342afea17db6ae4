"""The verdict as a sentence, and ratios, intervals and p as text. Pure: says what an analysis says, judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.designs import ArmAnalysis, ConcurrencyAnalysis, Estimate, Plan
from orchestrator.metrics import METRICS, percent_words
from orchestrator.report.experiment_data import ExperimentReport

_LABELS = {"output_tokens_per_s": "output throughput", "requests_per_s": "request throughput"}
_STATISTICS = ("mean", "p50", "p90", "p99")


def metric_label(name: str) -> str:
    """``output throughput``, ``TTFT p50``: a metric for a person, without its unit."""
    quantity, _, statistic = name.rpartition("_")
    if statistic in _STATISTICS:
        return f"{quantity.removesuffix('_ms').upper()} {statistic}"
    return _LABELS.get(name, name.replace("_", " "))


def metric_title(name: str) -> str:
    """The label with its unit and which way is better."""
    metric = METRICS[name]
    better = {"higher": ", higher is better", "lower": ", lower is better", "none": ""}[metric.direction]
    return f"{metric_label(name)} [{metric.unit}]{better}"


def chart_label(report: ExperimentReport, what: str) -> str:
    """What a chart of the plan's metric shows, for people who cannot see it."""
    return f"{metric_label(report.plan.metric)} {what}"


def percent(ratio: float) -> str:
    """A ratio as a change: ``+3.1 %`` for 1.031."""
    return f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")


def margin_words(margin: float) -> str:
    """``1 %`` for 0.01."""
    return f"{margin * 100:g} %"


def p_words(p: float | None) -> str:
    """A p-value with two digits that matter; never 0."""
    if p is None:
        return "–"
    return "<.0001" if p < 0.0001 else f"{p:.{4 if p < 0.01 else 3}f}".removeprefix("0")


def threshold_words(threshold: float) -> str:
    """A nominal p of a look, as the method states it: ``.0115``."""
    return f"{threshold:.4f}".removeprefix("0")


def interval_words(estimate: Estimate) -> str:
    """The 95 % interval of a ratio."""
    return f"{estimate.low95:.3f}–{estimate.high95:.3f}"


def pairs_words(n_pairs: int) -> str:
    """``n = 6 pairs``."""
    return f"n = {n_pairs} pair{'s' * (n_pairs != 1)}"


def config_words(config: str) -> str:
    """A config as Triton writes it, without what it leaves to its default: ``BLOCK_T: 16, num_warps: 4``."""
    return ", ".join(part for part in config.split(", ") if not part.endswith(": None") and part != "num_ctas: 1")


def verdict_words(row: ConcurrencyAnalysis) -> str:
    """The verdict of a row, or that there is none."""
    return row.verdict or "no verdict"


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison in words: ``V2: FASTER at concurrency 64``, its numbers, and what follows from it."""

    claim: str
    numbers: str
    why: str


def finding(arm: ArmAnalysis, plan: Plan) -> Finding:
    """A variant at the primary concurrency, with everything that a number needs: interval, n, verdict."""
    row = arm.primary
    claim = f"{arm.arm}: {verdict_words(row)} at concurrency {row.concurrency}"
    why = arm.why[:1].upper() + arm.why[1:]
    if row.estimate is None:
        return Finding(claim, row.why_no_verdict or "there is no complete pair", why)
    estimate = row.estimate
    found = f"{metric_label(plan.metric)} {percent(estimate.ratio)}, {estimate.ratio:.3f} × baseline"
    n = f"(95 % interval {interval_words(estimate)}, {pairs_words(estimate.n_pairs)})"
    return Finding(claim, f"{found} {n}", why)


def headline(report: ExperimentReport) -> str:
    """What a hurried reader takes home, in one line."""
    plan, analysis = report.plan, report.analysis
    if analysis is None or not analysis.arms:
        return f"No verdict: no complete block of {plan.n_blocks} planned"
    if plan.is_aa:
        return _noise_headline(analysis.arms[0], plan)
    shipping = [arm for arm in analysis.arms if arm.ships]
    if shipping:
        return "Ship " + ", or ".join(_gain(arm, plan) for arm in shipping)
    if all(arm.ships is False for arm in analysis.arms):
        rejected = ", ".join(arm.arm for arm in analysis.arms)
        return f"Keep the baseline: {rejected} rejected"
    opened = ", ".join(arm.arm for arm in analysis.arms if arm.ships is None)
    return f"Undecided after {analysis.n_blocks} of {plan.n_blocks} blocks: {opened} open"


def _gain(arm: ArmAnalysis, plan: Plan) -> str:
    estimate = arm.primary.estimate
    change = "" if estimate is None else f": {metric_label(plan.metric)} {percent(estimate.ratio)}"
    return f"{arm.arm}{change} at concurrency {plan.primary_concurrency}"


def _noise_headline(arm: ArmAnalysis, plan: Plan) -> str:
    row = arm.primary
    if row.estimate is None:
        return f"A/A: the noise at concurrency {row.concurrency} is not known yet"
    noise = f"noise of one pair (SD) {percent_words(row.estimate.sigma_d)} at concurrency {plan.primary_concurrency}"
    if row.verdict in ("FASTER", "SLOWER"):
        return f"A/A found a difference between equal arms; {noise}"
    return f"A/A: {noise}, {pairs_words(row.estimate.n_pairs)}"


def findings(report: ExperimentReport) -> list[Finding]:
    """For each variant the primary comparison in words; empty before the first complete block."""
    return [finding(arm, report.plan) for arm in (report.analysis.arms if report.analysis else ())]
