"""What can be seen: golden numbers, and agreement with another implementation of the noncentral t."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from orchestrator import stats
from orchestrator.errors import UsageError

GOLDEN = {4: 2.83, 6: 1.54, 8: 1.19, 10: 1.01}


@pytest.mark.parametrize(("n_pairs", "size"), GOLDEN.items())
def test_detectable(n_pairs: int, size: float) -> None:
    """Effects at 80 % power and 5 %, in σ_d."""
    assert stats.detectable(n_pairs, 1.0) == pytest.approx(size, abs=0.006)
    assert stats.detectable(n_pairs, 0.01) == pytest.approx(size / 100, abs=0.00006)


def test_six_pairs_in_the_field() -> None:
    """With the 1 to 1.7 % of noise that people report, 6 pairs resolve about 1.5 to 2.6 %."""
    assert stats.detectable(6, 0.01) == pytest.approx(0.0154, abs=0.0001)
    assert stats.detectable(6, 0.017) == pytest.approx(0.0261, abs=0.0001)


@given(effect=st.floats(0.0, 4.0), n=st.integers(2, 20), alpha=st.sampled_from([0.01, 0.05]))
def test_power_is_that_of_the_noncentral_t(effect: float, n: int, alpha: float) -> None:
    """The chance beyond both critical values."""
    df, shift = 2 * n - 2, effect * math.sqrt(2 * n)
    critical = oracle.t.isf(alpha / 2, df)
    wrong_way = oracle.nct.cdf(-critical, df, shift) if shift < 4 else 0.0  # nan beyond
    expected = oracle.nct.sf(critical, df, shift) + wrong_way
    assert stats.power_of(effect, 2 * n, 1.0, alpha) == pytest.approx(expected, abs=1e-6)


@given(effect=st.floats(0.05, 5.0), sigma_d=st.floats(0.2, 2.0))
def test_pairs_needed_is_the_least_even_number(effect: float, sigma_d: float) -> None:
    """It has the power, and two pairs fewer have not."""
    n = stats.pairs_needed(effect, sigma_d)
    assert n % 2 == 0 and n >= 4
    assert stats.power_of(effect, n, sigma_d) >= 0.8
    assert n == 4 or stats.power_of(effect, n - 2, sigma_d) < 0.8


def test_pairs_needed_of_nothing() -> None:
    """A loss needs as many as a gain; without noise 4 do; an effect of 0 is shown by no number."""
    assert stats.pairs_needed(-0.02, 0.01) == stats.pairs_needed(0.02, 0.01)
    assert stats.pairs_needed(0.01, 0.0) == 4
    for effect in (0.0, math.nan):
        with pytest.raises(UsageError):
            stats.pairs_needed(effect, 0.01)
    for n, sigma_d in ((3, 1.0), (6, 0.0)):
        with pytest.raises(UsageError):
            stats.detectable(n, sigma_d)


def test_the_upper_bound_of_the_noise() -> None:
    """√(df ÷ χ²): with 4 degrees of freedom the noise may be 2.37 times what was seen."""
    assert stats.sigma_upper(1.0, 4) == pytest.approx(math.sqrt(4 / oracle.chi2.ppf(0.05, 4)))
    assert stats.sigma_upper(0.01, 4) == pytest.approx(0.0237, abs=0.0001)
