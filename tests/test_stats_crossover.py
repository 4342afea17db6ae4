"""The estimate of a crossover: the textbook's numbers, whatever the order of the pairs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from orchestrator import stats
from orchestrator.errors import ComparisonError
from orchestrator.stats.crossover import fit, studentised

SIGNS = (
    st.integers(4, 12)
    .flatmap(lambda n: st.lists(st.sampled_from([1, -1]), min_size=n, max_size=n))
    .filter(lambda signs: abs(sum(signs)) < len(signs))
)


def noise(n: int, seed: int = 0) -> list[float]:
    """Normal numbers with an SD of 1 %."""
    return (np.random.default_rng(seed).normal(size=n) * 0.01).tolist()


@given(signs=SIGNS, seed=st.integers(0, 1000))
def test_it_is_least_squares(signs: list[int], seed: int) -> None:
    """Effect, order effect, errors, p and noise are those of a general solver, also when the orders are unbalanced."""
    d = np.array(noise(len(signs), seed))
    design = np.column_stack([np.ones(len(signs)), signs])
    solution, squares, _, _ = np.linalg.lstsq(design, d, rcond=None)
    variance = squares[0] / (len(signs) - 2)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    p = 2 * oracle.t.sf(np.abs(solution / errors), len(signs) - 2)
    found = stats.estimate(d.tolist(), signs)
    assert (found.n_pairs, found.df) == (len(signs), len(signs) - 2)
    assert [found.log_ratio, found.order_log] == pytest.approx(solution, rel=1e-6, abs=1e-12)
    assert found.se == pytest.approx(errors[0])
    assert [found.p, found.order_p] == pytest.approx(p, rel=1e-6)
    assert found.sigma_d == pytest.approx(math.sqrt(variance))


def test_intervals() -> None:
    """The ratio and its 95 and 90 % intervals, from t with n − 2 degrees of freedom."""
    d, signs = noise(6), [1, -1, -1, 1, 1, -1]
    found = stats.estimate(d, signs)
    assert found.ratio == pytest.approx(math.exp(sum(d) / 6))
    for level, low, high in ((0.95, found.low95, found.high95), (0.90, found.low90, found.high90)):
        ends = oracle.t.interval(level, 4, loc=found.log_ratio, scale=found.se)
        assert [low, high] == pytest.approx(np.exp(ends))


@given(seed=st.integers(0, 500), effect=st.floats(-0.05, 0.05), order=st.floats(-0.05, 0.05))
def test_the_order_effect_is_taken_out(seed: int, effect: float, order: float) -> None:
    """Being started second moves neither the effect nor its noise, and the effect moves not the order's."""
    d, signs = np.array(noise(8, seed)), np.array([1, -1] * 4)
    bare, moved = (stats.estimate(x.tolist(), signs.tolist()) for x in (d, d + effect + order * signs))
    assert moved.log_ratio == pytest.approx(bare.log_ratio + effect, abs=1e-9)
    assert moved.order_log == pytest.approx(bare.order_log + order, abs=1e-9)
    assert moved.sigma_d == pytest.approx(bare.sigma_d)


def test_what_has_no_estimate() -> None:
    """Two pairs leave nothing for the noise, and pairs of one order nothing for the order."""
    for signs in ([1, -1], [1, 1, 1, 1], [], [-1, -1, -1]):
        with pytest.raises(ComparisonError, match="no estimate"):
            stats.estimate(noise(len(signs)), signs)


def test_no_noise_at_all() -> None:
    """Equal values are no difference with certainty, a constant gain is one with certainty; nothing is not a number."""
    same, gain = (stats.estimate([d] * 6, [1, -1] * 3) for d in (0.0, 0.5))
    assert (same.p, same.order_p, same.ratio, same.low95) == (1.0, 1.0, 1.0, 1.0)
    assert (gain.p, gain.low95) == (0.0, pytest.approx(math.exp(0.5)))


@pytest.mark.parametrize("signs", [[1, -1] * 3, [1, -1, 1, -1, 1, 1, -1]])
def test_the_sign_flip_test_counts_every_pattern(signs: list[int]) -> None:
    """Its p is the share of all sign patterns whose effect is at least as large."""
    d = noise(len(signs), 3)
    effect = abs(stats.estimate(d, signs).log_ratio)
    patterns = list(product([1, -1], repeat=len(signs)))
    as_large = sum(
        abs(stats.estimate([f * x for f, x in zip(flips, d, strict=True)], signs).log_ratio) >= effect - 1e-12
        for flips in patterns
    )
    assert stats.estimate(d, signs).sign_flip_p == pytest.approx(as_large / len(patterns))


def test_the_sign_flip_test_has_its_limits() -> None:
    """Six pairs reach 2 ÷ 64 at best; fewer than 6 or more than 20 are not tested."""
    assert stats.estimate([0.02, 0.021, 0.019, 0.022, 0.02, 0.018], [1, -1] * 3).sign_flip_p == 2 / 64
    assert stats.estimate(noise(5), [1, -1, 1, -1, 1]).sign_flip_p is None
    assert stats.estimate(noise(20), [1, -1] * 10).sign_flip_p is not None
    assert stats.estimate(noise(22), [1, -1] * 11).sign_flip_p is None


@given(signs=SIGNS, seed=st.integers(0, 200))
def test_studentised_residuals(signs: list[int], seed: int) -> None:
    """Each is the distance of a pair to what the other pairs predict, in its own standard error."""
    d, s = np.array(noise(len(signs), seed)), np.array(signs)
    for i, residual in enumerate(studentised(fit(d, s))):
        others = np.delete(np.arange(len(s)), i)
        if len(others) < 3 or abs(s[others].sum()) == len(others):
            continue
        rest = fit(d[others], s[others])
        design = np.column_stack([np.ones(len(others)), s[others]])
        x = np.array([1, s[i]])
        spread = rest.sigma_d * np.sqrt(1 + x @ np.linalg.inv(design.T @ design) @ x)
        assert residual == pytest.approx((d[i] - rest.log_ratio - rest.order_log * s[i]) / spread, rel=1e-5, abs=1e-9)


def test_many_series_at_once() -> None:
    """An array of series is fitted as each by itself."""
    d, signs = np.array([[noise(6, 10 * i + j) for j in range(3)] for i in range(2)]), np.array([1, -1] * 3)
    fitted = fit(d, signs)
    assert fitted.p.shape == (2, 3)
    assert fitted.p[1, 2] == pytest.approx(stats.estimate(d[1, 2].tolist(), signs.tolist()).p)
