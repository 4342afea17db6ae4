"""The e-process: evidence that may be looked at whenever one likes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats as oracle

from orchestrator import stats
from orchestrator.simulation.claims import _ever_rejects

PAIRS = st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=12).map(lambda d: [round(x, 4) for x in d])


def signs_of(n: int) -> list[int]:
    """Both orders in turn."""
    return [1 if i % 2 == 0 else -1 for i in range(n)]


def test_it_is_the_bayes_factor() -> None:
    """The closed form is what integrating the noise and the effect out gives, with the order effect taken out."""
    d, signs = np.array([0.021, 0.012, 0.03, 0.004, 0.018, 0.011]), np.array(signs_of(6))
    means, halves = (d[::2] + d[1::2]) / 2, (d[::2] - d[1::2]) / 2
    squares = float(((halves - halves.mean()) ** 2).sum())

    tau = np.exp(np.linspace(-9, 0, 801))[:, None]  # evenly over ln τ, which is what dτ ÷ τ says
    of_halves = tau**-2 * np.exp(-squares / (2 * tau**2))  # the order effect integrated out

    def integral(effect: NDArray[np.float64]) -> NDArray[np.float64]:
        """Over the noise, at each effect ÷ τ."""
        return np.asarray(
            (oracle.norm.pdf(means[:, None, None], effect * tau, tau).prod(axis=0) * of_halves).sum(axis=0)
        )

    effects = np.linspace(-9, 9, 801)
    prior = oracle.norm(0, np.sqrt(2)).pdf(effects)  # of δ ÷ τ, as τ = σ_d ÷ √2
    under_other, under_null = (integral(effects) * prior).sum() * 0.0225, integral(np.zeros(1))[0]
    assert stats.e_value(d.tolist(), signs.tolist()) == pytest.approx(under_other / under_null, rel=1e-4)


@given(d=PAIRS, order=st.floats(-0.1, 0.1), scale=st.floats(0.1, 10))
def test_neither_the_order_nor_the_unit_matters(d: list[float], order: float, scale: float) -> None:
    """E stays when the second start of every pair is slower, or when all differences are larger."""
    d = [x + 0.001 * i * i for i, x in enumerate(d)]
    signs = signs_of(len(d))
    moved = [scale * (x + order * s) for x, s in zip(d, signs, strict=True)]
    assert stats.e_value(moved, signs) == pytest.approx(stats.e_value(d, signs), rel=1e-4)


def test_too_little_to_say() -> None:
    """None without a twin; one twin is no evidence; a pair without a twin waits."""
    assert stats.e_value([], []) is None
    assert stats.e_value([0.02, 0.03], [1, 1]) is None
    assert stats.e_value([0.02, 0.03], [1, -1]) == pytest.approx(1.0)
    assert stats.e_value([0.02, 0.03, 0.5], [1, -1, -1]) == pytest.approx(1.0)


def test_no_noise() -> None:
    """Nothing but zeros is no evidence of a difference; a constant gain is much."""
    assert (stats.e_value([0.0] * 8, signs_of(8)) or 0) < 1
    assert (stats.e_value([0.02] * 8, signs_of(8)) or 0) > 20


def test_looking_without_end_costs_less_than_5_percent() -> None:
    """Looked at after every pair up to 100, E reaches 20 in at most 5 % of experiments without a difference."""
    rate = _ever_rejects(np.random.default_rng(3), 4000).mean()
    assert 0.005 < rate < 0.05
