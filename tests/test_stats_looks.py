"""Looking several times costs 5 % in all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as oracle

from orchestrator import stats
from orchestrator.errors import UsageError
from orchestrator.stats.crossover import fit
from orchestrator.stats.looks import spent

GOLDEN = {
    (6, 8, 10): (0.0114, 0.0217, 0.0345),
    (4, 6, 8): (0.0056, 0.0192, 0.0356),
    (4, 8): (0.0056, 0.0456),
}


@pytest.mark.parametrize("looks", GOLDEN, ids=str)
def test_golden_thresholds(looks: tuple[int, ...]) -> None:
    """The nominal p that the documents name, and together they spend 5 %."""
    found = stats.look_thresholds(looks)
    assert found == pytest.approx(GOLDEN[looks], abs=0.00006)
    assert stats.overall_error(looks, found) == pytest.approx(0.05, abs=1e-6)


def test_one_look_is_the_plain_test() -> None:
    """A single look may spend everything."""
    assert stats.look_thresholds((8,)) == (0.05,)
    assert stats.look_thresholds((8,), n_variants=3) == pytest.approx((0.05,))


def test_the_first_look_spends_what_it_may() -> None:
    """2·(1 − Φ(1.96 ÷ √0.6)) at 6 of 10 pairs."""
    assert stats.look_thresholds((6, 8, 10))[0] == pytest.approx(2 * oracle.norm.sf(1.959964 / 0.6**0.5), rel=1e-5)
    assert spent(0.05, 1) == 0.05


def test_a_simulation_of_the_crossover_agrees() -> None:
    """The integration's error rates are those of the real analysis of made-up pairs, look by look."""
    looks, thresholds, n_trials = (4, 6, 10), (0.02, 0.02, 0.03), 60_000
    d = np.random.default_rng(4).normal(size=(n_trials, 10))
    signs = np.array([1, -1] * 5)
    ever = np.zeros(n_trials, dtype=bool)
    for n, p in zip(looks, thresholds, strict=True):
        ever |= fit(d[:, :n], signs[:n]).p < p
    assert ever.mean() == pytest.approx(stats.overall_error(looks, thresholds), abs=3.5 * (0.05 / n_trials) ** 0.5)


@pytest.mark.parametrize("n_variants", [2, 3])
def test_shared_thresholds_hold_at_every_step(n_variants: int) -> None:
    """Divided by the number of variants left, they spend at most that part of 5 %: at the first step exactly."""
    looks = (6, 8, 10)
    thresholds = stats.look_thresholds(looks, n_variants=n_variants)
    for n_left in range(1, n_variants + 1):
        error = stats.overall_error(looks, [p / n_left for p in thresholds])
        assert error <= 0.05 / n_left + 1e-6
    assert error == pytest.approx(0.05 / n_variants, rel=1e-4)


def test_the_hand_made_thresholds_of_the_design() -> None:
    """The thresholds that an early simulation gave (0.0115, 0.0219, 0.0346) cost 5.0 % in all."""
    assert stats.overall_error((6, 8, 10), (0.0115, 0.0219, 0.0346)) == pytest.approx(0.0503, abs=0.0001)
    assert stats.overall_error((4, 6, 8), (0.0054, 0.0191, 0.0357)) == pytest.approx(0.0499, abs=0.0001)


@pytest.mark.parametrize("looks", [(), (5, 8), (8, 6), (2, 4), (6, 6)], ids=str)
def test_looks_that_cannot_be(looks: tuple[int, ...]) -> None:
    """Odd, falling, equal or too few pairs are refused."""
    with pytest.raises(UsageError, match="looks"):
        stats.look_thresholds(looks)
