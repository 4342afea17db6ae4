"""A question → ``Plan``: which arm is started when, drawn from a seed before the first start. Pure; its only
randomness is the seed's, and the same seed gives the same order on every Python and machine.

Blocks come as twins. The first of a twin starts every arm once in some order, the second in the reverse of it: so in
each two consecutive blocks every variant is once before and once after the baseline, a slow change of the machine
cancels, and what being started second does can be told from what the variant does. With several variants the orders of
successive twins are the rows of a Williams square, so that every arm comes to every position equally often; names,
rows and which of a twin is first are drawn. Source: Williams, Austral. J. Sci. Res. A 2 (1949) 149.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from orchestrator.designs import Arm, Plan, PlannedStart
from orchestrator.errors import UnknownNameError, UsageError
from orchestrator.metrics import METRICS

T = TypeVar("T")

BASELINE = "baseline"

LEAST_LOOK = 4
"""Below 4 complete pairs no verdict is given."""


def draw(
    *,
    target: str,
    host: str,
    workload: str,
    arms: Sequence[Arm],
    concurrencies: Sequence[int],
    primary_concurrency: int,
    metric: str,
    thresholds: Sequence[float],
    seed: int,
    margin: float = 0.01,
    looks: Sequence[int] = (6, 8, 10),
    hypothesis: str = "",
    is_aa: bool = False,
    max_repeats: int = 6,
) -> Plan:
    """Draws the order of all starts up to the last look.

    Args:
        target, host, workload, metric: names. arms: the baseline first.
        concurrencies: in the order in which each start is loaded.
        thresholds: nominal two-sided p at each look; ``stats.look_thresholds`` makes them.
        seed: from 0; stored with the plan. looks, margin, max_repeats: as in ``Plan``.

    Raises:
        UsageError: something does not fit; says what and what would.
        UnknownNameError: there is no such metric.
    """
    drawn = Plan(
        target=target,
        host=host,
        workload=workload,
        arms=tuple(arms),
        concurrencies=tuple(concurrencies),
        primary_concurrency=primary_concurrency,
        metric=metric,
        margin=margin,
        looks=tuple(looks),
        thresholds=tuple(thresholds),
        seed=seed,
        starts=(),
        max_repeats=max_repeats,
        hypothesis=hypothesis,
        is_aa=is_aa,
    )
    _refuse_bad_arms(drawn)
    _refuse_bad_loads(drawn)
    _refuse_bad_looks(drawn)
    return replace(drawn, starts=_starts([arm.name for arm in arms], drawn.n_blocks, seed))


def cost_s(plan: Plan, start_s: float, load_s: Mapping[int, float]) -> tuple[float, float]:
    """How long the experiment takes, without repeats.

    Args:
        start_s: of one start: push, restart, ready, proof. load_s: of one load, by concurrency, warm-up included.

    Returns:
        Seconds up to the first look and up to the last.

    Raises:
        UsageError: a concurrency of the plan has no ``load_s``.
    """
    missing = [concurrency for concurrency in plan.concurrencies if concurrency not in load_s]
    if missing:
        raise UsageError(f"how long is a load at concurrency {', '.join(map(str, missing))}?")
    block_s = len(plan.arms) * (start_s + sum(load_s[concurrency] for concurrency in plan.concurrencies))
    return block_s * plan.looks[0], block_s * plan.looks[-1]


def order_sign(starts: Sequence[PlannedStart], arm: str) -> int:
    """+1 when the baseline comes before ``arm`` in a block's starts, else −1. The baseline is the arm named so."""
    positions = {start.arm: start.position for start in starts}
    return 1 if positions[BASELINE] < positions[arm] else -1


# ---- the order


def _starts(names: Sequence[str], n_blocks: int, seed: int) -> tuple[PlannedStart, ...]:
    generator = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < n_blocks:
        square = _square(_shuffled(names, generator))
        for row in _shuffled(range(len(square)), generator):
            order = square[row] if generator.getrandbits(1) else square[row][::-1]
            orders += [order, order[::-1]]
    places = (
        (block, position, arm) for block, order in enumerate(orders[:n_blocks]) for position, arm in enumerate(order)
    )
    return tuple(PlannedStart(index, *place) for index, place in enumerate(places))


def _square(names: Sequence[str]) -> list[list[str]]:
    """Rows of a Williams square that, with their reverses, bring every name to every position equally often."""
    n = len(names)
    zigzag = [(i + 1) // 2 if i % 2 else (n - i // 2) % n for i in range(n)]
    n_rows = n if n % 2 else n // 2  # with an even number the other half are the reverses
    return [[names[(step + row) % n] for step in zigzag] for row in range(n_rows)]


def _shuffled(items: Sequence[T], generator: random.Random) -> list[T]:
    """Fisher and Yates, from bits alone: Python promises the bits of a seed, not what ``shuffle`` makes of them."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        n_bits = last.bit_length()
        other = generator.getrandbits(n_bits)
        while other > last:
            other = generator.getrandbits(n_bits)
        order[last], order[other] = order[other], order[last]
    return order


# ---- what cannot be planned


def _refuse_bad_arms(plan: Plan) -> None:
    names = [arm.name for arm in plan.arms]
    if len(names) < 2 or names[0] != BASELINE or len(set(names)) < len(names):
        raise UsageError(
            f"an experiment of {', '.join(names) or 'nothing'}", next_step=f"give {BASELINE} and variants, each once"
        )
    if plan.is_aa and (len(names) != 2 or plan.arms[0].digest != plan.arms[1].digest):
        raise UsageError(
            f"an A/A experiment of {', '.join(names)}", next_step="it has the baseline's bytes twice and no variant"
        )
    if plan.seed < 0 or plan.max_repeats < 0:
        raise UsageError(f"seed {plan.seed}, {plan.max_repeats} repeats", next_step="neither may be below 0")


def _refuse_bad_loads(plan: Plan) -> None:
    caps = plan.concurrencies
    if not caps or min(caps) < 1 or len(set(caps)) < len(caps) or plan.primary_concurrency not in caps:
        raise UsageError(
            f"the primary concurrency {plan.primary_concurrency} among {', '.join(map(str, caps)) or 'none'}",
            next_step="name concurrencies from 1, each once, and the primary one of them",
        )
    if plan.metric not in METRICS:
        nearest = difflib.get_close_matches(plan.metric, METRICS, n=3) or list(METRICS)
        raise UnknownNameError(f"there is no metric {plan.metric!r}", next_step=f"try {', '.join(nearest)}")
    if METRICS[plan.metric].direction == "none":
        raise UsageError(
            f"{plan.metric} cannot be judged, no direction of it is better",
            next_step="name a rate or a latency, such as output_tokens_per_s",
        )


def _refuse_bad_looks(plan: Plan) -> None:
    looks = plan.looks
    if not looks or any(a >= b for a, b in pairwise(looks)) or any(n % 2 or n < LEAST_LOOK for n in looks):
        raise UsageError(
            f"looks at {', '.join(map(str, looks)) or 'no'} pairs",
            next_step=f"give rising even numbers from {LEAST_LOOK}, such as 6,8,10",
        )
    if len(plan.thresholds) != len(looks) or not all(0 < p <= 0.05 for p in plan.thresholds):
        raise UsageError(f"thresholds {plan.thresholds} for {len(looks)} looks", next_step="one for each, up to 0.05")
    if not 0 < plan.margin < 0.5:
        raise UsageError(f"a margin of {plan.margin}", next_step="give a ratio such as 0.01, which is 1 %")
