"""Paired log-ratios of one variant and one concurrency → its estimate, by the analysis of an AB/BA crossover.

The model of pair i is d_i = δ + γ·s_i + noise: d_i is ln(variant ÷ baseline), s_i is +1 where the baseline was started
first and −1 where the variant was, δ is the effect that is asked for and γ the effect of being started second. Least
squares; t with n − 2 degrees of freedom. Source: Jones & Kenward, Design and Analysis of Cross-Over Trials, 3rd ed.,
section 2.3 (the model; own closed form, which holds for unequal numbers of the two orders too).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.designs import Estimate
from orchestrator.errors import ComparisonError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_PAIRS = 3
"""One more than the model has terms, so that there is a degree of freedom for the noise."""

LEAST_FLIPPED, MOST_FLIPPED = 6, 20
"""The sign-flip test is made of so many pairs: below, it cannot reach 5 %; above, 2^n is too many to count."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares of one or of many series of pairs. Arrays have the shape of the series; logs are natural.

    Attributes:
        n_pairs, df: of each series. log_ratio, se: δ and its standard error. sigma_d: SD of the noise of one pair.
        p: two-sided, of δ = 0. order_log: γ. order_p: two-sided, of γ = 0.
        residuals: shape (…, pairs). leverages: of the pairs.
    """

    n_pairs: int
    df: int
    log_ratio: Floats
    se: Floats
    sigma_d: Floats
    p: Floats
    order_log: Floats
    order_p: Floats
    residuals: Floats
    leverages: Floats


def fit(differences: Floats, signs: Floats) -> Fit:
    """Fits the crossover model to series of pairs that share their order.

    Args:
        differences: shape (…, pairs), natural logs. signs: shape (pairs,), +1 or −1, both present.

    Raises:
        ComparisonError: fewer than 3 pairs, or every pair began with the same arm.
    """
    import numpy as np

    n, balance = len(signs), float(np.sum(signs))
    determinant = n * n - balance * balance
    if n < LEAST_PAIRS or determinant == 0:
        raise ComparisonError(
            f"no estimate from {n} pairs, {int((n + balance) / 2)} of them begun with the baseline",
            next_step=f"at least {LEAST_PAIRS} complete pairs are needed, in both orders",
        )
    sums, signed_sums = differences.sum(axis=-1), differences @ signs
    effect, order = (
        (n * sums - balance * signed_sums) / determinant,
        (n * signed_sums - balance * sums) / determinant,
    )
    residuals = differences - effect[..., None] - order[..., None] * signs
    sigma = np.sqrt((residuals**2).sum(axis=-1) / (n - 2))
    se = sigma * np.sqrt(n / determinant)
    leverages = 2 * (n - balance * signs) / determinant
    return Fit(n, n - 2, effect, se, sigma, _p(effect, se, n - 2), order, _p(order, se, n - 2), residuals, leverages)


def estimate(differences: Sequence[float], signs: Sequence[int]) -> Estimate:
    """The variant against the baseline from its complete pairs.

    Args:
        differences: ln(variant ÷ baseline) of each pair. signs: +1 where the baseline was started first, else −1.

    Returns:
        The estimate; ``sign_flip_p`` is None below 6 pairs, where it could not reach 5 %, and above 20.

    Raises:
        ComparisonError: fewer than 3 pairs, or every pair began with the same arm.
    """
    import numpy as np

    d, s = np.asarray(differences, dtype=float), np.asarray(signs, dtype=float)
    fitted = fit(d, s)
    log_ratio, se = float(fitted.log_ratio), float(fitted.se)
    half95, half90 = (quantile * se for quantile in (critical_t(fitted.df, 0.05), critical_t(fitted.df, 0.10)))
    return Estimate(
        n_pairs=fitted.n_pairs,
        df=fitted.df,
        log_ratio=log_ratio,
        se=se,
        sigma_d=float(fitted.sigma_d),
        ratio=math.exp(log_ratio),
        low95=math.exp(log_ratio - half95),
        high95=math.exp(log_ratio + half95),
        low90=math.exp(log_ratio - half90),
        high90=math.exp(log_ratio + half90),
        p=float(fitted.p),
        order_log=float(fitted.order_log),
        order_p=float(fitted.order_p),
        sign_flip_p=sign_flip_p(d, s),
    )


def sign_flip_p(differences: Floats, signs: Floats) -> float | None:
    """Exact two-sided p of the least-squares effect over all sign patterns of the pairs.

    Exact when the noise is symmetric and the order has no effect; with an order effect it errs to the safe side, since
    the flipped series contain it and the true one has it taken out. It assumes no normal distribution.

    Returns:
        None below 6 pairs (2 ÷ 2^n is above 5 % or there is no room to disagree) and above 20.
    """
    import numpy as np

    n = len(signs)
    if not LEAST_FLIPPED <= n <= MOST_FLIPPED:
        return None
    terms = differences * (n - np.sum(signs) * signs)
    sums = np.array([terms[0]])  # the first sign may stay: flipping all of them gives the same size
    for term in terms[1:]:
        sums = np.concatenate([sums + term, sums - term])
    seen = abs(terms.sum())
    return float(np.mean(np.abs(sums) >= seen * (1 - 1e-12)))


def studentised(fitted: Fit) -> Floats:
    """Residuals of one series ÷ their own SD from the other pairs: t with df − 1; 0 where the others cannot say.

    Source: Cook & Weisberg, Residuals and Influence in Regression (1982), section 2.2.1.
    """
    import numpy as np

    if fitted.df < 2:
        return np.zeros_like(fitted.residuals)
    room = 1 - fitted.leverages
    room = np.where(room > 1e-9, room, np.inf)  # the only pair of its order is fitted exactly
    total = fitted.df * fitted.sigma_d**2
    others = np.maximum((total - fitted.residuals**2 / room) / (fitted.df - 1), 1e-30)
    return np.asarray(fitted.residuals / np.sqrt(others * room))


def critical_t(df: int, level: float) -> float:
    """The two-sided critical value of t: P(|t| > it) = level."""
    from scipy import special

    return float(-special.stdtrit(df, level / 2))


def _p(value: Floats, se: Floats, df: int) -> Floats:
    """Two-sided p of a value; without any noise 1 for a value of 0 and 0 for every other."""
    import numpy as np
    from scipy import special

    with np.errstate(divide="ignore", invalid="ignore"):
        t: Any = np.abs(np.where(value == 0, 0.0, value / se))
    return np.asarray(2 * special.stdtr(df, -t))
