"""Evidence that may be looked at after every pair, without a plan: a t e-process for AB/BA pairs.

A twin is one pair in each order. Its mean m = (d₊ + d₋) ÷ 2 is free of the order effect γ, its half difference
h = (d₊ − d₋) ÷ 2 is free of the effect δ; for normal noise they are independent with the same SD. The E-value is the
Bayes factor of δ ÷ σ_d ~ N(0, 1) against δ = 0, with the right Haar prior dγ dσ ÷ σ on what is not asked for. By
invariance its distribution under δ = 0 depends on neither γ nor σ, and it is a test martingale in the filtration of the
invariant statistics; by Ville's inequality P(E ever ≥ 20) ≤ 5 %, whenever the caller stops because of what E was.
Sources: Lai, Ann. Statist. 4 (1976) 265; Pérez-Ortiz, Lardy, de Heide & Grünwald, E-statistics, group invariance and
anytime-valid testing, Ann. Statist. 52 (2024) 1410; Wang & Ramdas, Anytime-valid t-tests and confidence sequences
(2023). Own: the two-component form for twins; with n = 2·twins it is a function of the crossover's t with n − 2 df.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

REJECTS_AT = 20.0
"""E at which δ = 0 is rejected at 5 %."""

PRIOR_VARIANCE = 1.0
"""Of δ ÷ σ_d. 6 to 10 pairs resolve about one σ_d, so effects of that size are what an experiment looks for."""


def e_value(differences: Sequence[float], signs: Sequence[int]) -> float | None:
    """The evidence against "no difference" after these pairs.

    Pairs are joined to twins in the order in which they came: the k-th of one order with the k-th of the other. A pair
    without a twin waits.

    Args:
        differences: ln(variant ÷ baseline) of each pair, in the order they ran. signs: +1 where the baseline was first.

    Returns:
        E, 1 for no evidence; None without a twin. One twin says nothing yet: 1.
    """
    forward, backward = ([d for d, s in zip(differences, signs, strict=True) if s == sign] for sign in (1, -1))
    twins = list(zip(forward, backward, strict=False))
    if not twins:
        return None
    n = len(twins)
    means, halves = [(a + b) / 2 for a, b in twins], [(a - b) / 2 for a, b in twins]
    effect_squares = n * (math.fsum(means) / n) ** 2
    return float(bayes_factor(effect_squares, _squares(means) + _squares(halves), n))


def bayes_factor(effect_squares: Any, noise_squares: Any, n_twins: int) -> Any:
    """The Bayes factor of n twins, from n·m̄² and the sum of squares of means and half differences about their means.

    Takes numbers or arrays. Without any noise or effect there is nothing to learn from: below 1.
    """
    import numpy as np

    spread, total = 2 * n_twins * PRIOR_VARIANCE, effect_squares + noise_squares
    share = effect_squares / np.where(total > 0, total, 1.0) * spread / (1 + spread)
    return (1 + spread) ** -0.5 * (1 - share) ** -(n_twins - 0.5)


def _squares(values: Sequence[float]) -> float:
    """Sum of squares about the mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
