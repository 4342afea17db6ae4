"""An experiment as columns and rows of text: for the terminal, Markdown and the page alike. Pure: prints nothing.

Every number has its unit in the column's name or the title, its interval and its n in the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.designs import Analysis, ArmAnalysis, ConcurrencyAnalysis, Plan
from orchestrator.metrics import METRICS, needed_words, percent_words
from orchestrator.records import short
from orchestrator.report.experiment_data import ExperimentReport, StartReport
from orchestrator.report.summaries import Mean, arm_mean, facts_seen, value_of, winners_seen
from orchestrator.report.words import (
    interval_words,
    margin_words,
    metric_label,
    metric_title,
    p_words,
    percent,
    threshold_words,
    verdict_words,
)

SHOWN_METRICS = ("output_tokens_per_s", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "e2el_ms_p99")
PRIMARY_MARK = "★"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Columns and rows of text.

    Attributes:
        right: names of the columns of numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = field(default_factory=frozenset)


def verdict_sheet(analysis: Analysis, plan: Plan) -> Sheet:
    """One row for each variant and concurrency: ratio, interval, pairs, p, verdict. Fits 80 columns."""
    columns = ("variant", "at", "ratio", "95 % interval", "pairs", "p", "verdict", "notes")
    rows = tuple(_verdict_row(arm, row, plan) for arm in analysis.arms for row in arm.rows)
    where = f"at each concurrency ({PRIMARY_MARK} primary; p elsewhere after Holm)"
    title = f"{metric_title(plan.metric)}: variant ÷ baseline {where}"
    return Sheet(title, columns, rows, frozenset(columns[1:6]))


def _verdict_row(arm: ArmAnalysis, row: ConcurrencyAnalysis, plan: Plan) -> tuple[str, ...]:
    found = row.estimate
    at = f"{PRIMARY_MARK} {row.concurrency}" if row.is_primary else str(row.concurrency)
    if found is None:
        return arm.arm, at, "–", "–", "–", "–", verdict_words(row), row.why_no_verdict or ""
    numbers = (f"{found.ratio:.3f}", interval_words(found), str(found.n_pairs), p_words(row.p_adjusted))
    return (arm.arm, at, *numbers, verdict_words(row), _notes(row, plan))


def _notes(row: ConcurrencyAnalysis, plan: Plan) -> str:
    """What the verdict's word does not say."""
    if row.verdict is None:
        return row.why_no_verdict or ""
    if row.verdict in ("FASTER", "SLOWER"):
        return f"{'beyond' if row.clears_margin else 'maybe within'} ± {margin_words(plan.margin)}"
    if row.pairs_needed is not None:
        return f"needs {needed_words(row.pairs_needed)} pairs"
    return "" if row.is_not_worse is not False else f"maybe worse than {margin_words(plan.margin)}"


def looks_sheet(report: ExperimentReport) -> Sheet:
    """The planned looks with their thresholds, and what each found at the primary concurrency."""
    names = [arm.name for arm in report.plan.arms[1:]]
    made = {analysis.look: analysis for analysis in report.looks if analysis.look is not None}
    rows = []
    for look, (n_blocks, threshold) in enumerate(zip(report.plan.looks, report.plan.thresholds, strict=True)):
        analysis = made.get(look)
        found = {arm.arm: arm.primary.estimate for arm in analysis.arms} if analysis else {}
        ps = [p_words(one.p) if (one := found.get(name)) else "not made" for name in names]
        rows.append((f"{look + 1}", f"{n_blocks} blocks", threshold_words(threshold), *ps))
    columns = ("look", "after", "p below", *(f"p of {name}" for name in names))
    return Sheet("Planned looks at the primary concurrency", columns, tuple(rows), frozenset(columns[2:]))


def values_sheet(report: ExperimentReport) -> Sheet:
    """Means of each arm over its starts, with 95 % intervals: throughput and latencies at each concurrency."""
    plan = report.plan
    names = list(dict.fromkeys((plan.metric, *SHOWN_METRICS)))
    rows = []
    for cap in plan.concurrencies:
        for arm in plan.arms:
            means = {name: arm_mean(report, arm.name, name, cap) for name in names}
            n_starts = max((mean.n_starts for mean in means.values() if mean), default=0)
            rows.append((str(cap), arm.name, str(n_starts), *(mean_words(name, means[name]) for name in names)))
    heads = tuple(f"{metric_label(name)} [{METRICS[name].unit}]" for name in names)
    columns = ("at", "arm", "starts", *heads)
    right = frozenset(columns) - {"arm"}
    return Sheet("Geometric mean over starts (95 % interval)", columns, tuple(rows), right)


def mean_words(metric: str, mean: Mean | None) -> str:
    """``1,741.0 (1,730.2–1,752.1)``; a dash when it was not measured."""
    if mean is None:
        return "–"
    show = METRICS[metric].format
    if mean.low95 is None or mean.high95 is None:
        return show(mean.mean)
    return f"{show(mean.mean)} ({show(mean.low95)}–{show(mean.high95)})"


def starts_sheet(report: ExperimentReport) -> Sheet:
    """Every start in the order they ran: what it measured at the primary concurrency, and whether it counts."""
    plan = report.plan
    value_head = f"{metric_label(plan.metric)} at {plan.primary_concurrency} [{METRICS[plan.metric].unit}]"
    columns = ("start", "block", "arm", "loaded", "trial", value_head, "counts", "remarks")
    rows = tuple(_start_row(report, x, start) for x, start in enumerate(report.starts, start=1))
    right = frozenset(("start", "block", "trial", value_head))
    return Sheet("Every start in the order they ran", columns, rows, right)


def _start_row(report: ExperimentReport, x: int, start: StartReport) -> tuple[str, ...]:
    record, plan = start.record, report.plan
    value = value_of(start, plan.metric, plan.primary_concurrency)
    again = f"repeat {record.attempt}" if record.attempt else ""
    remarks = "; ".join((*([again] if again else []), *record.reasons, *record.flags))
    trial = "–" if record.trial_id is None else str(record.trial_id)
    counts = "yes" if record.status == "ok" else record.status
    block = str(record.planned.block + 1)
    return (
        str(x),
        block,
        start.arm,
        short(start.loaded_digest),
        trial,
        METRICS[plan.metric].format(value),
        counts,
        remarks,
    )


def provenance_sheet(report: ExperimentReport) -> Sheet:
    """Under which facts the numbers were taken; a fact that changed between starts shows every value."""
    plan = report.plan
    rows = [("target", plan.target), ("host", plan.host)]
    rows += [(f"digest of {arm.name}", arm.digest) for arm in plan.arms]
    rows += [(_fact_label(name), " → ".join(values)) for name, values in facts_seen(report.starts).items()]
    rows += [
        (f"autotuned in {arm}: {kernel} {key}".rstrip(), _winner_words(configs))
        for (arm, kernel, key), configs in winners_seen(report.starts).items()
    ]
    rows.append(("workload", _workload_words(report)))
    clients = dict.fromkeys(start.client for start in report.starts if start.client)
    rows.append(("load client", " → ".join(clients) or "not recorded"))
    rows.append(("orch", report.orch_version))
    return Sheet("Provenance", ("fact", "value"), tuple(rows))


_FACT_LABELS = {
    "cpu_model": "CPU",
    "n_cpus": "CPUs",
    "memory_bytes": "memory [bytes]",
    "gpu_uuids": "GPU uuid",
    "gpu_names": "GPU",
    "driver_version": "GPU driver",
    "power_limits_w": "power limit [W]",
}


def _fact_label(name: str) -> str:
    return _FACT_LABELS.get(name, name.replace("_", " ").removesuffix(" version"))


def _winner_words(configs: Mapping[str, int]) -> str:
    """The config that won in every start, or each one with its number of starts."""
    if len(configs) == 1:
        return next(iter(configs))
    return " → ".join(f"{config} ({n} start{'s' * (n != 1)})" for config, n in configs.items())


def _workload_words(report: ExperimentReport) -> str:
    load = report.workload
    if load is None:
        return report.plan.workload
    return (
        f"{load.name}: {load.input_tokens} tokens in, {load.output_tokens} out; {load.prompts_per_concurrency} × "
        f"concurrency requests after {load.warmup_per_concurrency} × concurrency warm-up; seed {load.seed}; "
        f"prefix cache: {load.cache_policy}"
    )


def plan_sheet(report: ExperimentReport) -> Sheet:
    """The design as it was stored before the first start."""
    plan = report.plan
    rows = [
        ("metric", metric_title(plan.metric)),
        ("primary concurrency", str(plan.primary_concurrency)),
        ("concurrencies in each start", ", ".join(str(cap) for cap in plan.concurrencies)),
        ("margin", f"± {margin_words(plan.margin)}"),
        ("arms", ", ".join(arm.name for arm in plan.arms)),
        ("seed of the order", str(plan.seed)),
        ("blocks complete", f"{report.analysis.n_blocks if report.analysis else 0} of at most {plan.n_blocks}"),
        ("starts run", f"{len(report.starts)}, {_n_set_aside(report.starts)} of them set aside or failed"),
        ("repeats allowed", str(plan.max_repeats)),
    ]
    noise = [_noise_words(arm) for arm in (report.analysis.arms if report.analysis else ())]
    if any(noise):
        rows.append(("noise of one pair (SD)", "; ".join(filter(None, noise))))
    return Sheet("Plan", ("what", "value"), tuple(rows))


def _n_set_aside(starts: Sequence[StartReport]) -> int:
    return sum(start.record.status in ("set-aside", "failed") for start in starts)


def _noise_words(arm: ArmAnalysis) -> str:
    found = arm.primary.estimate
    if found is None:
        return ""
    order = f"order effect {percent(1 + found.order_log)}, p = {p_words(found.order_p)}"
    return f"{arm.arm} {percent_words(found.sigma_d)} at the primary ({order})"
