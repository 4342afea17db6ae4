"""Claims → checks: each simulated or worked out anew, with its Monte-Carlo interval and whether the claim holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.simulation.claims import Claim, Group, claims

N_QUICK, N_FULL = 100_000, 400_000
"""Trials of one rate."""

SURE = 3.29
"""Normal quantile of a 99.9 % interval: a true claim fails once in a thousand, so once in about 40 runs of all."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, looked at.

    Attributes:
        group, name, claimed, unit: of the claim. value: found, in ``unit``.
        low, high: 99.9 % Monte-Carlo interval of it; both the value itself for an exact number.
        n_trials: None for an exact number. has_passed: the interval meets the promised bounds.
    """

    group: Group
    name: str
    claimed: str
    unit: str
    value: float
    low: float
    high: float
    n_trials: int | None
    has_passed: bool


def check_all(seed: int, n_trials: int = N_QUICK, tell: Callable[[str], None] = lambda _: None) -> list[Check]:
    """Checks every claim. The same seed and trials give the same numbers; each claim has random numbers of its own.

    Args:
        n_trials: of each rate; slow ones get their share of it. tell: is given each claim's name before it is checked.
    """
    import numpy as np

    all_claims = claims()
    checks = []
    for claim, source in zip(all_claims, np.random.SeedSequence(seed).spawn(len(all_claims)), strict=True):
        tell(claim.name)
        checks.append(check(claim, source.generate_state(4).tolist(), n_trials))
    return checks


def check(claim: Claim, seed: int | list[int], n_trials: int) -> Check:
    """Checks one claim."""
    import numpy as np

    if claim.rate is None or claim.exact is not None:
        value = claim.exact() if claim.exact is not None else math.nan
        return _checked(claim, value, value, value, None)
    found = claim.rate(np.random.default_rng(seed), max(1, round(n_trials * claim.share)))
    low, high = wilson(int(found.sum()), len(found))
    return _checked(claim, 100 * float(found.mean()), 100 * low, 100 * high, len(found))


def wilson(n_hits: int, n_trials: int) -> tuple[float, float]:
    """99.9 % interval of a rate. Source: Wilson, J. Am. Statist. Assoc. 22 (1927) 209."""
    rate, square = n_hits / n_trials, SURE**2 / n_trials
    centre = (rate + square / 2) / (1 + square)
    half = math.sqrt(square * rate * (1 - rate) + square**2 / 4) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def _checked(claim: Claim, value: float, low: float, high: float, n_trials: int | None) -> Check:
    slack = 1e-9
    has_passed = low <= claim.high + slack and high >= claim.low - slack
    return Check(claim.group, claim.name, claim.claimed, claim.unit, value, low, high, n_trials, has_passed)
