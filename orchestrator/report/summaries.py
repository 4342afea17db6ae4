"""Numbers that are computed for show: means of an arm with their interval, telemetry in bins, facts put together.

No verdict rests on anything here: ratios and intervals of pairs come from the analysis. scipy is imported when asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.designs import TelemetrySample
from orchestrator.report.experiment_data import ExperimentReport, StartReport
from orchestrator.report.words import config_words


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of an arm's starts at one concurrency.

    Attributes:
        low95, high95: of the mean, from t over starts; None for one start.
    """

    n_starts: int
    mean: float
    low95: float | None
    high95: float | None


def geometric_mean(values: Sequence[float]) -> Mean | None:
    """Mean and 95 % interval on the log scale; None without values, or with one that has no logarithm."""
    if not values or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    n = len(logs)
    centre = math.fsum(logs) / n
    if n == 1:
        return Mean(1, math.exp(centre), None, None)
    from scipy.stats import t

    se = math.sqrt(math.fsum((x - centre) ** 2 for x in logs) / (n - 1) / n)
    half = float(t.ppf(0.975, n - 1)) * se
    return Mean(n, math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def value_of(start: StartReport, metric: str, concurrency: int) -> float | None:
    """The one number of a start; repeats inside it are averaged, for they are no replicates."""
    values = [load.metrics.get(metric) for load in start.loads if load.concurrency == concurrency]
    known = [value for value in values if value is not None]
    found = geometric_mean(known)
    return found.mean if found else known[0] if known else None


def arm_mean(report: ExperimentReport, arm: str, metric: str, concurrency: int) -> Mean | None:
    """Over the starts of an arm that count."""
    found = [
        value_of(one, metric, concurrency) for one in report.starts if one.arm == arm and one.record.status == "ok"
    ]
    return geometric_mean([value for value in found if value is not None])


# ---- telemetry


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples close in time, of all GPUs: lowest, mean, highest. ``at_s``: since the first sample of the experiment."""

    at_s: float
    low: float
    mean: float
    high: float


def bins(samples: Sequence[TelemetrySample], field: str, *, began_s: float, width_s: float) -> list[Bin]:
    """One start's samples of a field, in bins of so many seconds; bins without a known value are left out."""
    by_bin: dict[int, list[float]] = {}
    for sample in samples:
        value = getattr(sample, field)
        if value is not None:
            by_bin.setdefault(int((sample.at_s - began_s) // width_s), []).append(float(value))
    return [
        Bin((i + 0.5) * width_s, min(values), math.fsum(values) / len(values), max(values))
        for i, values in sorted(by_bin.items())
    ]


def all_samples(starts: Iterable[StartReport]) -> list[TelemetrySample]:
    """Of every start, in the order they ran."""
    return [sample for start in starts for sample in start.telemetry]


# ---- provenance


def facts_seen(starts: Iterable[StartReport]) -> dict[str, list[str]]:
    """Every fact with the values that it had, in the order they were first seen; more than one is a finding."""
    seen: dict[str, list[str]] = {}
    for start in starts:
        for name, value in start.facts.items():
            text = "not recorded" if value is None else str(value)
            if text not in seen.setdefault(name, []):
                seen[name].append(text)
    return seen


def changed_facts(starts: Iterable[StartReport]) -> dict[str, list[str]]:
    """The facts that were not the same at every start."""
    return {name: values for name, values in facts_seen(starts).items() if len(values) > 1}


# ---- what Triton's autotuner chose


def winners_seen(starts: Iterable[StartReport]) -> dict[tuple[str, str, str], dict[str, int]]:
    """By arm, kernel and key: every config that was chosen, in the order first seen, and in how many starts.

    More than one is a finding: the same bytes ran another kernel.
    """
    seen: dict[tuple[str, str, str], dict[str, int]] = {}
    for start in starts:
        for winner in start.winners or ():
            configs = seen.setdefault((start.arm, winner.kernel, winner.key or ""), {})
            words = config_words(winner.config)
            configs[words] = configs.get(words, 0) + 1
    return seen
