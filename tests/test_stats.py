"""A comparison shows ratios, and never a verdict that the order of the starts does not carry."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ComparisonError, UnknownNameError
from orchestrator.records import NOT_RECORDED, Comparison, Measurement
from orchestrator.stats import MIN_PAIRS, comparable, compare

KEY = {"host": "gpu-a", "driver_version": "550.54", "workload.seed": "7"}
DIGESTS = {"baseline": "sha256:" + "a" * 64, "V2": "sha256:" + "b" * 64}
THROUGHPUT = "output_tokens_per_s"


def measurement(trial_id: int, arm: str, value: float = 100.0, cap: int = 8, **key: str) -> Measurement:
    """One value; trials start a minute apart."""
    started_at = f"2026-01-01T{trial_id // 60:02}:{trial_id % 60:02}:00+00:00"
    return Measurement(trial_id, arm, DIGESTS[arm], cap, value, started_at, {**KEY, **key})


def compared(order: str, metric: str = THROUGHPUT) -> Comparison:
    """A comparison of starts in the order of the letters, one value each."""
    names = {"A": "baseline", "B": "V2"}
    starts = [measurement(i, names[letter]) for i, letter in enumerate(order)]
    arms = [[m for m in starts if m.arm == arm] for arm in ("baseline", "V2")]
    return compare(arms[0], arms[1], metric=metric)


_positive = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8)


@given(_positive, _positive, st.floats(0.01, 100))
def test_the_ratio_is_of_geometric_means(a: list[float], b: list[float], factor: float) -> None:
    """The ratio is variant ÷ baseline of geometric means: it scales with the variant and inverts when they swap."""

    def ratio(base: list[float], other: list[float]) -> float:
        found = compare(
            [measurement(i, "baseline", v) for i, v in enumerate(base)],
            [measurement(100 + i, "V2", v) for i, v in enumerate(other)],
            metric=THROUGHPUT,
        ).rows[0]
        assert (found.baseline_values, found.variant_values) == (tuple(base), tuple(other))
        assert found.ratio is not None
        return found.ratio

    expected = math.prod(v ** (1 / len(b)) for v in b) / math.prod(v ** (1 / len(a)) for v in a)
    assert ratio(a, b) == pytest.approx(expected)
    assert ratio(a, [v * factor for v in b]) == pytest.approx(ratio(a, b) * factor)
    assert ratio(b, a) == pytest.approx(1 / ratio(a, b))


def test_each_concurrency_has_a_row() -> None:
    """Concurrencies come in order; one that only one arm measured has no ratio, and the warning says so."""
    a = [measurement(0, "baseline", 50.0, 1), measurement(0, "baseline", 80.0, 64)]
    b = [measurement(1, "V2", 55.0, 1), measurement(1, "V2", 90.0, 8)]
    found = compare(a, b, metric=THROUGHPUT)
    assert [(r.concurrency_cap, r.ratio) for r in found.rows] == [(1, pytest.approx(1.1)), (8, None), (64, None)]
    assert "concurrency 8: 0 of 1 starts of baseline have a value" in found.warnings
    assert "concurrency 64: 0 of 1 starts of V2 have a value" in found.warnings


def test_values_come_in_the_order_of_the_starts() -> None:
    """Values and letters are ordered by time of start, whatever order and clock notation they are given in."""
    late = replace(measurement(1, "baseline", 2.0), started_at="2026-01-01T02:00:00Z")
    early = replace(measurement(2, "baseline", 1.0), started_at="2026-01-01T02:30:00+01:00")
    middle = replace(measurement(3, "V2"), started_at="2026-01-01T01:45:00.250000+00:00")
    found = compare([late, early], [middle], metric=THROUGHPUT)
    assert found.order == ("A", "B", "A")
    assert found.rows[0].baseline_values == (1.0, 2.0)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_value_without_logarithm_gives_no_ratio(value: float) -> None:
    """A count of 0 is shown, has no ratio, and the warning says why."""
    found = compare([measurement(0, "baseline", value)], [measurement(1, "V2", 1.0)], metric="n_failed")
    assert found.rows[0].ratio is None
    assert any("not above 0" in warning for warning in found.warnings)


# ---- no verdict


@pytest.mark.parametrize(
    ("order", "reasons"),
    [
        ("AB", ["1 complete pair ", 'order of starts was "AB"', "all A before all B"]),
        ("AAB", ["1 complete pair ", 'order of starts was "AAB"', "all A before all B"]),
        ("BBBAAA", ["1 complete pair ", "all B before all A"]),
        ("AAAABBBB", ["1 complete pair ", "at least 4", "all A before all B"]),
        ("ABABABAB", ["not counterbalanced", "4 pairs began with A and 0 with B"]),
        ("ABBAAB", ["3 complete pairs", "2 pairs began with A and 1 with B"]),
        ("ABBA", ["2 complete pairs"]),
    ],
)
def test_why_there_is_no_verdict(order: str, reasons: list[str]) -> None:
    """The reason counts the complete pairs and quotes the order that was seen."""
    found = compared(order)
    assert found.verdict is None
    assert found.order == tuple(order)
    assert found.why_no_verdict is not None
    for reason in reasons:
        assert reason in found.why_no_verdict
    assert ("counterbalanced" in found.why_no_verdict) == (order != "ABBA")
    assert found.next_step is not None
    assert "`orch run V2 --concurrency " in found.next_step


def test_counterbalanced_pairs_by_hand_still_get_no_verdict() -> None:
    """Even enough balanced pairs carry no verdict when nobody drew their order first."""
    found = compared("ABBABAAB")
    assert found.verdict is None
    assert found.why_no_verdict is not None
    assert "verdicts need a planned experiment" in found.why_no_verdict
    assert f"{MIN_PAIRS} complete pairs" in found.why_no_verdict
    assert "orch push" not in (found.next_step or "")


def test_a_start_without_every_concurrency_completes_no_pair() -> None:
    """A pair counts only when both of its starts have every concurrency that is compared."""
    arms = {"A": "baseline", "B": "V2"}
    all_starts = [measurement(i, arms[x], cap=cap) for i, x in enumerate("ABBABAAB") for cap in (1, 8)]
    cut = [m for m in all_starts if (m.trial_id, m.concurrency_cap) != (3, 8)]
    a, b = ([m for m in cut if m.arm == arm] for arm in ("baseline", "V2"))
    found = compare(a, b, metric=THROUGHPUT)
    assert found.why_no_verdict is not None
    assert "3 complete pairs" in found.why_no_verdict
    assert "concurrency 8: 3 of 4 starts of baseline have a value" in found.warnings


@given(st.text("AB", min_size=2, max_size=14).filter(lambda order: "A" in order and "B" in order))
def test_no_order_gets_a_verdict(order: str) -> None:
    """Whatever the order, there is a reason and a next step, and the letters are kept."""
    found = compared(order)
    assert found.verdict is None
    assert found.why_no_verdict
    assert found.next_step
    assert "".join(found.order) == order


# ---- comparable or not


def test_unlike_runs_are_refused_with_every_key() -> None:
    """Each fact that differs is named with both values, a missing one as not recorded."""
    a = measurement(0, "baseline")
    b = replace(measurement(1, "V2"), comparison_key={"host": "gpu-b", "workload.seed": "7", "model": "m" * 300})
    with pytest.raises(ComparisonError) as refused:
        comparable(a, b)
    text = str(refused.value)
    assert "host (gpu-a against gpu-b)" in text
    assert f"driver_version (550.54 against {NOT_RECORDED})" in text
    assert "workload.seed" not in text
    assert "m" * 300 not in text, "a long value is cut in the line"
    assert any("m" * 300 in line for line in refused.value.evidence), "and whole in the evidence"
    comparable(a, measurement(1, "V2"))


def test_arms_without_common_conditions_are_refused() -> None:
    """When no start of the baseline was taken under the variant's conditions, nothing is compared."""
    with pytest.raises(ComparisonError, match=r"driver_version \(550.54 against 570.86\)"):
        compare([measurement(0, "baseline")], [measurement(1, "V2", driver_version="570.86")], metric=THROUGHPUT)


def test_starts_under_other_conditions_are_set_aside_with_a_warning() -> None:
    """After a driver update the old starts do not count, and the warning names them and the key."""
    a = [measurement(0, "baseline", 1.0), measurement(2, "baseline", 100.0, driver_version="570.86")]
    b = [measurement(1, "V2", 1.0), measurement(3, "V2", 110.0, driver_version="570.86")]
    found = compare(a, b, metric=THROUGHPUT)
    assert found.rows[0].ratio == pytest.approx(1.1)
    assert found.order == ("A", "B")
    assert [w for w in found.warnings if "set aside" in w] == [
        "1 start of baseline set aside, taken under other conditions (driver_version differs): trial 0",
        "1 start of V2 set aside, taken under other conditions (driver_version differs): trial 1",
    ]


def test_what_cannot_be_an_arm_is_refused() -> None:
    """An empty arm, an arm of two digests, and a start that is in both arms are refused."""
    good, other = measurement(0, "baseline"), measurement(1, "V2")
    with pytest.raises(ComparisonError, match="nothing was measured for the variant"):
        compare([good], [], metric=THROUGHPUT)
    with pytest.raises(ComparisonError, match="mixes arms or digests"):
        compare([good, other], [other], metric=THROUGHPUT)
    with pytest.raises(ComparisonError, match="same engine start"):
        compare([good], [replace(other, trial_id=0)], metric=THROUGHPUT)


def test_an_unknown_metric_names_the_nearest() -> None:
    """A misspelt metric is answered with what may have been meant."""
    with pytest.raises(UnknownNameError, match="ttft_ms_p50"):
        compared("AB", "ttft_p50")


# ---- warnings


@pytest.mark.parametrize(
    ("metric", "words"), [("ttft_ms_p50", "lower is better, so a ratio below 1 is a gain"), ("n_ok", "no direction")]
)
def test_the_direction_is_said_where_it_is_not_up(metric: str, words: str) -> None:
    """A metric of which less is better, or nothing, says so; one of which more is better needs no warning."""
    assert any(words in warning for warning in compared("AB", metric).warnings)
    assert not any("better" in warning for warning in compared("AB").warnings)


def test_warnings_tell_what_the_ratio_cannot() -> None:
    """One start an arm, equal bytes and unrecorded facts are pointed out."""
    a = [measurement(0, "baseline", driver_version=NOT_RECORDED)]
    b = [replace(measurement(1, "V2", driver_version=NOT_RECORDED), digest=DIGESTS["baseline"])]
    warnings = " / ".join(compare(a, b, metric=THROUGHPUT).warnings)
    assert "baseline was started once" in warnings
    assert "V2 was started once" in warnings
    assert "same bytes" in warnings
    assert "not recorded for either arm, so nobody knows whether it agrees: driver_version" in warnings
    assert "started once" not in " ".join(compared("ABBA").warnings)
