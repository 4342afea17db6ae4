"""The noise that this target's experiments have shown, and what it takes to see an effect through it: ``orch plan``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator import stats
from orchestrator.designs import Estimate
from orchestrator.report.document import analysis_from_document
from orchestrator.store import Store

POWER = 0.8
SHOWN_PAIRS = (4, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one concurrency, pooled over experiments.

    Attributes:
        sigma_d: SD of one paired log-ratio. sigma_upper: its one-sided 95 % bound. df: degrees of freedom behind it.
        n_pairs: pairs behind it. detectable: by number of pairs, the ratio − 1 that is seen with 80 % power.
        pairs_needed: pairs for the effect that was asked for, at sigma_d and at its upper bound.
    """

    concurrency: int
    sigma_d: float
    sigma_upper: float
    df: int
    n_pairs: int
    detectable: dict[int, float]
    pairs_needed: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What an experiment would take. Seconds are of the host's GPU; None where no start was measured yet.

    Attributes:
        start_s: one start without its loads. load_s: a load, by concurrency.
        experiments: whose noise was used, the newest first.
    """

    metric: str
    effect: float
    noises: tuple[Noise, ...]
    start_s: float | None
    load_s: dict[int, float]
    experiments: tuple[int, ...]

    def pair_s(self) -> float | None:
        """Seconds of one pair: two starts, each with a load at every concurrency of the experiments."""
        if self.start_s is None:
            return None
        return 2 * (self.start_s + sum(self.load_s.get(noise.concurrency, 0.0) for noise in self.noises))


def outlook(store: Store, target: str, workload: str, metric: str, effect: float) -> Outlook:
    """What the final analyses of a target say of its noise, and what that means for an effect.

    Args:
        effect: a ratio − 1; 0.02 is 2 %.
    """
    estimates: dict[int, list[Estimate]] = {}
    used = []
    for record in store.experiments(target):
        if record.plan.workload != workload or record.plan.metric != metric:
            continue
        analyses = store.analyses(record.id)
        if not analyses:
            continue
        used.append(record.id)
        for arm in analysis_from_document(analyses[-1].document).arms:
            for row in arm.rows:
                if row.estimate is not None and row.estimate.sigma_d > 0:
                    estimates.setdefault(row.concurrency, []).append(row.estimate)
    start_s, load_s, _ = store.durations(target, workload)
    noises = tuple(_noise(cap, found, effect) for cap, found in sorted(estimates.items()))
    return Outlook(metric, effect, noises, start_s, load_s, tuple(used))


def _noise(concurrency: int, found: list[Estimate], effect: float) -> Noise:
    """Variances pooled by their degrees of freedom."""
    df = sum(one.df for one in found)
    sigma_d = math.sqrt(sum(one.df * one.sigma_d**2 for one in found) / df)
    upper = stats.sigma_upper(sigma_d, df)
    log_effect = math.log1p(effect)
    return Noise(
        concurrency=concurrency,
        sigma_d=sigma_d,
        sigma_upper=upper,
        df=df,
        n_pairs=sum(one.n_pairs for one in found),
        detectable={n: math.expm1(stats.detectable(n, sigma_d, POWER)) for n in SHOWN_PAIRS},
        pairs_needed=(stats.pairs_needed(log_effect, sigma_d, POWER), stats.pairs_needed(log_effect, upper, POWER)),
    )
