"""Several comparisons judged at once: adjusted p, and the rules from an estimate to a verdict.

Every rule takes arrays as well as single numbers, so that a simulation runs the very rules that decide.
A *better* log-ratio is turned so that above 0 is better in the metric's own direction.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from orchestrator.designs import Estimate, VerdictWord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

MIN_PAIRS = 4
"""With three starts an arm no exact rank or permutation test can reach 5 % at all."""

LEAST_CHANCE = 0.05
"""Below this chance of FASTER at the last look, going on is hopeless."""


def holm(p: Floats) -> Floats:
    """p adjusted for the number of comparisons along the last axis; one that is nan counts as not made.

    Source: Holm, Scand. J. Statist. 6 (1979) 65.
    """
    import numpy as np

    order = np.argsort(p, axis=-1)  # nan last
    n_made = np.sum(~np.isnan(p), axis=-1, keepdims=True)
    factors = np.maximum(n_made - np.arange(p.shape[-1]), 1)
    adjusted = np.maximum.accumulate(np.take_along_axis(p, order, axis=-1) * factors, axis=-1)
    out = np.empty_like(p)
    np.put_along_axis(out, order, np.minimum(adjusted, 1.0), axis=-1)
    return out


def adjusted(p: Floats, threshold: float | None) -> Floats:
    """p of all comparisons of an experiment, adjusted so that each is compared with the look's threshold.

    Each variant has its share of the error. In it the primary comparison goes first; the others, by Holm among
    themselves, cannot pass before it. A variant of which every comparison passes hands its share on, so with one
    concurrency this is Holm over the variants. It holds the error of the whole family whatever is true. Sources:
    Westfall & Krishen, J. Stat. Plan. Inference 99 (2001) 25 (sequence); Bretz, Maurer, Brannath & Posch, Statist. Med.
    28 (2009) 586 (handing on).

    Args:
        p: shape (…, variants, concurrencies), the primary concurrency first; nan where there is no estimate.
        threshold: of the look; None between looks, where nothing is handed on.
    """
    import numpy as np

    n_variants = p.shape[-2]
    within = np.concatenate([p[..., :1], np.maximum(p[..., :1], holm(p[..., 1:]))], axis=-1)
    factor = np.full((*p.shape[:-2], 1, 1), float(n_variants))
    for _ in range(n_variants - 1 if threshold is not None else 0):
        n_passed = (factor * within < threshold).all(axis=-1, keepdims=True).sum(axis=-2, keepdims=True)
        factor = np.maximum(n_variants - n_passed, 1.0)
    return np.asarray(np.minimum(factor * within, 1.0))


def verdict(
    estimate: Estimate, p_adjusted: float, threshold: float, margin: float, is_higher_better: bool
) -> VerdictWord:
    """What an estimate says at a look, whose nominal p is ``threshold``."""
    if p_adjusted < threshold:
        return "FASTER" if (estimate.log_ratio > 0) == is_higher_better else "SLOWER"
    if is_equivalent(estimate.log_ratio, estimate.se, estimate.df, margin, threshold):
        return "EQUIVALENT"
    return "INCONCLUSIVE"


def is_equivalent(log_ratio: Any, se: Any, df: int, margin: float, level: float) -> Any:
    """Two one-sided tests at ``level``: the interval of confidence 1 − 2·level lies inside ±margin.

    Source: Schuirmann, J. Pharmacokin. Biopharm. 15 (1987) 657.
    """
    half = _one_sided_t(df, level) * se
    return (log_ratio - half > math.log1p(-margin)) & (log_ratio + half < math.log1p(margin))


def is_not_worse(log_ratio: Any, se: Any, df: int, margin: float, is_higher_better: bool, level: float = 0.05) -> Any:
    """One-sided at ``level``: not worse than the margin. Every concurrency has to pass, so that needs no correction.

    Source: Berger, Technometrics 24 (1982) 295 (intersection-union test).
    """
    half = _one_sided_t(df, level) * se
    if is_higher_better:
        return log_ratio - half > math.log1p(-margin)
    return log_ratio + half < math.log1p(margin)


def chance_at_last_look(better: Any, sigma_d: Any, n_pairs: int, n_last: int, threshold: float, margin: float) -> Any:
    """Conditional power: the chance that the last look says FASTER, given what has been seen.

    The true effect is taken to be the margin, or what has been seen where that is more: the hopeful reading. The noise
    is taken as seen. Source: Lan, Simon & Halperin, Commun. Statist. C 1 (1982) 207 (stochastic curtailment).

    Args:
        better: log-ratio so far, above 0 is better. sigma_d: SD of one paired log-ratio. threshold: of the last look.
    """
    import numpy as np
    from scipy import special

    n_left = n_last - n_pairs
    critical = _one_sided_t(n_last - 2, threshold / 2)
    hoped = np.maximum(better, math.log1p(margin))
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = n_pairs * better + n_left * hoped - critical * sigma_d * math.sqrt(n_last)
        return special.ndtr(ahead / (sigma_d * math.sqrt(n_left)))


def _one_sided_t(df: int, level: float) -> float:
    from scipy import special

    return float(-special.stdtrit(df, level))
