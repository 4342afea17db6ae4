"""Many planned experiments judged at once, by the rules of ``stats`` on arrays. A test holds that each one gets the
verdicts, the end and the ship rule that ``stats.analyse`` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import plan as planning
from orchestrator import stats
from orchestrator.designs import Analysis, Plan
from orchestrator.simulation.noise import start_values
from orchestrator.stats.crossover import fit
from orchestrator.stats.family import LEAST_CHANCE, adjusted, chance_at_last_look, is_equivalent, is_not_worse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Codes = NDArray[np.int8]

SLOWER, INCONCLUSIVE, FASTER, EQUIVALENT = -1, 0, 1, 2


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of experiments with one plan.

    Attributes:
        verdicts: codes, shape (trials, looks, variants, concurrencies), at every look whether it was reached or not.
        ships: shape (trials, looks, variants). last_look: index of the look that ended each trial.
        is_hopeless: that look ended it for hopelessness.
    """

    verdicts: Codes
    ships: Bools
    last_look: NDArray[np.intp]
    is_hopeless: Bools

    def reached(self) -> Bools:
        """Shape (trials, looks): the looks that were made."""
        import numpy as np

        return np.asarray(np.arange(self.verdicts.shape[1]) <= self.last_look[:, None])

    def differs(self) -> Bools:
        """Shape (trials, variants, concurrencies): FASTER or SLOWER at a look that was made."""
        import numpy as np

        found = np.isin(self.verdicts, (FASTER, SLOWER)) & self.reached()[:, :, None, None]
        return np.asarray(found.any(axis=1))

    def differs_at_any_look(self) -> Bools:
        """The same, with the looks that were not made counted as if they had been."""
        import numpy as np

        return np.asarray(np.isin(self.verdicts, (FASTER, SLOWER)).any(axis=1))

    def final(self) -> Codes:
        """Shape (trials, variants, concurrencies): the verdicts with which each trial ended."""
        import numpy as np

        return np.asarray(self.verdicts[np.arange(len(self.last_look)), self.last_look])

    def final_ships(self) -> Bools:
        """Shape (trials, variants): whether the variant ships in the end."""
        import numpy as np

        return np.asarray(self.ships[np.arange(len(self.last_look)), self.last_look])


def differences(plan: Plan, logs: Floats) -> tuple[Floats, Floats]:
    """(ln(variant ÷ baseline), shape (variants, trials, concurrencies, blocks); signs, shape (variants, blocks))."""
    import numpy as np

    n_arms = len(plan.arms)
    blocks = [plan.starts[i : i + n_arms] for i in range(0, len(plan.starts), n_arms)]
    at = {(start.block, start.arm): start.index for start in plan.starts}
    baseline = [at[block, plan.arms[0].name] for block in range(len(blocks))]
    found, signs = [], []
    for arm in plan.arms[1:]:
        variant = [at[block, arm.name] for block in range(len(blocks))]
        found.append(np.moveaxis(logs[:, variant] - logs[:, baseline], 1, 2))
        signs.append([planning.order_sign(block, arm.name) for block in blocks])
    return np.array(found), np.array(signs, dtype=float)


def judge(plan: Plan, logs: Floats) -> Outcomes:
    """Judges every experiment at every look. The first concurrency is the primary one, and higher is better."""
    import numpy as np

    d, signs = differences(plan, logs)
    looks = [_look(plan, k, d[..., :n], signs[:, :n]) for k, n in enumerate(plan.looks)]
    verdicts, ships, stops, hopeless = (np.stack(parts, axis=1) for parts in zip(*looks, strict=True))
    last = np.argmax(stops, axis=1)
    return Outcomes(verdicts, ships, last, hopeless[np.arange(len(last)), last])


def _look(plan: Plan, k: int, d: Floats, signs: Floats) -> tuple[Any, Any, Any, Any]:
    """(verdicts, ships, whether to stop, whether for hopelessness) at look ``k``."""
    import numpy as np

    fits = [fit(series, s) for series, s in zip(d, signs, strict=True)]
    log_ratio, se, sigma, p = (
        np.stack([getattr(f, name) for f in fits], axis=1) for name in ("log_ratio", "se", "sigma_d", "p")
    )
    df, threshold = fits[0].df, plan.thresholds[k]
    verdicts = np.where(is_equivalent(log_ratio, se, df, plan.margin, threshold), EQUIVALENT, INCONCLUSIVE)
    verdicts = np.where(adjusted(p, threshold) < threshold, np.where(log_ratio > 0, FASTER, SLOWER), verdicts).astype(
        np.int8
    )
    not_worse = is_not_worse(log_ratio, se, df, plan.margin, is_higher_better=True).all(axis=-1)
    primary = verdicts[..., 0]
    chance = chance_at_last_look(
        log_ratio[..., 0], sigma[..., 0], plan.looks[k], plan.n_blocks, plan.thresholds[-1], plan.margin
    )
    is_last = k == len(plan.looks) - 1
    is_open = primary == INCONCLUSIVE
    hopeless = (~is_open | (chance < LEAST_CHANCE)).all(axis=1) & is_open.any(axis=1) & (not is_last)
    return verdicts, (primary == FASTER) & not_worse, ~is_open.any(axis=1) | hopeless | is_last, hopeless


# ---- the same by stats.analyse, one by one

_CODES = {"FASTER": FASTER, "SLOWER": SLOWER, "EQUIVALENT": EQUIVALENT, "INCONCLUSIVE": INCONCLUSIVE}


def agreement(plan: Plan, logs: Floats) -> Bools:
    """Whether ``stats.analyse`` says the same as ``judge`` of each experiment, at every look: one bool a trial."""
    import numpy as np

    outcomes = judge(plan, logs)
    return np.array([_is_same(plan, logs[i], outcomes, i) for i in range(len(logs))])


def _is_same(plan: Plan, logs: Floats, outcomes: Outcomes, i: int) -> bool:
    starts = start_values(plan, logs)
    analyses = [stats.analyse(plan, starts, n_blocks=n) for n in plan.looks]
    stops = [k for k, analysis in enumerate(analyses) if analysis.is_final]
    is_hopeless = "hopeless" in (analyses[stops[0]].stop_reason or "")
    is_same_end = stops[0] == outcomes.last_look[i] and is_hopeless == outcomes.is_hopeless[i]
    return bool(is_same_end) and all(_is_same_look(one, outcomes, i, k) for k, one in enumerate(analyses))


def _is_same_look(analysis: Analysis, outcomes: Outcomes, i: int, k: int) -> bool:
    codes = [[_CODES[row.verdict or "INCONCLUSIVE"] for row in arm.rows] for arm in analysis.arms]
    ships = [bool(arm.ships) for arm in analysis.arms]
    return bool(codes == outcomes.verdicts[i, k].tolist() and ships == outcomes.ships[i, k].tolist())
