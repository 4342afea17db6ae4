"""A plan and the starts so far → ``Analysis``: estimates, verdicts, whether to stop, and what to do next.

FASTER and SLOWER, over all variants, concurrencies and looks of an experiment, are wrong anywhere in at most 5 % of
experiments (``family.adjusted`` and ``looks``). EQUIVALENT and "not worse" are claims of another kind: each by itself
has a one-sided error of 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.designs import Analysis, Arm, ArmAnalysis, ConcurrencyAnalysis, Estimate, Plan, StartValues
from orchestrator.errors import UnknownNameError
from orchestrator.metrics import METRICS, MOST_PAIRS, needed_words
from orchestrator.stats import family, flags
from orchestrator.stats.crossover import LEAST_PAIRS, estimate
from orchestrator.stats.eprocess import e_value
from orchestrator.stats.family import LEAST_CHANCE, MIN_PAIRS, chance_at_last_look, is_not_worse, verdict
from orchestrator.stats.pairs import Pairs, complete_blocks, pairs_of
from orchestrator.stats.power import pairs_needed, sigma_upper

_Series = Mapping[tuple[str, int], tuple[Pairs, Estimate | None]]
"""Pairs and their estimate by (variant, concurrency)."""

DECIDED = ("FASTER", "SLOWER", "EQUIVALENT")


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where an experiment stands. ``look``, ``threshold``: None between looks."""

    plan: Plan
    n_blocks: int
    look: int | None
    threshold: float | None

    @property
    def is_higher_better(self) -> bool:
        return METRICS[self.plan.metric].direction == "higher"

    @property
    def why_no_verdict(self) -> str:
        if self.n_blocks < MIN_PAIRS:
            return f"{self.n_blocks} complete blocks, a verdict needs at least {MIN_PAIRS}"
        return f"between looks: {self.n_blocks} complete blocks, judged at {', '.join(map(str, self.plan.looks))}"


def analyse(plan: Plan, starts: Sequence[StartValues], *, n_blocks: int | None = None) -> Analysis:
    """Judges an experiment as its plan says.

    Args:
        starts: the admissible ones, in any order; trial ids rise in time.
        n_blocks: judge as of so many complete blocks; None for all that are complete.

    Returns:
        The analysis. Between looks there are estimates, and no verdicts.

    Raises:
        ComparisonError: a start is not of this plan, is there twice, or a value has no logarithm.
        UnknownNameError: the plan's metric is unknown.
    """
    if plan.metric not in METRICS:
        raise UnknownNameError(f"there is no metric {plan.metric!r}")
    blocks = complete_blocks(plan, starts)[:n_blocks]
    look = plan.looks.index(len(blocks)) if len(blocks) in plan.looks else None
    moment = _Moment(plan, len(blocks), look, None if look is None else plan.thresholds[look])
    keys = [(arm.name, concurrency) for arm in plan.arms[1:] for concurrency in plan.concurrencies]
    pairs = {key: pairs_of(blocks, plan.arms[0].name, *key) for key in keys}
    series = {key: (found, _estimate(found)) for key, found in pairs.items()}
    adjusted = _adjusted(moment, series)
    arms = tuple(_arm(moment, arm, series, adjusted) for arm in plan.arms[1:])
    stop_reason = _stop_reason(moment, arms)
    primaries = {arm.name: pairs[arm.name, plan.primary_concurrency] for arm in plan.arms[1:]}
    return Analysis(
        look,
        moment.threshold,
        len(blocks),
        arms,
        is_final=stop_reason is not None,
        stop_reason=stop_reason,
        e_values={name: e_value(found.differences, found.signs) for name, found in primaries.items()},
        warnings=(*flags.warnings(plan, starts, blocks, series), *_aa_warning(plan, arms)),
        next_step=_next_step(moment, arms, stop_reason),
    )


def _estimate(pairs: Pairs) -> Estimate | None:
    n_first = pairs.signs.count(1)
    if len(pairs.signs) < LEAST_PAIRS or n_first in (0, len(pairs.signs)):
        return None
    return estimate(pairs.differences, pairs.signs)


def _adjusted(moment: _Moment, series: _Series) -> dict[tuple[str, int], float | None]:
    """p by (variant, concurrency), adjusted for the family; None without an estimate."""
    import numpy as np

    plan = moment.plan
    others = [concurrency for concurrency in plan.concurrencies if concurrency != plan.primary_concurrency]
    keys = [[(arm.name, cap) for cap in (plan.primary_concurrency, *others)] for arm in plan.arms[1:]]
    found = [[series[key][1] for key in row] for row in keys]
    p = np.array([[math.nan if one is None else one.p for one in row] for row in found])
    values = family.adjusted(p, moment.threshold)
    return {
        key: None if math.isnan(value) else float(value)
        for row, row_values in zip(keys, values, strict=True)
        for key, value in zip(row, row_values, strict=True)
    }


# ---- one variant


def _arm(moment: _Moment, arm: Arm, series: _Series, adjusted: Mapping[tuple[str, int], float | None]) -> ArmAnalysis:
    rows = tuple(
        _row(moment, concurrency, series[arm.name, concurrency], adjusted[arm.name, concurrency])
        for concurrency in moment.plan.concurrencies
    )
    primary = next(row for row in rows if row.is_primary)
    return ArmAnalysis(arm.name, arm.digest, rows, _ships(primary, rows), _why(moment, primary, rows))


def _row(
    moment: _Moment, concurrency: int, one: tuple[Pairs, Estimate | None], p_adjusted: float | None
) -> ConcurrencyAnalysis:
    plan, (pairs, found) = moment.plan, one
    word = None
    if found is not None and p_adjusted is not None and moment.threshold is not None and found.n_pairs >= MIN_PAIRS:
        word = verdict(found, p_adjusted, moment.threshold, plan.margin, moment.is_higher_better)
    why = moment.why_no_verdict if moment.threshold is None else f"{len(pairs.signs)} usable pairs of {MIN_PAIRS}"
    return ConcurrencyAnalysis(
        concurrency,
        found,
        concurrency == plan.primary_concurrency,
        p_adjusted,
        word,
        None if word else why,
        clears_margin=found is not None and (found.low95 > 1 + plan.margin or found.high95 < 1 - plan.margin),
        is_not_worse=None if found is None else _is_not_worse(moment, found),
        pairs_needed=None if found is None or word in DECIDED else _pairs_needed(found, plan.margin),
    )


def _is_not_worse(moment: _Moment, found: Estimate) -> bool:
    return bool(is_not_worse(found.log_ratio, found.se, found.df, moment.plan.margin, moment.is_higher_better))


def _pairs_needed(found: Estimate, margin: float) -> int:
    """Pairs in all that would show the margin; more than there are, since those did not decide."""
    least = found.n_pairs + 2 - found.n_pairs % 2
    return max(least, pairs_needed(math.log1p(margin), sigma_upper(found.sigma_d, found.df)))


def _ships(primary: ConcurrencyAnalysis, rows: Sequence[ConcurrencyAnalysis]) -> bool | None:
    if primary.verdict not in DECIDED:
        return None
    return primary.verdict == "FASTER" and all(row.is_not_worse for row in rows)


def _why(moment: _Moment, primary: ConcurrencyAnalysis, rows: Sequence[ConcurrencyAnalysis]) -> str:
    margin, found, where = f"{moment.plan.margin * 100:g} %", primary.estimate, f"at concurrency {primary.concurrency}"
    if primary.verdict is None or found is None:
        return f"open: {primary.why_no_verdict}"
    change = f"{(found.ratio - 1) * 100:+.1f} %"
    if primary.verdict == "EQUIVALENT":
        return f"rejected: {where} the difference is within ±{margin} ({change})"
    if primary.verdict == "SLOWER":
        return f"rejected: SLOWER {where} ({change})"
    if primary.verdict == "INCONCLUSIVE":
        return f"open: {where} ({change}) neither a difference nor its absence is shown"
    unsure = [str(row.concurrency) for row in rows if not row.is_not_worse]
    if unsure:
        return f"rejected: FASTER {where} ({change}), but may be worse by {margin} or more at {', '.join(unsure)}"
    return f"ships: FASTER {where} ({change}), and not worse by {margin} at any"


# ---- the experiment


def _stop_reason(moment: _Moment, arms: Sequence[ArmAnalysis]) -> str | None:
    """Why to stop now; None to go on. Hopelessness can only end what is undecided."""
    if moment.look is None:
        return None
    looks = moment.plan.looks
    name = f"look {moment.look + 1} of {len(looks)}, after {moment.n_blocks} blocks"
    undecided = [arm for arm in arms if arm.primary.verdict not in DECIDED]
    if not undecided:
        return f"decided at {name}"
    if moment.look == len(looks) - 1:
        return f"{name}, is the last one"
    if not moment.plan.is_aa and all(_is_hopeless(moment, arm.primary.estimate) for arm in undecided):
        names = ", ".join(arm.arm for arm in undecided)
        return (
            f"hopeless at {name}: at most a chance of {LEAST_CHANCE * 100:g} % that the last one finds {names} FASTER"
        )
    return None


def _is_hopeless(moment: _Moment, found: Estimate | None) -> bool:
    if found is None:
        return False
    plan = moment.plan
    better = found.log_ratio if moment.is_higher_better else -found.log_ratio
    chance = chance_at_last_look(better, found.sigma_d, found.n_pairs, plan.n_blocks, plan.thresholds[-1], plan.margin)
    return bool(chance < LEAST_CHANCE)


def _aa_warning(plan: Plan, arms: Sequence[ArmAnalysis]) -> list[str]:
    if plan.is_aa and any(arm.primary.verdict in ("FASTER", "SLOWER") for arm in arms):
        return [
            "the baseline differs from itself: by chance in 1 experiment of 20, otherwise something besides the bytes"
            " changes between starts"
        ]
    return []


def _next_step(moment: _Moment, arms: Sequence[ArmAnalysis], stop_reason: str | None) -> str:
    if stop_reason is None:
        following = next(look for look in moment.plan.looks if look > moment.n_blocks)
        return f"go on: the next look is after {following} complete blocks"
    if moment.plan.is_aa:
        return "plan experiments with the noise that was seen (sigma_d at each concurrency)"
    shipping = [arm.arm for arm in arms if arm.ships]
    if shipping:
        return f"`orch push --variant {shipping[0]}` makes it live" + (
            f"; {', '.join(shipping[1:])} ship too" if shipping[1:] else ""
        )
    needed = [arm.primary.pairs_needed for arm in arms if arm.primary.pairs_needed is not None]
    if needed:
        margin = f"{moment.plan.margin * 100:g} %"
        n = max(needed)
        about = "" if n > MOST_PAIRS else "about "
        return f"{about}{needed_words(n)} pairs would show {margin}; lower the noise, or look for a larger effect"
    return "note why each variant was rejected, and try another"
