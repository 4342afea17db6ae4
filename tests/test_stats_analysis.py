"""An analysis says what its plan allows, when its plan allows it, and hides nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import plan as planning
from orchestrator import stats
from orchestrator.designs import Analysis, Arm, Plan, StartValues
from orchestrator.errors import ComparisonError

NOISE = (0.004, -0.006, 0.002, 0.005, -0.003, -0.002, 0.006, -0.004, 0.001, -0.005, 0.003, -0.001)
"""Of a start; nothing of it repeats with the blocks."""


def planned(n_variants: int = 1, **changes: Any) -> Plan:
    """A plan; its thresholds are those of its looks."""
    looks = changes.pop("looks", (6, 8, 10))
    asked: dict[str, Any] = {
        "target": "t",
        "host": "h",
        "workload": "w",
        "arms": [Arm("baseline", "0"), *(Arm(f"V{i}", f"{i}") for i in range(1, n_variants + 1))],
        "concurrencies": (8, 64),
        "primary_concurrency": 64,
        "metric": "output_tokens_per_s",
        "looks": looks,
        "thresholds": stats.look_thresholds(looks, n_variants=n_variants),
        "seed": 3,
    }
    return planning.draw(**{**asked, **changes})


def measured(
    plan: Plan, ratios: dict[str, float] | None = None, *, scale: float = 1.0, second: float = 1.0
) -> list[StartValues]:
    """Every start's values: 1,000 × the arm's ratio × its noise; ``second`` is what a later position does."""
    return [
        StartValues(
            100 + s.index,
            s.block,
            s.position,
            s.arm,
            {
                cap: 1000
                * (ratios or {}).get(s.arm, 1.0)
                * (second if s.position else 1.0)
                * math.exp(scale * NOISE[(7 * s.index + s.index // 5 + i) % len(NOISE)])
                for i, cap in enumerate(plan.concurrencies)
            },
        )
        for s in plan.starts
    ]


def analysed(ratio: float = 1.0, n_blocks: int | None = 6, *, scale: float = 1.0, **changes: Any) -> Analysis:
    """One variant with this true ratio."""
    plan = planned(**changes)
    return stats.analyse(plan, measured(plan, {"V1": ratio}, scale=scale), n_blocks=n_blocks)


def test_a_gain_is_found_and_ships() -> None:
    """3 % are FASTER at the first look, beyond the margin, and the experiment ends there."""
    found = analysed(1.03)
    arm = found.arms[0]
    assert (found.look, found.n_blocks, found.is_final, arm.ships) == (0, 6, True, True)
    assert [row.verdict for row in arm.rows] == ["FASTER", "FASTER"]
    assert arm.primary.concurrency == 64 and arm.primary.clears_margin
    assert arm.primary.estimate is not None and arm.primary.estimate.ratio == pytest.approx(1.03, abs=0.006)
    assert found.stop_reason == "decided at look 1 of 3, after 6 blocks"
    assert arm.why.startswith("ships: FASTER at concurrency 64 (+")
    assert "orch push --variant V1" in found.next_step
    assert (found.e_values["V1"] or 0) > 1


def test_a_lower_latency_is_faster() -> None:
    """The direction is the metric's."""
    assert analysed(0.97, metric="ttft_ms_p50").arms[0].primary.verdict == "FASTER"
    assert analysed(1.03, metric="ttft_ms_p50").arms[0].why.startswith("rejected: SLOWER")


def test_nothing_is_decided_between_looks() -> None:
    """After 7 blocks there are estimates and adjusted p, and no verdict whatever they are."""
    found = analysed(1.2, n_blocks=7)
    primary = found.arms[0].primary
    assert (found.look, found.threshold, found.is_final, found.stop_reason) == (None, None, False, None)
    assert primary.estimate is not None and primary.p_adjusted is not None and primary.p_adjusted < 1e-6
    assert primary.verdict is None and primary.why_no_verdict == "between looks: 7 complete blocks, judged at 6, 8, 10"
    assert found.arms[0].ships is None and found.arms[0].why.startswith("open: between looks")
    assert found.next_step == "go on: the next look is after 8 complete blocks"


@pytest.mark.parametrize("n_blocks", [0, 1, 2, 3])
def test_below_four_pairs_there_is_no_verdict(n_blocks: int) -> None:
    """Three pairs show an interval; fewer not even that."""
    primary = analysed(1.2, n_blocks=n_blocks).arms[0].primary
    assert (primary.estimate is not None) is (n_blocks == 3)
    assert primary.verdict is None and "at least 4" in (primary.why_no_verdict or "")


def test_equivalence_is_shown_not_assumed() -> None:
    """With little noise no difference is EQUIVALENT; with much INCONCLUSIVE, with the pairs that would show 1 %."""
    quiet, loud = analysed(1.0, scale=0.3), analysed(1.0, scale=4.0, n_blocks=None)
    assert quiet.arms[0].primary.verdict == "EQUIVALENT" and quiet.is_final and quiet.arms[0].ships is False
    primary = loud.arms[0].primary
    assert primary.verdict == "INCONCLUSIVE" and primary.estimate is not None
    upper = stats.sigma_upper(primary.estimate.sigma_d, 8)
    assert primary.pairs_needed == stats.pairs_needed(math.log1p(0.01), upper) > 10
    assert f"about {primary.pairs_needed} pairs" in loud.next_step and loud.arms[0].ships is None
    assert loud.stop_reason == "look 3 of 3, after 10 blocks, is the last one"


def test_hopelessness_ends_and_never_says_faster() -> None:
    """Where the last look can hardly find a gain, the first one stops; an A/A experiment goes on."""
    found = analysed(0.99, scale=1.6)
    assert found.arms[0].primary.verdict == "INCONCLUSIVE"
    assert found.is_final and (found.stop_reason or "").startswith("hopeless at look 1 of 3")
    again = planned(arms=[Arm("baseline", "0"), Arm("baseline-again", "0")], is_aa=True)
    assert stats.analyse(again, measured(again, {"baseline-again": 0.99}, scale=1.6), n_blocks=6).stop_reason is None


def test_a_gain_at_the_primary_alone_does_not_ship() -> None:
    """The ship rule asks every concurrency not to be worse than the margin."""
    plan = planned()
    starts = measured(plan, {"V1": 1.03})
    slower = [replace(s, values={**s.values, 8: s.values[8] * 0.95}) if s.arm == "V1" else s for s in starts]
    arm = stats.analyse(plan, slower, n_blocks=6).arms[0]
    assert arm.primary.verdict == "FASTER" and arm.ships is False
    assert arm.rows[0].is_not_worse is False
    assert arm.why.startswith("rejected: FASTER at concurrency 64") and arm.why.endswith("or more at 8")


def test_others_wait_for_the_primary() -> None:
    """A clear gain at another concurrency is no verdict while the primary one is open."""
    plan = planned()
    starts = [
        replace(s, values={**s.values, 8: s.values[8] * 1.1}) if s.arm == "V1" else s for s in measured(plan, scale=3)
    ]
    rows = stats.analyse(plan, starts, n_blocks=6).arms[0].rows
    assert rows[0].estimate is not None and rows[0].estimate.p < 0.01
    assert [row.verdict for row in rows] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    assert rows[0].p_adjusted == rows[1].p_adjusted


def test_two_variants_are_decided_together() -> None:
    """One open variant keeps the experiment going; the decided one keeps its verdict."""
    plan = planned(2)
    found = stats.analyse(plan, measured(plan, {"V1": 1.05, "V2": 1.009}, scale=1.2), n_blocks=6)
    assert [arm.primary.verdict for arm in found.arms] == ["FASTER", "INCONCLUSIVE"]
    assert not found.is_final and set(found.e_values) == {"V1", "V2"}


def test_the_order_effect_is_told() -> None:
    """A penalty for being second is taken out of the estimate, and named."""
    plan = planned()
    found = stats.analyse(plan, measured(plan, {"V1": 1.03}, second=0.95), n_blocks=6)
    assert found.arms[0].primary.verdict == "FASTER"
    assert any("came second in its pair was -5" in text for text in found.warnings)


def test_outliers_are_flagged_and_kept() -> None:
    """A start 30 % low is named, with its trial, and still counts."""
    plan = planned()
    starts = measured(plan)
    low = starts[9]
    starts[9] = replace(low, values={**low.values, 64: low.values[64] * 0.7})
    found = stats.analyse(plan, starts, n_blocks=8)
    told = [text for text in found.warnings if text.startswith("outlier, kept")]
    assert any(f"trial {low.trial_id}" in text and "-30%" in text.replace(" ", "") for text in told)
    estimate = found.arms[0].primary.estimate
    assert estimate is not None and estimate.n_pairs == 8 and estimate.sigma_d > 0.05


def test_a_missing_start_takes_its_block_out() -> None:
    """The block is named, does not count, and its repeat counts at its own time."""
    plan = planned()
    starts = measured(plan, {"V1": 1.03})
    without = [s for s in starts if (s.block, s.arm) != (3, "V1")]
    found = stats.analyse(plan, [s for s in without if s.block < 7])
    assert (found.n_blocks, found.look) == (6, 0)
    assert found.warnings[0] == "not counted, a start is missing or set aside: block 4"
    assert any("began with the baseline, so the interval is wider" in text for text in found.warnings)
    repeated = replace(next(s for s in starts if (s.block, s.arm) == (3, "V1")), trial_id=999)
    later = [s for s in without if s.block < 7] + [repeated]
    assert stats.analyse(plan, later).n_blocks == 7
    assert stats.analyse(plan, later, n_blocks=6).arms == found.arms


def test_a_value_missing_at_one_concurrency() -> None:
    """That pair is missing there only, and it is told."""
    plan = planned()
    starts = measured(plan, {"V1": 1.03})
    starts[0] = replace(starts[0], values={64: starts[0].values[64]})
    found = stats.analyse(plan, starts, n_blocks=6)
    assert [row.estimate.n_pairs for row in found.arms[0].rows if row.estimate] == [5, 6]
    assert any("no value at concurrency 8 in 1 of 6 blocks" in text for text in found.warnings)


def test_too_few_values_at_one_concurrency() -> None:
    """With 3 pairs that have a value there is an interval and no verdict, though the look has 6."""
    plan = planned()
    starts = [replace(s, values={64: s.values[64]}) if s.block < 3 else s for s in measured(plan, {"V1": 1.03})]
    rows = stats.analyse(plan, starts, n_blocks=6).arms[0].rows
    assert rows[0].estimate is not None and rows[1].verdict == "FASTER"
    assert (rows[0].verdict, rows[0].why_no_verdict) == (None, "3 usable pairs of 4")


def test_an_aa_experiment_that_differs_is_told() -> None:
    """The baseline against itself may differ by chance in 1 of 20."""
    plan = planned(arms=[Arm("baseline", "0"), Arm("baseline-again", "0")], is_aa=True)
    found = stats.analyse(plan, measured(plan, {"baseline-again": 1.05}), n_blocks=6)
    assert any("differs from itself" in text for text in found.warnings)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_is_refused(value: float) -> None:
    """It names the trial, the concurrency and the value."""
    plan = planned()
    starts = measured(plan)
    starts[3] = replace(starts[3], values={8: value, 64: 1.0})
    with pytest.raises(ComparisonError, match=r"trial 103 .* at concurrency 8"):
        stats.analyse(plan, starts)


def test_starts_that_are_not_of_the_plan_are_refused() -> None:
    """An unknown arm, a block that was not planned, a start that is there twice."""
    plan = planned()
    starts = measured(plan)
    for wrong in (replace(starts[0], arm="V9"), replace(starts[0], block=10), replace(starts[0], trial_id=500)):
        with pytest.raises(ComparisonError):
            stats.analyse(plan, [*starts, wrong])


def test_the_order_in_which_starts_are_given_does_not_matter() -> None:
    """Trial ids say when."""
    plan = planned(2)
    starts = measured(plan, {"V1": 1.02})
    assert stats.analyse(plan, starts[::-1], n_blocks=8) == stats.analyse(plan, starts, n_blocks=8)
