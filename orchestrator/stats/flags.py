"""What a reader must know before believing an analysis. Flags point; they never remove a value."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.designs import Estimate, Plan, StartValues
from orchestrator.stats.pairs import Block, Pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

FAR_FROM_MEDIAN = 0.20
"""About 8 % of serving runs are 30 % low for no visible reason; 20 % is far outside of the noise of a good one."""

RARE_RESIDUAL = 0.01
"""A residual is flagged when chance makes one as large, anywhere in its series, in fewer cases than this."""


def warnings(
    plan: Plan,
    starts: Sequence[StartValues],
    blocks: Sequence[Block],
    series: Mapping[tuple[str, int], tuple[Pairs, Estimate | None]],
) -> tuple[str, ...]:
    """All of them, the ones about the whole experiment first."""
    return (
        *_left_out(plan, starts, blocks),
        *_order(plan, series),
        *_far_values(plan, blocks),
        *(text for (arm, concurrency), (pairs, _) in series.items() for text in _odd_pairs(arm, concurrency, pairs)),
    )


def _left_out(plan: Plan, starts: Sequence[StartValues], blocks: Sequence[Block]) -> Iterator[str]:
    complete = {next(iter(block.values())).block for block in blocks}
    newest = max(complete, default=-1)
    open_blocks = sorted({*range(newest), *(s.block for s in starts if s.block < newest)} - complete)
    if open_blocks:
        words = ", ".join(str(block + 1) for block in open_blocks)  # people count from 1, as the events do
        yield f"not counted, a start is missing or set aside: block{'s' * (len(open_blocks) > 1)} {words}"
    for arm in (arm.name for arm in plan.arms):
        for concurrency in plan.concurrencies:
            n = sum(concurrency not in block[arm].values for block in blocks)
            if n:
                yield f"{arm} has no value at concurrency {concurrency} in {n} of {len(blocks)} blocks"


def _order(plan: Plan, series: Mapping[tuple[str, int], tuple[Pairs, Estimate | None]]) -> Iterator[str]:
    for arm in plan.arms[1:]:
        pairs, estimate = series[arm.name, plan.primary_concurrency]
        n_first = pairs.signs.count(1)
        if 2 * n_first != len(pairs.signs) and len(pairs.signs) % 2 == 0:
            yield f"{arm.name}: {n_first} of {len(pairs.signs)} pairs began with the baseline, so the interval is wider"
        if estimate is not None and estimate.order_p < 0.05:
            yield (
                f"{arm.name}: the start that came second in its pair was {estimate.order_log:+.1%} off (p"
                f" {estimate.order_p:.3f}); the estimate has this taken out, but find its cause"
            )


def _far_values(plan: Plan, blocks: Sequence[Block]) -> Iterator[str]:
    for arm in (arm.name for arm in plan.arms):
        for concurrency in plan.concurrencies:
            found = [b[arm] for b in blocks if concurrency in b[arm].values]
            median = statistics.median(s.values[concurrency] for s in found) if found else 0.0
            for start in found:
                value = start.values[concurrency]
                if abs(value / median - 1) > FAR_FROM_MEDIAN:
                    yield (
                        f"outlier, kept: {arm} in block {start.block + 1} (trial {start.trial_id}) at concurrency"
                        f" {concurrency} is {value / median - 1:+.0%} off the median of its arm"
                    )


def _odd_pairs(arm: str, concurrency: int, pairs: Pairs) -> Iterator[str]:
    import numpy as np
    from scipy import special

    from orchestrator.stats.crossover import fit, studentised

    if len(pairs.signs) < 4 or abs(sum(pairs.signs)) == len(pairs.signs):
        return
    fitted = fit(np.array(pairs.differences), np.array(pairs.signs))
    for block, residual in zip(pairs.blocks, studentised(fitted), strict=True):
        if 2 * special.stdtr(fitted.df - 1, -abs(residual)) * len(pairs.signs) < RARE_RESIDUAL:
            yield (
                f"outlier, kept: the pair of {arm} in block {block + 1} at concurrency {concurrency} lies"
                f" {abs(residual):.0f} SD from the others"
            )
