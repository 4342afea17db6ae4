"""The nominal p at each planned look, so that looking several times costs 5 % in all and not 5 % each time.

Spending: after the share t = n ÷ n_last of the pairs, 2·(1 − Φ(z(α/2) ÷ √t)) of the error may have been spent, which is
little at first and nearly all at the end. Source: Lan & DeMets, Biometrika 70 (1983) 659, their α₁*, of the shape of
O'Brien & Fleming.

From spending to thresholds: the t statistics of the looks share their data, and are no normal ones at 2 to 8 degrees
of freedom, so their joint distribution is worked out (own). Take the order effect out; n pairs, balanced, leave a
vector of n − 1 normal numbers whose direction is uniform, and the effect is one axis. Let u be the cosine to that axis:
t = u·√(n−2) ÷ √(1−u²). From one look to the next, m pairs later, u' = √(n/n')·√B·u + √(m/n')·√(1−B)·v, where
B ~ Beta((n−1)/2, m/2) is the old share of the squared length and v is the cosine of the m new numbers' direction to
the axis; u, B and v are independent. So u is a Markov chain, and one numerical integration a look suffices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEAST_LOOK = 4
"""Below 4 complete pairs no verdict is given."""

N_CELLS, N_NODES = 300, 48
"""Cells of the grid of angles, and nodes over B: thresholds change by less than 0.00002 when both are doubled."""


def look_thresholds(looks: Sequence[int], *, n_variants: int = 1, alpha: float = 0.05) -> tuple[float, ...]:
    """Nominal two-sided p below which a look may reject, so that all looks together reject a true "same" at ``alpha``.

    Args:
        looks: numbers of complete blocks, rising, even, from 4.
        n_variants: that share the blocks. Holm compares the smallest p times ``n_variants`` with the threshold, so the
            thresholds are those for ``alpha ÷ n_variants``, times ``n_variants``: then that step holds exactly, and the
            later steps err to the safe side.

    Raises:
        UsageError: the looks are not rising even numbers from 4.
    """
    _refuse_bad(looks)
    return tuple(n_variants * p for p in _thresholds(tuple(looks), alpha / n_variants))


def overall_error(looks: Sequence[int], thresholds: Sequence[float]) -> float:
    """The chance that at least one look rejects when there is no difference, for one variant.

    Raises:
        UsageError: the looks are not rising even numbers from 4.
    """
    _refuse_bad(looks)
    survival = _Survival()
    for look, p in zip(looks, thresholds, strict=True):
        survival.move_to(look)
        survival.stop_below(p)
    return 1 - survival.alive


def spent(alpha: float, share: float) -> float:
    """How much of ``alpha`` may have been spent after this share of the pairs."""
    from scipy import special

    if share == 1:
        return alpha
    return float(2 * special.ndtr(special.ndtri(alpha / 2) / math.sqrt(share)))


def _refuse_bad(looks: Sequence[int]) -> None:
    rising = all(a < b for a, b in pairwise(looks))
    if not looks or not rising or any(look % 2 or look < LEAST_LOOK for look in looks):
        raise UsageError(
            f"looks at {', '.join(map(str, looks)) or 'no'} pairs",
            next_step=f"give rising even numbers from {LEAST_LOOK}, such as 6,8,10",
        )


@lru_cache(maxsize=64)
def _thresholds(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    survival = _Survival()
    found: list[float] = []
    for look in looks:
        so_far = spent(alpha, look / looks[-1])
        survival.move_to(look)
        found.append(survival.p_that_leaves(1 - so_far) if found else so_far)
        survival.stop_below(found[-1])
    return tuple(found)


class _Survival:
    """The distribution of |u| over experiments that no look has stopped so far.

    Kept as cumulated probability over a grid of the angle arcsin |u|, in which p is smooth.
    """

    def __init__(self) -> None:
        self._n = 0
        self._angles: Floats
        self._cumulated: Floats

    @property
    def alive(self) -> float:
        """Probability that no look has stopped."""
        return float(self._cumulated[-1])

    def move_to(self, n: int) -> None:
        """Adds pairs, up to ``n``."""
        import numpy as np
        from scipy import special

        grid = np.linspace(0, math.pi / 2, N_CELLS + 1)
        if self._n == 0:
            self._cumulated = special.betainc(0.5, (n - 2) / 2, np.sin(grid) ** 2)
        else:
            masses = np.diff(self._cumulated)
            cosines = np.sin((self._angles[1:] + self._angles[:-1]) / 2)
            self._cumulated = masses @ _reached(cosines, np.sin(grid), self._n, n)
        self._n, self._angles = n, grid

    def p_that_leaves(self, alive: float) -> float:
        """The nominal p at which a stop now leaves so much of the probability."""
        import numpy as np

        return self._p(float(np.interp(alive, self._cumulated, self._angles)))

    def stop_below(self, p: float) -> None:
        """Takes out what a look at nominal ``p`` stops."""
        import numpy as np
        from scipy import special

        cut = math.asin(math.sqrt(float(special.betaincinv(0.5, (self._n - 2) / 2, 1 - p))))
        angles = np.append(self._angles[self._angles < cut], cut)
        self._cumulated = np.interp(angles, self._angles, self._cumulated)
        self._angles = angles

    def _p(self, angle: float) -> float:
        from scipy import special

        return float(special.betainc((self._n - 2) / 2, 0.5, math.cos(angle) ** 2))


def _reached(cosines: Floats, limits: Floats, n: int, n_next: int) -> Floats:
    """P(|u'| ≤ limit | u), a row for each u, by Gauss-Jacobi quadrature over B."""
    import numpy as np
    from scipy import special

    m = n_next - n
    nodes, weights = special.roots_jacobi(N_NODES, m / 2 - 1, (n - 1) / 2 - 1)
    total = np.zeros((len(cosines), len(limits)))
    for old_share, weight in zip((nodes + 1) / 2, weights / weights.sum(), strict=True):
        centre = math.sqrt(n / n_next * old_share) * cosines[:, None]
        scale = math.sqrt(m / n_next * (1 - old_share))
        total += weight * (_below((limits - centre) / scale, m) - _below((-limits - centre) / scale, m))
    return total


def _below(cosine: Floats, dimensions: int) -> Floats:
    """P(v ≤ cosine) for the cosine of a uniform direction to a fixed axis, in an even number of dimensions.

    The angle's density is proportional to cos^(dimensions − 2), whose integral has a closed recursion.
    """
    import numpy as np

    angle = np.arcsin(np.clip(cosine, -1, 1))
    integral, whole = angle, math.pi
    for power in range(2, dimensions, 2):
        integral = np.cos(angle) ** (power - 1) * np.sin(angle) / power + (power - 1) / power * integral
        whole *= (power - 1) / power
    return np.asarray(0.5 + integral / whole)
