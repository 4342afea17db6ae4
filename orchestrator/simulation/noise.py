"""The made-up machine: what a start's numbers are, when the truth is known. All sizes are logs: 0.01 is about 1 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import plan as planning
from orchestrator import stats
from orchestrator.designs import Arm, Plan, StartValues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

METRIC = "output_tokens_per_s"
EVERY = 0
"""In effects: at every concurrency that is not named by itself."""

N_ORDERS = 40
"""Plans, each with an order of its own, over which the trials of one rate are spread."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What moves a number besides the variant.

    Attributes:
        ramp: change from the first start of the experiment to the last. is_curved: most of it at the beginning, as a
            machine that warms up; otherwise steady.
        position: of every start that is not the first of its block.
        boot: SD between starts, shared by the concurrencies of a start. run: SD between loads.
    """

    ramp: float = -0.03
    position: float = -0.01
    boot: float = 0.007
    run: float = 0.005
    is_curved: bool = False

    @property
    def sigma(self) -> float:
        """SD of one number, drift left out."""
        return math.hypot(self.boot, self.run)

    def drift(self, n_starts: int) -> Floats:
        """The ramp at each start of the experiment."""
        import numpy as np

        time = np.linspace(0, 1, n_starts)
        return np.asarray(self.ramp * ((1 - np.exp(-4 * time)) if self.is_curved else time))


def plans(
    generator: np.random.Generator, n_variants: int, n_concurrencies: int, looks: tuple[int, ...], n_plans: int
) -> Iterator[Plan]:
    """Plans for the same question, each with an order of its own; the first concurrency is the primary one."""
    arms = [Arm(name, name) for name in ("baseline", *(f"V{i + 1}" for i in range(n_variants)))]
    thresholds = stats.look_thresholds(looks, n_variants=n_variants)
    for seed in generator.integers(2**31, size=n_plans):
        yield planning.draw(
            target="made-up",
            host="made-up",
            workload="made-up",
            arms=arms,
            concurrencies=range(1, n_concurrencies + 1),
            primary_concurrency=1,
            metric=METRIC,
            looks=looks,
            thresholds=thresholds,
            seed=int(seed),
        )


def experiments(
    plan: Plan,
    noise: Noise,
    effects: Mapping[str, Mapping[int, float]],
    n_trials: int,
    generator: np.random.Generator,
) -> Floats:
    """ln(value) of every start of so many experiments with this plan: shape (trials, starts, concurrencies).

    Args:
        effects: true log-ratio to the baseline, by arm and concurrency or ``EVERY``; 0 where nothing is said.
    """
    import numpy as np

    shape = (n_trials, len(plan.starts), len(plan.concurrencies))
    logs = generator.normal(0, noise.run, shape) + generator.normal(0, noise.boot, (*shape[:2], 1))
    fixed = noise.drift(shape[1])[:, None] + np.array(
        [
            [noise.position * (start.position > 0) + _effect(effects, start.arm, cap) for cap in plan.concurrencies]
            for start in plan.starts
        ]
    )
    return np.asarray(logs + fixed)


def start_values(plan: Plan, logs: Floats) -> list[StartValues]:
    """One experiment's numbers as ``stats.analyse`` takes them."""
    return [
        StartValues(
            start.index,
            start.block,
            start.position,
            start.arm,
            {cap: math.exp(log) for cap, log in zip(plan.concurrencies, row, strict=True)},
        )
        for start, row in zip(plan.starts, logs, strict=True)
    ]


def _effect(effects: Mapping[str, Mapping[int, float]], arm: str, concurrency: int) -> float:
    of_arm = effects.get(arm, {})
    return of_arm.get(concurrency, of_arm.get(EVERY, 0.0))
