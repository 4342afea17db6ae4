"""What an experiment can see: power of the crossover's t test, from the noncentral t distribution.

σ_d is the SD of one paired log-ratio, the order term taken out; effects are logs. With n pairs, both orders equally
often, the estimate has the standard error σ_d ÷ √n and n − 2 degrees of freedom.
"""

from __future__ import annotations

import math

from orchestrator.errors import UsageError
from orchestrator.stats.crossover import critical_t

LEAST_PAIRS_PLANNED = 4


def power_of(effect: float, n_pairs: int, sigma_d: float, alpha: float = 0.05) -> float:
    """Chance that a two-sided test at ``alpha`` rejects, when the true log-ratio is ``effect``.

    Source: Johnson, Kotz & Balakrishnan, Continuous Univariate Distributions 2, ch. 31 (noncentral t).
    """
    from scipy import special

    df, critical = n_pairs - 2, critical_t(n_pairs - 2, alpha)
    shift = abs(effect) * math.sqrt(n_pairs) / sigma_d
    right = 1 - special.nctdtr(df, shift, critical)
    wrong_way = 1 - special.nctdtr(df, -shift, critical) if shift < 4 else 0.0  # below 1e-6, and scipy gives nan there
    return float(right + wrong_way)


def detectable(n_pairs: int, sigma_d: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """The log-ratio that ``n_pairs`` pairs show with this power, at one planned look.

    Raises:
        UsageError: fewer than 4 pairs, or a noise that is not above 0.
    """
    from scipy import optimize

    if n_pairs < LEAST_PAIRS_PLANNED or not sigma_d > 0:
        raise UsageError(f"no detectable effect for {n_pairs} pairs and a noise of {sigma_d}")
    return sigma_d * float(
        optimize.brentq(lambda effect: power_of(effect, n_pairs, 1.0, alpha) - power, 0.0, 50.0, xtol=1e-6)
    )


def pairs_needed(effect: float, sigma_d: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """The least even number of pairs, 4 or more, that shows a log-ratio of ``effect`` with this power.

    Even, because blocks are planned in twins. One planned look is assumed; three looks need about 5 % more.

    Raises:
        UsageError: the effect is 0 or not finite, or the noise is.
    """
    if not (math.isfinite(effect) and math.isfinite(sigma_d) and effect != 0):
        raise UsageError(f"no number of pairs shows an effect of {effect} under a noise of {sigma_d}")
    if sigma_d == 0:
        return LEAST_PAIRS_PLANNED
    high = LEAST_PAIRS_PLANNED
    while power_of(effect, high, sigma_d, alpha) < power:
        high *= 2
    low = high // 2  # is too few, unless high is still the least
    while high - low > 2 and high > LEAST_PAIRS_PLANNED:
        middle = (low + high) // 4 * 2
        low, high = (low, middle) if power_of(effect, middle, sigma_d, alpha) >= power else (middle, high)
    return high


def sigma_upper(sigma_d: float, df: int, confidence: float = 0.95) -> float:
    """The one-sided upper bound of a noise that was estimated with ``df`` degrees of freedom (χ² distribution)."""
    from scipy import special

    return sigma_d * math.sqrt(df / float(special.chdtri(df, confidence)))
