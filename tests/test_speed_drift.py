"""Change points of the baseline's own speed: planted ones are found where they are, and calm stays calm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy
import pytest

from orchestrator.designs import BaselineValue
from orchestrator.speed_drift import SpeedChange, SpeedSeries, find_speed_changes

NOISE = 0.01


def noisy(levels: Sequence[float], seed: int) -> numpy.ndarray:
    """Values around levels with 1 % noise of a start."""
    return numpy.asarray(levels) * numpy.exp(numpy.random.default_rng(seed).normal(0, NOISE, len(levels)))


def over_time(values: Sequence[float] | numpy.ndarray, **changes: object) -> list[BaselineValue]:
    """A start a day, with the same facts of the environment."""
    first = BaselineValue(0, "", "short", 64, 0.0, "sha256:0", 1, "c")
    known: BaselineValue = replace(first, **changes)  # type: ignore[arg-type]
    return [
        replace(known, trial_id=i, started_at=f"2026-01-{i + 1:02d}", value=float(value))
        for i, value in enumerate(values)
    ]


def only(values: Sequence[BaselineValue], rate: float = 0.05) -> SpeedSeries:
    """The one series of the values."""
    (series,) = find_speed_changes(values, false_alarm_rate=rate)
    return series


def changes_of(values: Sequence[float] | numpy.ndarray) -> tuple[SpeedChange, ...]:
    """The changes of one series."""
    return only(over_time(values)).changes


def test_a_planted_shift_is_found_where_it_is() -> None:
    """A loss of 5 % between two starts is marked at the first slow one, with its size and how many starts say so."""
    (change,) = changes_of(noisy([100.0] * 9 + [95.0] * 7, seed=1))
    assert (change.at, change.trial_id, change.n_before, change.n_after) == ("2026-01-10", 9, 9, 7)
    assert change.before == pytest.approx(100, rel=NOISE) and change.after == pytest.approx(95, rel=NOISE)
    assert change.ratio is not None and change.low95 is not None and change.high95 is not None
    assert change.low95 < change.ratio < change.high95 and change.low95 <= 0.95 <= change.high95
    assert change.high95 < 1 and change.p <= 0.05
    assert change.is_environment_changed is False


def test_a_level_that_comes_back_is_two_changes() -> None:
    """Down and up again, which no single cut shows: three levels, each between its neighbours' marks."""
    found = changes_of(noisy([100.0] * 12 + [90.0] * 10 + [100.0] * 12, seed=2))
    assert [(one.trial_id, one.n_before, one.n_after) for one in found] == [(12, 12, 10), (22, 10, 12)]
    first, second = found
    assert first.ratio is not None and second.ratio is not None and first.ratio < 1 < second.ratio


def test_a_start_that_is_30_percent_low_is_no_change() -> None:
    """Single bad starts neither make a change nor hide one."""
    calm = noisy([100.0] * 24, seed=3)
    calm[[5, 15]] *= 0.7
    assert changes_of(calm) == ()
    shifted = noisy([100.0] * 12 + [95.0] * 12, seed=4)
    shifted[[3, 20]] *= 0.7
    (change,) = changes_of(shifted)
    assert change.trial_id == 12


def test_equal_values_are_calm_and_ties_are_no_trouble() -> None:
    """A series without any noise has no change; one that steps between two exact values has one."""
    assert changes_of([100.0] * 30) == ()
    (change,) = changes_of([100.0] * 8 + [99.0] * 8)
    assert (change.trial_id, change.ratio, change.low95, change.high95) == (8, pytest.approx(0.99), 0.99, 0.99)


@pytest.mark.slow
def test_a_change_in_a_very_long_series_is_found() -> None:
    """Of many starts not every place is tried for a bump, and both of its ends are found all the same."""
    found = changes_of(noisy([100.0] * 140 + [97.0] * 60 + [100.0] * 140, seed=5))
    assert [one.trial_id for one in found] == [pytest.approx(140, abs=3), pytest.approx(200, abs=3)]


def false_alarms(n_starts: int, n_series: int) -> float:
    """How many of so many calm series, heavy tails and 30 % lows included, get any mark."""
    random = numpy.random.default_rng(n_starts)
    values = 100 * numpy.exp(random.standard_t(3, (n_series, n_starts)) * NOISE)
    values[random.random(values.shape) < 0.08] *= 0.7
    return float(numpy.mean([bool(changes_of(one)) for one in values]))


@pytest.mark.slow
@pytest.mark.parametrize("n_starts", [10, 20, 50])
def test_the_false_alarm_rate_is_known(n_starts: int) -> None:
    """Of 1000 series without a change about 5 % at most get a mark (chance alone may show 7 %), whatever the noise."""
    rate = false_alarms(n_starts, 1000)
    assert rate <= 0.07
    assert rate >= 0.02 or n_starts == 10


def test_too_few_starts_say_so() -> None:
    """Where even the clearest order is not rare enough by chance nothing is marked; the series says what it needs."""
    short = only(over_time([100.0] * 4 + [50.0] * 3))
    assert (short.n_starts_needed, short.is_long_enough, short.changes) == (10, False, ())
    enough = only(over_time([100.0, 101, 102, 103, 104, 50, 51, 52, 53, 54]))
    assert enough.is_long_enough and len(enough.changes) == 1
    assert only(over_time([100.0] * 8), rate=0.001).n_starts_needed == 16


def test_the_rate_is_shared_among_the_series() -> None:
    """More concurrencies need clearer changes, so that all of them together give one false mark in twenty."""
    values = [100.0, 101, 102, 103, 104, 50, 51, 52, 53, 54]
    assert only(over_time(values)).changes
    found = find_speed_changes([one for cap in (8, 1, 96, 64) for one in over_time(values, concurrency=cap)])
    assert [(one.concurrency, one.n_starts_needed, one.changes) for one in found] == [
        (cap, 12, ()) for cap in (1, 8, 64, 96)
    ]


@pytest.mark.parametrize("what", [{"digest": "sha256:1"}, {"conditions": "d"}, {"workload": "long"}])
def test_only_like_starts_are_one_series(what: dict[str, str]) -> None:
    """Other bytes, another load or another workload is no drift: it is another series."""
    values = [*over_time([100.0] * 10), *over_time([50.0] * 10, **what)]
    found = find_speed_changes(values)
    assert [len(one.values) for one in found] == [10, 10]
    assert [one.changes for one in found] == [(), ()]


def test_whether_the_environment_changed_too() -> None:
    """The two starts beside a mark say whether their facts differ; unknown where one has none."""
    values = over_time([100.0] * 8 + [90.0] * 8)
    for later, expected in ((1, False), (2, True), (None, None)):
        known = [*values[:8], *(replace(value, environment_id=later) for value in values[8:])]
        assert only(known).changes[0].is_environment_changed is expected


def test_a_value_that_is_not_above_0_has_no_ratio() -> None:
    """A count that falls to 0 is a change without a ratio."""
    (change,) = changes_of([5.0] * 8 + [0.0] * 8)
    assert (change.before, change.after, change.ratio, change.low95, change.high95) == (5.0, 0.0, None, None, None)


def test_nothing_on_record_is_no_series() -> None:
    """Without values there is nothing to tell."""
    assert find_speed_changes([]) == ()
