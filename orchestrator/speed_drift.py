"""Drift of speed: where the baseline's own values, start after start, change to another level.

Pure: values over time → change points. Explains nothing: that is for whoever looks at what else changed then.

The method is binary segmentation on ranks. First a *step*: the cut where the values before and after differ most by
the standardized rank sum (Wilcoxon's). It stands if values in random order reach so large a maximum over all cuts no
more often than half the false-alarm rate; then each side is asked again. Where there is no step, a *bump*: the stretch
that differs most from all around it, at the other half of the rate, because a level that was left and regained hides
from a single cut. Random orders need no assumption about the noise, so a series without a change gets a mark with at
most that probability, as long as its starts are independent; and ranks do not mind the single start that is 30 % low.
After a true change each part may give a false mark at the same rate. The estimates beside a mark are of the two
neighbouring levels: Hodges-Lehmann's ratio with the interval of the rank sum, both a little too sure of themselves,
because the cut was chosen where the difference is largest.

Source: Pettitt 1979 (rank test for a change point); Levin & Kline 1985 (bumps); Hollander & Wolfe, Nonparametric
Statistical Methods, 4.2-4.3 (estimate and interval); Scott & Knott 1974 (binary segmentation). The code is own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from orchestrator.designs import BaselineValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

FALSE_ALARM_RATE = 0.05
"""Of all series together: shared out equally among those that are long enough."""

LEAST_STARTS = 4
"""On each side of a cut; fewer say nothing about a level."""

_Z95 = 1.959964
_N_TAIL_ORDERS = 100
"""Random orders beyond the threshold, so that its own error is small; the number of orders is this ÷ the rate."""
_BATCH = 2_000_000
"""Values in random orders that are held at once."""

_N_BUMP_STARTS = 100
"""About how many places are tried, so that 400 starts at six concurrencies take seconds, not a minute."""

_ROUNDING = 1e-9
"""Equal rank sums may differ in their last digit."""


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """The baseline's level changed between two of its starts.

    Attributes:
        at: when the first start at the new level began; trial_id: that start.
        before, after: medians of the two levels, in the metric's unit.
        ratio, low95, high95: the new level ÷ the old one, and its interval; None where a value is not above 0.
        n_before, n_after: starts at the two levels.
        p: how often random orders show so large a change.
        is_environment_changed: whether the facts recorded with the two starts differ; None where one has none.
    """

    at: str
    trial_id: int
    before: float
    after: float
    ratio: float | None
    low95: float | None
    high95: float | None
    n_before: int
    n_after: int
    p: float
    is_environment_changed: bool | None


@dataclass(frozen=True, slots=True)
class SpeedSeries:
    """The same bytes under the same load at one concurrency, over time.

    Attributes:
        values: in the order of the starts.
        n_starts_needed: with fewer starts no change, however large, can be told from chance at this rate.
    """

    workload: str
    concurrency: int
    digest: str
    values: tuple[BaselineValue, ...]
    n_starts_needed: int
    changes: tuple[SpeedChange, ...]

    @property
    def is_long_enough(self) -> bool:
        """Whether a change could have been seen."""
        return len(self.values) >= self.n_starts_needed


def find_speed_changes(
    values: Sequence[BaselineValue], *, false_alarm_rate: float = FALSE_ALARM_RATE
) -> tuple[SpeedSeries, ...]:
    """Splits values into series of like ones and looks for changes in each.

    Args:
        values: of one metric on one host, in the order of the starts.
        false_alarm_rate: probability of any mark at all when nothing changed, over all the series.

    Returns:
        Every series, by workload and concurrency, the newest bytes last; also those that are too short.
    """
    series = _like_ones(values)
    n_tested = sum(len(one) >= 2 * LEAST_STARTS for one in series)
    rate = false_alarm_rate / max(n_tested, 1)
    needed = _n_starts_needed(rate)
    return tuple(
        SpeedSeries(one[0].workload, one[0].concurrency, one[0].digest, tuple(one), needed, tuple(_changes(one, rate)))
        for one in series
    )


def _like_ones(values: Sequence[BaselineValue]) -> list[list[BaselineValue]]:
    series: dict[tuple[object, ...], list[BaselineValue]] = {}
    for one in values:
        series.setdefault((one.workload, one.concurrency, one.digest, one.conditions), []).append(one)
    return sorted(series.values(), key=lambda like: (like[0].workload, like[0].concurrency, like[-1].trial_id))


def _n_starts_needed(rate: float) -> int:
    """The fewest values of which the clearest step, all low ones before all high ones, is rare enough by chance."""
    n = 2 * LEAST_STARTS
    while (2 + 2 * (n % 2)) / math.comb(n, n // 2) > rate / 2:  # of an odd number there are two middles
        n += 1
    return n


# ---- one series


def _changes(series: Sequence[BaselineValue], rate: float) -> Iterator[SpeedChange]:
    if len(series) < _n_starts_needed(rate):
        return
    marks = dict(_cuts([one.value for one in series], 0, rate))
    edges = [0, *sorted(marks), len(series)]
    for start, cut, end in zip(edges, edges[1:], edges[2:], strict=False):
        yield _change(series[start:cut], series[cut:end], marks[cut])


def _cuts(values: Sequence[float], offset: int, rate: float) -> Iterator[tuple[int, float]]:
    """(index of the first value behind the cut, p) of every cut that stands."""
    for starts in (_step_starts(len(values)), _bump_starts(len(values))):
        found = _clearest_stretch(values, starts, rate) if starts else None
        if found is None:
            continue
        start, end, p = found
        inner = [cut for cut in (start, end) if cut]
        yield from ((offset + cut, p) for cut in inner)
        for a, b in zip([0, *inner], [*inner, len(values)], strict=True):
            yield from _cuts(values[a:b], offset + a, rate)
        return


def _step_starts(n: int) -> range:
    """A step is a stretch from the first value on; none where one of its sides would be too short."""
    return range(int(n >= 2 * LEAST_STARTS))


def _bump_starts(n: int) -> range:
    """Where a stretch may begin that leaves enough values on both of its sides; of very many not each is tried."""
    return range(LEAST_STARTS, n - 2 * LEAST_STARTS + 1, max(1, n // _N_BUMP_STARTS))


def _clearest_stretch(values: Sequence[float], starts: range, rate: float) -> tuple[int, int, float] | None:
    """(start, end, p) of the stretch that differs most from the rest; None where random orders show as much."""
    statistics = [_stretch_statistics(_ranks(values)[None, :], start)[0] for start in starts]
    largest, start, end = max(
        (float(of_start.max()), start, start + LEAST_STARTS + int(of_start.argmax()))
        for start, of_start in zip(starts, statistics, strict=True)
    )
    by_chance = _chance_maxima(len(values), starts, math.ceil(_N_TAIL_ORDERS / rate))
    p = (1 + int((by_chance >= largest - _ROUNDING).sum())) / (1 + len(by_chance))
    return (start, end, p) if p <= rate / 2 else None


def _stretch_statistics(orders: NDArray[Any], start: int) -> NDArray[Any]:
    """The standardized rank sum of every stretch from ``start`` on, by its end, for each row of ranks."""
    import numpy

    n = orders.shape[1]
    lengths = numpy.arange(LEAST_STARTS, n - LEAST_STARTS - start + 1)
    sums = orders[:, start : n - LEAST_STARTS].cumsum(axis=1)[:, LEAST_STARTS - 1 :]
    standardized: NDArray[Any] = numpy.abs(sums - lengths * (n + 1) / 2)
    standardized /= numpy.sqrt(lengths * (n - lengths) * (n + 1) / 12)
    return standardized


@lru_cache(maxsize=64)
def _chance_maxima(n: int, starts: range, n_orders: int) -> NDArray[Any]:
    """The largest statistic of each of so many random orders of n ranks; drawn from a fixed seed."""
    import numpy

    random = numpy.random.default_rng(n)
    batch = max(1, _BATCH // n)
    maxima = []
    for done in range(0, n_orders, batch):
        orders = numpy.tile(numpy.arange(1.0, n + 1), (min(batch, n_orders - done), 1))
        random.permuted(orders, axis=1, out=orders)
        maxima.append(numpy.max([_stretch_statistics(orders, start).max(axis=1) for start in starts], axis=0))
    return numpy.concatenate(maxima)


def _ranks(values: Sequence[float]) -> NDArray[Any]:
    """Ranks from 1; equal values share the mean of theirs."""
    import numpy

    _, places, counts = numpy.unique(numpy.asarray(values), return_inverse=True, return_counts=True)
    shared: NDArray[Any] = counts.cumsum() - (counts - 1) / 2
    return shared[places]


# ---- the size of a change


def _change(before: Sequence[BaselineValue], after: Sequence[BaselineValue], p: float) -> SpeedChange:
    from statistics import median

    old, new = [one.value for one in before], [one.value for one in after]
    first, last = after[0], before[-1]
    environments = (last.environment_id, first.environment_id)
    ratio, low, high = _ratio(old, new)
    return SpeedChange(
        at=first.started_at,
        trial_id=first.trial_id,
        before=median(old),
        after=median(new),
        ratio=ratio,
        low95=low,
        high95=high,
        n_before=len(old),
        n_after=len(new),
        p=p,
        is_environment_changed=None if None in environments else environments[0] != environments[1],
    )


def _ratio(old: Sequence[float], new: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Hodges-Lehmann's estimate of the ratio and its 95 % interval, from the ratios of all pairs."""
    from statistics import median

    if min(*old, *new) <= 0:
        return None, None, None
    ratios = sorted(b / a for a in old for b in new)
    n_pairs = len(ratios)
    spread = math.sqrt(n_pairs * (len(old) + len(new) + 1) / 12)
    left_out = max(1, math.floor(n_pairs / 2 - _Z95 * spread)) - 1
    return math.exp(median(map(math.log, ratios))), ratios[left_out], ratios[n_pairs - 1 - left_out]
