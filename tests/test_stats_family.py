"""Adjusted p and the rules from an estimate to a verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import stats
from orchestrator.designs import Estimate
from orchestrator.stats.family import adjusted, chance_at_last_look, holm, is_equivalent, is_not_worse, verdict

P = st.floats(0.0001, 1.0)


def test_holm() -> None:
    """The textbook's example; a missing comparison does not count."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    found = holm(np.array([0.01, math.nan, 0.04]))
    assert found[[0, 2]] == pytest.approx([0.02, 0.04]) and math.isnan(found[1])


@given(p=st.lists(P, min_size=1, max_size=6), level=st.floats(0.001, 0.1))
def test_one_variant_is_judged_in_sequence(p: list[float], level: float) -> None:
    """The primary at its own p; the others by Holm, and only when the primary passes."""
    found = adjusted(np.array([p]), level)[0]
    assert found[0] == p[0]
    assert found[1:] == pytest.approx(np.maximum(holm(np.array(p[1:])), p[0])) if len(p) > 1 else True


@given(p=st.lists(P, min_size=1, max_size=5), level=st.floats(0.001, 0.1))
def test_with_one_concurrency_it_is_holm_over_the_variants(p: list[float], level: float) -> None:
    """The same variants pass as by Holm."""
    found = adjusted(np.array(p)[:, None], level)[:, 0]
    assert ((found < level) == (holm(np.array(p)) < level)).all()


def test_a_share_is_handed_on_only_by_a_variant_that_passes_everywhere() -> None:
    """Two variants have half of the error each; one that passes everywhere gives its half to the other."""
    passing, open_one = [0.001, 0.002], [0.001, 0.8]
    other = [0.03, 0.5]
    assert adjusted(np.array([passing, other]), 0.05)[1, 0] == pytest.approx(0.03)
    assert adjusted(np.array([open_one, other]), 0.05)[1, 0] == pytest.approx(0.06)
    assert adjusted(np.array([passing, other]), None)[1, 0] == pytest.approx(0.06)
    assert math.isnan(adjusted(np.array([passing, [0.03, math.nan]]), 0.05)[1, 1])


def made(log_ratio: float, sigma_d: float, n: int = 10) -> Estimate:
    """An estimate with exactly this effect and noise."""
    pattern = np.array([1.0, 1.0, -1.0, -1.0] * n)[:n]
    signs = np.array([1, -1] * n)[:n]
    pattern -= pattern.mean()
    pattern -= (pattern @ signs) / n * signs
    d = log_ratio + pattern / math.sqrt((pattern**2).sum() / (n - 2)) * sigma_d
    return stats.estimate(d.tolist(), signs.tolist())


@pytest.mark.parametrize(
    ("log_ratio", "is_higher_better", "word"),
    [(0.02, True, "FASTER"), (-0.02, True, "SLOWER"), (0.02, False, "SLOWER"), (-0.02, False, "FASTER")],
)
def test_faster_means_better(log_ratio: float, is_higher_better: bool, word: str) -> None:
    """A higher throughput and a lower latency are FASTER."""
    found = made(log_ratio, 0.01)
    assert verdict(found, found.p, 0.05, 0.01, is_higher_better) == word


def test_a_large_p_is_not_equivalence() -> None:
    """EQUIVALENT needs the 90 % interval inside the margin; a wide one is INCONCLUSIVE."""
    narrow, wide = made(0.0, 0.004), made(0.0, 0.03)
    assert wide.p > 0.9 and wide.low90 < 0.99
    assert verdict(wide, wide.p, 0.05, 0.01, True) == "INCONCLUSIVE"
    assert narrow.low90 > 0.99 and narrow.high90 < 1.01
    assert verdict(narrow, narrow.p, 0.05, 0.01, True) == "EQUIVALENT"


@given(log_ratio=st.floats(-0.02, 0.02), sigma_d=st.floats(0.001, 0.03))
def test_equivalence_at_5_percent_is_the_90_percent_interval(log_ratio: float, sigma_d: float) -> None:
    """Two one-sided tests at 5 % are the 90 % interval inside (1 − m, 1 + m)."""
    found = made(log_ratio, sigma_d)
    inside = found.low90 > 0.99 and found.high90 < 1.01
    assert bool(is_equivalent(found.log_ratio, found.se, found.df, 0.01, 0.05)) is inside
    assert bool(is_not_worse(found.log_ratio, found.se, found.df, 0.01, True)) is (found.low90 > 0.99)
    assert bool(is_not_worse(found.log_ratio, found.se, found.df, 0.01, False)) is (found.high90 < 1.01)


def test_the_chance_at_the_last_look() -> None:
    """Conditional power against a simulation of the pairs that are left, the noise known."""
    generator, n, n_last, sigma, seen = np.random.default_rng(1), 6, 10, 0.01, 0.006
    rest = generator.normal(math.log1p(0.01), sigma / math.sqrt(n_last - n), 200_000)
    final = (n * seen + (n_last - n) * rest) / n_last
    critical = 2.55  # t with 8 df at 0.0345, two-sided, to two digits
    simulated = float((final / (sigma / math.sqrt(n_last)) > critical).mean())
    assert chance_at_last_look(seen, sigma, n, n_last, 0.0345, 0.01) == pytest.approx(simulated, abs=0.01)


def test_hope_follows_what_was_seen() -> None:
    """A large noise with a large gain is not hopeless, a loss is; without any noise it is certain."""
    chances = [chance_at_last_look(better, 0.05, 6, 10, 0.0345, 0.01) for better in (0.05, 0.0, -0.05)]
    assert chances[0] > 0.05 > chances[1] > chances[2]
    assert chance_at_last_look(0.02, 0.0, 6, 10, 0.0345, 0.01) == 1.0
