"""Every number that docs/method.md states, as a claim that can be simulated or worked out again.

A claim is a rate over made-up experiments, or one exact number. Its bounds are what the documents promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from orchestrator import plan as planning
from orchestrator import stats
from orchestrator.simulation import planned, usual_ways
from orchestrator.simulation.noise import EVERY, N_ORDERS, Noise, experiments, plans
from orchestrator.stats.eprocess import REJECTS_AT, bayes_factor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]

Group = Literal["usual", "planned", "exact"]

MACHINE, WARMING = Noise(), Noise(is_curved=True)
LOUD_LOADS = Noise(boot=0.0, run=Noise().sigma)
"""The same scatter, none of it shared between concurrencies: the hardest case for a family of them."""

LOOKS = (6, 8, 10)
Effects = Mapping[str, Mapping[int, float]]
GAIN: Effects = {"V1": {EVERY: math.log(1.02)}}
NOTHING: Effects = {}


@dataclass(frozen=True, slots=True)
class Claim:
    """One promise.

    Attributes:
        group: a usual way, orch's own, or an exact number. claimed: as the documents say it.
        low, high: bounds of the promise, in ``unit``; rates in percent.
        rate: (generator, trials) → one bool a trial; None for an exact number. exact: that number.
        share: of the trials asked for; less for what is slow.
    """

    group: Group
    name: str
    claimed: str
    low: float
    high: float
    unit: str = "%"
    rate: Callable[[np.random.Generator, int], Bools] | None = None
    exact: Callable[[], float] | None = None
    share: float = 1.0


def claims() -> tuple[Claim, ...]:
    """All of them, in the order of the documents."""
    return (*_usual(), *_planned(), *_exact())


# ---- the usual ways


def _usual() -> list[Claim]:
    ways = usual_ways

    def usual(name: str, percent: float, way: Callable[..., Bools], *arguments: object, share: float = 1.0) -> Claim:
        slack = 1.0 if percent >= 10 else 0.5
        rate = _swapped(partial(way, *arguments))
        return Claim("usual", name, f"{percent:g} %", percent - slack, percent + slack, rate=rate, share=share)

    alike = Noise(boot=0.006, run=0.006)
    return [
        *(
            usual(f"all A, then all B, 3 % drift, Welch t, n = {n}", percent, ways.all_a_then_all_b, n)
            for n, percent in ((3, 22), (6, 62), (10, 87))
        ),
        usual("always AB, n = 6", 54, ways.always_ab, MACHINE, 6),
        usual("ten loads of one start as replicates", 75, ways.runs_as_replicates),
        usual("bootstrap of pairs, n = 3", 25, ways.bootstrap, 3, share=0.5),
        usual("bootstrap of pairs, n = 6", 14, ways.bootstrap, 6, share=0.5),
        usual("looking after every pair, 3 to 10", 17, ways.peeking),
        usual("keep if 1 % better in one run", 24, ways.keep_if_better),
        usual("any of four concurrencies", 16.5, ways.any_of_four, alike),
        usual("power for 2 %: paired t on fixed ABBA", 56, ways.fixed_abba, MACHINE, math.log(1.02), 6),
        usual("power for 2 %: Mann-Whitney", 45, ways.unpaired_ranks, MACHINE, math.log(1.02)),
    ]


def _swapped(way: Callable[..., Bools]) -> Callable[[np.random.Generator, int], Bools]:
    return lambda generator, n_trials: way(n_trials, generator)


# ---- orch's own


def _planned() -> list[Claim]:
    def at_most(name: str, high: float, rate: Callable[[np.random.Generator, int], Bools], share: float = 1.0) -> Claim:
        return Claim("planned", name, f"≤ {high:g} %", 0, high, rate=rate, share=share)

    def at_least(name: str, low: float, rate: Callable[[np.random.Generator, int], Bools]) -> Claim:
        return Claim("planned", name, f"≥ {low:g} %", low, 100, rate=rate)

    partly: Effects = {"V1": {1: 0.02}}
    mixed: Effects = {"V1": {1: 0.03, EVERY: math.log(0.99)}}
    return [
        Claim(
            "planned", "6 pairs, one look: false FASTER or SLOWER", "4.5 to 5.5 %", 4.5, 5.5, rate=_differs(looks=(6,))
        ),
        at_most("the same, a machine that warms up", 5.5, _differs(noise=WARMING, looks=(6,))),
        at_least("6 pairs, one look: power for 2 %", 82, _is_faster(GAIN, looks=(6,))),
        at_most("looks 6, 8, 10: false FASTER or SLOWER", 5.2, _differs(may_stop_early=False)),
        at_most("the same, with stops for hopelessness", 5.2, _differs()),
        at_most("looks 4, 6, 8: false FASTER or SLOWER", 5.2, _differs(looks=(4, 6, 8), may_stop_early=False)),
        at_least("looks 6, 8, 10: power for 2 %", 97, _is_faster(GAIN)),
        at_least("the same, one of 2 variants in shared blocks", 92, _is_faster(GAIN, n_variants=2)),
        at_least("the same, one of 3 variants in shared blocks", 87, _is_faster(GAIN, n_variants=3)),
        at_most("2 variants × 4 concurrencies, one look: any false", 5, _differs(2, 4, looks=(6,))),
        at_most("2 variants × 4 concurrencies, three looks: any false", 5, _differs(2, 4, may_stop_early=False)),
        at_most("the same, one of the eight is faster: any other", 5, _others_differ(partly, LOUD_LOADS)),
        at_most("EQUIVALENT when it is 1 % faster", 5, _is_equivalent({"V1": {EVERY: math.log(1.01)}})),
        at_most("ships when 1 % slower at three of four", 5, _ships(mixed)),
        at_most("sign-flip p below 5 %, 8 pairs", 5, _sign_flip, share=0.1),
        at_most("E ≥ 20 ever, looked at after each of 100 pairs", 5, _ever_rejects, share=0.5),
        Claim("planned", "stats.analyse says what is simulated here", "100 %", 100, 100, rate=_agrees, share=0.004),
    ]


def _outcomes(
    n_variants: int = 1,
    n_concurrencies: int = 1,
    *,
    effects: Effects = NOTHING,
    noise: Noise = MACHINE,
    looks: tuple[int, ...] = LOOKS,
) -> Callable[[np.random.Generator, int], list[planned.Outcomes]]:
    def made(generator: np.random.Generator, n_trials: int) -> list[planned.Outcomes]:
        n_each = math.ceil(n_trials / N_ORDERS)
        drawn = plans(generator, n_variants, n_concurrencies, looks, N_ORDERS)
        return [planned.judge(plan, experiments(plan, noise, effects, n_each, generator)) for plan in drawn]

    return made


def _rate(
    outcomes: Callable[[np.random.Generator, int], list[planned.Outcomes]], event: Callable[[planned.Outcomes], Bools]
) -> Callable[[np.random.Generator, int], Bools]:
    def rate(generator: np.random.Generator, n_trials: int) -> Bools:
        import numpy as np

        return np.concatenate([event(outcome) for outcome in outcomes(generator, n_trials)])

    return rate


def _differs(
    n_variants: int = 1,
    n_concurrencies: int = 1,
    *,
    noise: Noise = MACHINE,
    looks: tuple[int, ...] = LOOKS,
    may_stop_early: bool = True,
) -> Callable[[np.random.Generator, int], Bools]:
    """FASTER or SLOWER anywhere. Without early stops every look counts, the worst that could happen."""

    def event(o: planned.Outcomes) -> Bools:
        import numpy as np

        found = o.differs() if may_stop_early else o.differs_at_any_look()
        return np.asarray(found.reshape(len(found), -1).any(axis=1))

    return _rate(_outcomes(n_variants, n_concurrencies, noise=noise, looks=looks), event)


def _others_differ(effects: Effects, noise: Noise) -> Callable[[np.random.Generator, int], Bools]:
    """FASTER or SLOWER anywhere but at the first variant's primary concurrency."""

    def event(o: planned.Outcomes) -> Bools:
        import numpy as np

        return np.asarray(o.differs_at_any_look().reshape(len(o.last_look), -1)[:, 1:].any(axis=1))

    return _rate(_outcomes(2, 4, effects=effects, noise=noise), event)


def _is_faster(
    effects: Effects, looks: tuple[int, ...] = LOOKS, n_variants: int = 1
) -> Callable[[np.random.Generator, int], Bools]:
    return _rate(_outcomes(n_variants, effects=effects, looks=looks), lambda o: o.final()[:, 0, 0] == planned.FASTER)


def _is_equivalent(effects: Effects) -> Callable[[np.random.Generator, int], Bools]:
    return _rate(_outcomes(effects=effects), lambda o: o.final()[:, 0, 0] == planned.EQUIVALENT)


def _ships(effects: Effects) -> Callable[[np.random.Generator, int], Bools]:
    return _rate(_outcomes(1, 4, effects=effects), lambda o: o.final_ships()[:, 0])


def _sign_flip(generator: np.random.Generator, n_trials: int) -> Bools:
    import numpy as np

    signs, noise = [1, -1] * 4, generator.normal(size=(n_trials, 8))
    estimates = (stats.estimate(row, signs) for row in noise.tolist())
    return np.array([(one.sign_flip_p or 1.0) < 0.05 for one in estimates])


def _ever_rejects(generator: np.random.Generator, n_trials: int) -> Bools:
    """Means and half differences of 50 twins, looked at after each."""
    import numpy as np

    means, halves = generator.normal(size=(2, n_trials, 50))
    ever = np.zeros(n_trials, dtype=bool)
    for n in range(1, 51):
        noise_squares = n * (means[:, :n].var(axis=1) + halves[:, :n].var(axis=1))
        ever |= bayes_factor(n * means[:, :n].mean(axis=1) ** 2, noise_squares, n) >= REJECTS_AT
    return ever


def _agrees(generator: np.random.Generator, n_trials: int) -> Bools:
    """Experiments of every kind, judged here and by ``stats.analyse``."""
    import numpy as np

    found = []
    for n_variants, n_concurrencies, effect in ((1, 1, 0.0), (1, 3, 0.02), (2, 4, 0.015), (3, 2, 0.03)):
        effects = {"V1": {EVERY: effect}, "V2": {1: -effect}}
        for plan in plans(generator, n_variants, n_concurrencies, LOOKS, 2):
            logs = experiments(plan, MACHINE, effects, math.ceil(n_trials / 8), generator)
            found.append(planned.agreement(plan, logs))
    return np.concatenate(found)


# ---- exact numbers


def _exact() -> list[Claim]:
    def exact(name: str, value: float, slack: float, unit: str, found: Callable[[], float]) -> Claim:
        return Claim("exact", name, f"{value:g} {unit}", value - slack, value + slack, unit, exact=found)

    thresholds = {(6, 8, 10): (0.0114, 0.0217, 0.0345), (4, 6, 8): (0.0056, 0.0192, 0.0356)}
    return [
        *(
            exact(f"threshold at {n} of {', '.join(map(str, looks))}", p, 0.00006, "p", partial(_threshold, looks, k))
            for looks, row in thresholds.items()
            for k, (n, p) in enumerate(zip(looks, row, strict=True))
        ),
        *(
            exact(f"detectable at 80 % power, {n} pairs", size, 0.006, "σ_d", partial(stats.detectable, n, 1.0))
            for n, size in ((4, 2.83), (6, 1.54), (8, 1.19), (10, 1.01))
        ),
        exact("6 pairs, 4 × 2 min + 3 min a start", 132, 0, "min", partial(_minutes, 1)),
        exact("the same, two variants in shared blocks", 198, 0, "min", partial(_minutes, 2)),
    ]


def _threshold(looks: tuple[int, ...], k: int) -> float:
    return stats.look_thresholds(looks)[k]


def _minutes(n_variants: int) -> float:
    import numpy as np

    drawn = next(plans(np.random.default_rng(0), n_variants, 4, LOOKS, 1))
    return planning.cost_s(drawn, 180, dict.fromkeys(drawn.concurrencies, 120))[0] / 60
