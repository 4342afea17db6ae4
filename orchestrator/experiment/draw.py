"""What is to be compared → a plan, and what it will cost; nothing is started and nothing stored here."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator import plan as plans
from orchestrator import stats
from orchestrator.designs import Arm, Plan
from orchestrator.errors import UsageError, VariantError, WorkspaceError
from orchestrator.records import Target, Variant, Workload, short
from orchestrator.session import BASELINE
from orchestrator.store import Store

BASELINE_AGAIN = "baseline-again"
"""The second arm of an A/A experiment: the same bytes, so that every difference is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for.

    Attributes:
        primary: concurrency that is judged by itself; the highest when None. seed: drawn when None.
    """

    workload: Workload
    concurrencies: tuple[int, ...]
    primary: int | None = None
    metric: str = "output_tokens_per_s"
    margin: float = 0.01
    looks: tuple[int, ...] = (6, 8, 10)
    seed: int | None = None
    hypothesis: str = ""
    is_aa: bool = False


def draw(store: Store, target: Target, variants: Sequence[Variant], wanted: Wanted) -> Plan:
    """Draws the plan of an experiment.

    Args:
        variants: none for A/A.

    Raises:
        WorkspaceError: nothing was pulled yet. VariantError: a variant was made from another baseline.
        UsageError: what is asked for makes no experiment.
    """
    baseline = store.baseline(target.name)
    if baseline is None:
        raise WorkspaceError(f"target {target.name} has no recorded baseline", next_step="run `orch pull`")
    if wanted.is_aa == bool(variants):
        what = "--aa compares the baseline with itself" if wanted.is_aa else "no variant is named"
        raise UsageError(what, next_step="name variants, or give --aa alone")
    for variant in variants:
        if variant.base_digest != baseline.digest:
            raise VariantError(
                f"variant {variant.name} was made from baseline {short(variant.base_digest)}, the recorded baseline is "
                f"{short(baseline.digest)}",
                next_step="drop it and make it again with `orch variant new`",
            )
    arms = [Arm(BASELINE, baseline.digest)]
    arms += [Arm(BASELINE_AGAIN, baseline.digest)] if wanted.is_aa else []
    arms += [Arm(variant.name, variant.digest, variant.message) for variant in variants]
    return plans.draw(
        target=target.name,
        host=target.host,
        workload=wanted.workload.name,
        arms=arms,
        concurrencies=wanted.concurrencies,
        primary_concurrency=max(wanted.concurrencies) if wanted.primary is None else wanted.primary,
        metric=wanted.metric,
        margin=wanted.margin,
        looks=wanted.looks,
        thresholds=stats.look_thresholds(wanted.looks, n_variants=len(arms) - 1),
        seed=secrets.randbits(31) if wanted.seed is None else wanted.seed,
        hypothesis=wanted.hypothesis,
        is_aa=wanted.is_aa,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan takes, from what earlier starts of the target took; in minutes of the host's GPU."""

    first_look_min: float
    last_look_min: float
    n_known_starts: int


def cost(store: Store, plan: Plan) -> Cost | None:
    """The cost of a plan; None where no start of the target was measured with that workload yet."""
    start_s, load_s, n_known = store.durations(plan.target, plan.workload)
    if start_s is None or not load_s:
        return None
    seconds = plans.cost_s(plan, start_s, _load_s(plan, load_s))
    return Cost(seconds[0] / 60, seconds[1] / 60, n_known)


def start_cost_s(store: Store, plan: Plan) -> float | None:
    """Seconds of one start of a plan with all its loads; None where that is not known yet."""
    start_s, load_s, _ = store.durations(plan.target, plan.workload)
    return None if start_s is None or not load_s else start_s + sum(_load_s(plan, load_s).values())


def _load_s(plan: Plan, known_s: Mapping[int, float]) -> dict[int, float]:
    """Of each concurrency of the plan; of one that was never measured the typical one."""
    typical_s = statistics.median(known_s.values())
    return {cap: known_s.get(cap, typical_s) for cap in plan.concurrencies}
