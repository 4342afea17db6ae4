"""Mean and percentiles of a pool of values, as every number that orch computes itself is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def statistics_of(quantity: str, values: Iterable[float]) -> dict[str, float | None]:
    """Mean and percentiles of a pool; of an empty one nothing was measured."""
    ordered = sorted(values)
    return {
        f"{quantity}_mean": math.fsum(ordered) / len(ordered) if ordered else None,
        f"{quantity}_p50": percentile(ordered, 0.50),
        f"{quantity}_p90": percentile(ordered, 0.90),
        f"{quantity}_p99": percentile(ordered, 0.99),
    }


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The q-quantile of values in rising order, by linear interpolation at (n − 1) × q; None of no values."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * q
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
