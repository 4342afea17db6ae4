"""The starts of an experiment → complete blocks and their pairs. A start that is not there leaves its block out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.designs import Plan, StartValues
from orchestrator.errors import ComparisonError

Block = Mapping[str, StartValues]
"""The starts of one block by arm."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of one variant at one concurrency, in the order in which their blocks became complete.

    Attributes:
        blocks: their indices. differences: ln(variant ÷ baseline). signs: +1 where the baseline was started first.
    """

    blocks: tuple[int, ...]
    differences: tuple[float, ...]
    signs: tuple[int, ...]


def complete_blocks(plan: Plan, starts: Sequence[StartValues]) -> list[Block]:
    """The blocks in which every arm has a value at the primary concurrency, in the order in which they got it.

    Raises:
        ComparisonError: a start is not of this plan, is there twice, or a value has no logarithm.
    """
    blocks: dict[int, dict[str, StartValues]] = {}
    for start in starts:
        _refuse_bad(plan, start)
        others = blocks.setdefault(start.block, {})
        if start.arm in others:
            raise ComparisonError(
                f"block {start.block} has two starts of {start.arm}: trials {others[start.arm].trial_id} and"
                f" {start.trial_id}",
                next_step="give the admissible one only",
            )
        if plan.primary_concurrency in start.values:
            others[start.arm] = start
    complete = [block for block in blocks.values() if len(block) == len(plan.arms)]
    return sorted(complete, key=lambda block: max(start.trial_id for start in block.values()))


def pairs_of(blocks: Sequence[Block], baseline: str, arm: str, concurrency: int) -> Pairs:
    """The pairs of an arm with the baseline, where both have a value."""
    both = [(b[baseline], b[arm]) for b in blocks if all(concurrency in b[name].values for name in (baseline, arm))]
    return Pairs(
        tuple(a.block for a, _ in both),
        tuple(math.log(b.values[concurrency]) - math.log(a.values[concurrency]) for a, b in both),
        tuple(1 if a.position < b.position else -1 for a, b in both),
    )


def _refuse_bad(plan: Plan, start: StartValues) -> None:
    where = f"trial {start.trial_id} ({start.arm} in block {start.block})"
    if start.arm not in {arm.name for arm in plan.arms} or not 0 <= start.block < plan.n_blocks:
        raise ComparisonError(f"{where} is not a start of this plan")
    for concurrency, value in start.values.items():
        if not (math.isfinite(value) and value > 0):
            raise ComparisonError(
                f"{where} has {plan.metric} {value} at concurrency {concurrency}, which has no logarithm",
                next_step="set the start aside: a load without a positive number is not a measurement",
            )
