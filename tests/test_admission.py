"""Whether a start may count: every reason and every flag, from records that are good but for one thing."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import admission
from orchestrator.admission import EarlierStart, StartFacts, judge, remember
from orchestrator.designs import Admission, Arm, EngineCounters, Plan, TelemetrySample
from orchestrator.records import LoadResult, RequestRecord, Workload

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
METRIC = "output_tokens_per_s"
WORKLOAD = Workload(name="w", output_tokens=4, prompts_per_concurrency=10)
PLAN = Plan(
    target="t",
    host="h",
    workload="w",
    arms=(Arm("baseline", DIGEST), Arm("V1", OTHER)),
    concurrencies=(1, 8),
    primary_concurrency=8,
    metric=METRIC,
    margin=0.01,
    looks=(6,),
    thresholds=(0.05,),
    seed=1,
    starts=(),
)
BEGAN_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z
N_SECONDS = 20


def request(i: int, text: str = "same") -> RequestRecord:
    """A good request; its text depends on its number."""
    return RequestRecord(i, 1.0, 1.1, 1.4, 128, 4, 4, (100.0, 100.0, 100.0), None, f"{text}-{i}")


def load(concurrency: int, *, n_other: int = 0, value: float = 100.0, **changes: Any) -> LoadResult:
    """A good load of 20 seconds, so many of whose texts are others."""
    n_requests = 10 * concurrency
    given = LoadResult(
        concurrency_cap=concurrency,
        status="ok",
        reasons=(),
        metrics={METRIC: value},
        requests=tuple(request(i, "other" if i < n_other else "same") for i in range(n_requests)),
        client="loadgen",
        client_version="1",
        argv=(),
        raw=b"{}",
        started_at="2026-01-01T00:00:00.000Z",
        ended_at="2026-01-01T00:00:20.000Z",
    )
    return replace(given, **changes)


def sample(second: float, **changes: Any) -> TelemetrySample:
    """A look at a busy, healthy GPU."""
    given = TelemetrySample(BEGAN_S + second, 0, 600.0, 1700.0, 3201.0, 60.0, 1 << 36, 99.0, (), ())
    return replace(given, **changes)


def samples(*changed: TelemetrySample) -> tuple[TelemetrySample, ...]:
    """A look each second, some of them as given."""
    by_second = {one.at_s: one for one in (*(sample(second) for second in range(N_SECONDS)), *changed)}
    return tuple(by_second[moment] for moment in sorted(by_second))


def start(*loads: LoadResult, **changes: Any) -> StartFacts:
    """A good start of V1 on a host without a GPU."""
    given: dict[str, Any] = {
        "block": 3,
        "arm": "V1",
        "is_baseline": False,
        "status": "ok",
        "reasons": (),
        "digest": OTHER,
        "loaded_digest": OTHER,
        "digest_before": OTHER,
        "digest_after": OTHER,
        "process_before": (7, 70),
        "process_after": (7, 70),
        "loads": loads or (load(1), load(8)),
        "telemetry": {1: None, 8: None},
    }
    return StartFacts(**{**given, **changes})


def baseline(*loads: LoadResult, block: int = 0, **changes: Any) -> StartFacts:
    """A good start of the baseline."""
    digests = dict.fromkeys(("digest", "loaded_digest", "digest_before", "digest_after"), DIGEST)
    return start(*loads, **{**digests, "arm": "baseline", "is_baseline": True, "block": block, **changes})


def judged(facts: StartFacts, earlier: Sequence[StartFacts] = (), **options: Any) -> Admission:
    """The judgement, with earlier starts as they are remembered."""
    return judge(facts, WORKLOAD, PLAN, [remember(one, METRIC) for one in earlier], **options)


def test_a_good_start_counts() -> None:
    """Nothing is said about a start with which nothing is wrong, first or later, on a GPU or not."""
    assert judged(start()) == Admission(())
    good = start(telemetry={1: samples(), 8: samples()})
    assert judged(good, [baseline(block=0), baseline(block=3), start(block=0)]) == Admission(())


# ---- files, engine, trial


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loaded_digest": DIGEST}, "the engine loaded aaaaaaaaaaaa, deployed was bbbbbbbbbbbb"),
        ({"loaded_digest": None}, "the engine loaded –, deployed was bbbbbbbbbbbb"),
        ({"digest_before": DIGEST}, "the live file was aaaaaaaaaaaa before and bbbbbbbbbbbb after the loads"),
        ({"digest_after": DIGEST}, "the live file was bbbbbbbbbbbb before and aaaaaaaaaaaa after the loads"),
        ({"digest_after": None}, "the live file was bbbbbbbbbbbb before and – after the loads"),
        ({"process_after": (8, 70)}, "the engine was restarted under load: pid 7, then pid 8"),
        ({"process_after": (7, 71)}, "the engine was restarted under load: pid 7, then pid 7"),
        ({"status": "contaminated", "reasons": ("the live file changed",)}, "the live file changed"),
        ({"status": "failed", "reasons": ("CUDA error",), "loads": ()}, "CUDA error"),
        ({"status": "failed", "loads": ()}, "the trial is failed"),
    ],
)
def test_what_was_measured_must_be_what_was_deployed(changes: Mapping[str, Any], reason: str) -> None:
    """Digests and the engine's identity are checked again; a trial that is not ok brings its own reasons, once."""
    judgement = judged(start(**changes))
    assert len(judgement.reasons) == 1 and judgement.reasons[0].startswith(reason)
    assert not judgement.is_admissible and not judgement.is_wrong_output


def test_what_nobody_looked_at_is_no_restart() -> None:
    """An engine whose identity is unknown at one end is not called restarted."""
    assert judged(start(process_after=None)).is_admissible


# ---- loads


def altered(**changes: Any) -> LoadResult:
    """A load at concurrency 1 whose third request is another one, but which claims to be ok."""
    requests = list(load(1).requests)
    requests[2] = replace(requests[2], **changes)
    return load(1, requests=tuple(requests))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (altered(error="HTTP 500: x"), "1 of 10 requests: failed"),
        (altered(n_output_tokens=3), "1 of 10 requests: output tokens are not the 4 asked for"),
        (altered(n_output_tokens=None), "1 of 10 requests: output tokens are not the 4 asked for"),
        (altered(first_chunk_s=1.0), "1 of 10 requests: TTFT of 0"),
        (altered(first_chunk_s=0.9), "1 of 10 requests: TTFT of 0"),
        (altered(first_chunk_s=None), "1 of 10 requests: a time is missing or not finite"),
        (altered(last_chunk_s=math.inf), "1 of 10 requests: a time is missing or not finite"),
        (altered(itl_ms=(math.nan,)), "1 of 10 requests: a time is missing or not finite"),
        (load(1, metrics={METRIC: math.nan, "n_ok": None}), f"not finite: {METRIC}"),
        (load(1, raw=None), "the client's result is missing"),
        (load(1, requests=load(1).requests[:4]), "the client's result is cut: 4 records for 10 requests"),
        (load(1, status="invalid", reasons=("a", "b"), metrics={}), "the load is invalid: a (and 1 more)"),
        (load(1, status="failed", reasons=(), raw=None), "the load is failed: no reason is recorded"),
    ],
)
def test_every_load_must_be_good(first: LoadResult, reason: str) -> None:
    """One bad request, a result that is missing or cut, or a load that is not ok: each is one reason with its place."""
    assert judged(start(first, load(8))).reasons == (f"concurrency 1: {reason}",)


def test_every_planned_load_must_be_there() -> None:
    """A concurrency that was not loaded is a reason."""
    assert judged(start(load(1))).reasons == ("no load at concurrency 8",)


# ---- telemetry


@pytest.mark.parametrize("reason", ["sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown"])
def test_a_throttled_gpu(reason: str) -> None:
    """One sample under a thermal or brake reason is enough, and it says how many there were."""
    hot = samples(sample(3, throttle_reasons=(reason, "sw_power_cap")))
    judgement = judged(start(telemetry={1: samples(), 8: hot}))
    assert judgement.reasons == (f"concurrency 8: throttled: {reason} on GPU 0 in 1 of 20 samples",)
    assert judgement.flags == ("concurrency 8: at the power limit: sw_power_cap on GPU 0 in 1 of 20 samples",)


def test_the_power_limit_alone_is_a_flag() -> None:
    """A GPU that works within its power limit is what is measured: flagged, and counted."""
    capped = samples(*(sample(second, throttle_reasons=("sw_power_cap",)) for second in range(N_SECONDS)))
    judgement = judged(start(telemetry={1: capped, 8: None}))
    assert judgement.is_admissible
    assert judgement.flags == ("concurrency 1: at the power limit: sw_power_cap on GPU 0 in 20 of 20 samples",)


def test_a_foreign_process() -> None:
    """Somebody else on the GPU during the load is a reason, told once for each process."""
    busy = samples(*(sample(second, foreign_pids=(4711,)) for second in (4, 5)))
    assert judged(start(telemetry={1: busy})).reasons == (
        "concurrency 1: process 4711, which is not the engine's, computed on GPU 0",
    )


def test_the_gpus_of_several_nodes_are_told_apart() -> None:
    """Each node has a GPU 0: what is wrong names the node, and gaps are looked for on each by itself."""
    head, other = (tuple(replace(one, node=node) for one in samples()) for node in ("n1", "n2"))
    hot = replace(other[3], throttle_reasons=("hw_thermal",), foreign_pids=(4711,))
    judgement = judged(start(telemetry={1: (*head, *other[:3], hot)}))
    assert judgement.reasons == (
        "concurrency 1: throttled: hw_thermal on GPU 0 of n2 in 1 of 4 samples",
        "concurrency 1: process 4711, which is not the engine's, computed on GPU 0 of n2",
    )
    assert judgement.flags == ("concurrency 1: telemetry of n2 has 4 samples of 20 s",)
    assert judged(start(telemetry={1: (*head, *other), 8: head})).flags == (
        "concurrency 8: telemetry of n2 has 0 samples of 20 s",
    )


@pytest.mark.parametrize("second", [-5.0, 25.0])
def test_what_was_seen_before_and_after_the_load_does_not_count(second: float) -> None:
    """The warm-up, and what comes after the last request, is not the measurement."""
    hot = sample(second, throttle_reasons=("hw_thermal",), foreign_pids=(9,))
    assert judged(start(telemetry={1: samples(hot), 8: samples()})) == Admission(())


@pytest.mark.parametrize(
    ("seen", "flag"),
    [
        ((), "concurrency 1: telemetry has 0 samples of 20 s"),
        (samples()[:9], "concurrency 1: telemetry has 9 samples of 20 s"),
        (samples(sample(1, unknown=("foreign_pids",))), "nobody can tell whether other processes computed on the GPU"),
        (samples(sample(1, unknown=("throttle_reasons",))), "nobody can tell whether the GPU was throttled"),
    ],
)
def test_what_telemetry_does_not_know_is_a_flag(seen: tuple[TelemetrySample, ...], flag: str) -> None:
    """Gaps and blindness are shown, and are no reason: nothing bad was seen."""
    judgement = judged(start(telemetry={1: seen, 8: None}))
    assert judgement.is_admissible
    assert len(judgement.flags) == 1 and judgement.flags[0].startswith(flag)


# ---- the engine and the paired start


def counted(before: int | None, after: int | None, kv_pool: int | None = None) -> dict[int, Any]:
    """What the engine said around the load at concurrency 8."""
    return {8: (EngineCounters(before, kv_pool), EngineCounters(after, kv_pool))}


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, 3), (3, None), (3, 3), (5, 3)])
def test_no_preemption_that_is_known(before: int | None, after: int | None) -> None:
    """A counter that stands still, or is not told, says nothing against a start."""
    assert judged(start(counters=counted(before, after))).is_admissible


def test_preemptions() -> None:
    """Requests that the engine took back during a load are a reason."""
    assert judged(start(counters=counted(3, 5))).reasons == (
        "concurrency 8: the engine preempted 2 requests for want of KV pages",
    )


def test_a_counter_that_comes_with_its_first_count() -> None:
    """SGLang shows no counter before it has counted: beside its KV pool, or its other counters, that was 0."""
    assert judged(start(counters=counted(None, 5, 1000))).reasons == (
        "concurrency 8: the engine preempted 5 requests for want of KV pages",
    )
    found = (
        EngineCounters(None, 1, n_prefix_queries=0),
        EngineCounters(None, 1, n_prefix_hits=145, n_prefix_queries=600),
    )
    judgement = judge(start(counters={8: found}), replace(WORKLOAD, cache_policy="flush"), PLAN)
    assert judgement.flags[0].startswith("concurrency 8: 145 prompt tokens")


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"facts": {"power_limits_w": "600.00"}}, ["power limit is 600.00, and was 700.00"]),
        ({"facts": {"power_limits_w": "700.00", "clock_policy": "x"}}, ["clock policy is x, and was y"]),
        ({"facts": {"power_limits_w": None}}, []),
        ({"counters": counted(0, 0, 900)}, ["KV pool is 900, and was 1000"]),
        ({"counters": counted(0, 0, 991)}, []),
    ],
)
def test_the_paired_start_must_have_had_the_same_conditions(changes: Mapping[str, Any], reasons: list[str]) -> None:
    """KV pool (beyond one per cent), power limit and clock policy agree inside a pair; what is unknown says nothing."""
    facts = {"power_limits_w": "700.00", "clock_policy": "y"}
    paired = baseline(block=3, facts=facts, counters=counted(0, 0, 1000))
    found = judged(start(**changes), [paired]).reasons
    assert [one.partition(" in the paired start of baseline")[0] for one in found] == reasons
    assert judged(start(**changes), [replace(paired, block=2)]).is_admissible


def hits(before: int | None, after: int | None) -> dict[int, Any]:
    """Prompt tokens out of the prefix cache, around the load at concurrency 8: 96 requests with its warm-up."""
    return {8: tuple(EngineCounters(0, 1, n_prefix_hits=n) for n in (before, after))}


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, 9000), (0, 0), (5000, 5144), (5000, 0)])
def test_a_flushed_cache_that_answers_by_chance_only(before: int | None, after: int | None) -> None:
    """Up to 1.5 tokens a request may meet; an engine that does not tell is not suspected."""
    flushed = replace(WORKLOAD, cache_policy="flush")
    assert judge(start(counters=hits(before, after)), flushed, PLAN).flags == ()


def test_a_flush_that_does_nothing_is_a_flag() -> None:
    """More hits than that show a cache that was not emptied: told, and kept. Where it is kept, hits are wanted."""
    facts = start(counters=hits(5000, 5145))
    judgement = judge(facts, replace(WORKLOAD, cache_policy="flush"), PLAN)
    assert judgement.is_admissible
    assert judgement.flags == (
        "concurrency 8: 145 prompt tokens (1.5 a request) came from the prefix cache, which was to be flushed",
    )
    assert judged(facts).flags == ()


def test_a_slightly_other_kv_pool_is_a_flag() -> None:
    """Engines size their pool by free memory: a difference under one per cent is shown."""
    paired = baseline(block=3, counters=counted(0, 0, 1000))
    assert judged(start(counters=counted(0, 0, 991)), [paired]).flags == (
        "KV pool differs by 0.90% from the paired start of baseline",
    )


# ---- outliers


@pytest.mark.parametrize(("value", "words"), [(79, "21% below"), (121, "21% above"), (81, ""), (119, "")])
def test_an_outlying_value_is_flagged_and_kept(value: float, words: str) -> None:
    """More than 20 % off the median of the arm's earlier starts is shown, and never a reason."""
    earlier = [start(load(8, value=v), load(1), block=i) for i, v in enumerate((95, 100, 900))]
    judgement = judged(start(load(1), load(8, value=value)), [*earlier, baseline(load(8, value=10), load(1))])
    assert judgement.is_admissible
    assert [words in flag for flag in judgement.flags] == ([True] if words else [])
    assert judged(start(load(1), load(8, value=value)), earlier[:2]).flags == ()


# ---- the canary


def baselines(*n_other: int, concurrency: int = 1) -> list[StartFacts]:
    """Baseline starts, each with so many texts that are not the first one's."""
    return [baseline(load(concurrency, n_other=n), block=i) for i, n in enumerate((0, *n_other))]


def canary(n_other: int, earlier: Sequence[StartFacts], concurrency: int = 1, **options: Any) -> Admission:
    """The judgement of a variant's start at one concurrency, so many of whose texts are not the baseline's."""
    plan = replace(PLAN, concurrencies=(concurrency,))
    remembered: list[EarlierStart] = [remember(one, METRIC) for one in earlier]
    return judge(start(load(concurrency, n_other=n_other)), WORKLOAD, plan, remembered, **options)


def test_a_variant_that_computes_something_else() -> None:
    """Texts that the baseline repeats and the variant does not give are wrong output, which is a reason of its own."""
    judgement = canary(10, baselines(0))
    assert judgement.is_wrong_output and not judgement.is_admissible
    assert judgement.reasons == (
        "wrong output at concurrency 1: 10 of 10 texts are not the baseline's; between baseline starts 0 of 10"
        " (p = 5.4e-06)",
    )


@pytest.mark.parametrize(
    ("n_other", "normal", "is_wrong"),
    [
        (6, [0], True),  # p = 0.0054
        (5, [0], False),  # p = 0.016
        (4, [0, 0, 0], True),  # p = 0.0023: the more starts the baseline has, the less is needed
        (3, [0, 0, 0], False),  # p = 0.012
        (9, [3], True),  # p = 0.0099
        (8, [3], False),
        (10, [9], False),
    ],
)
def test_what_is_normal_is_what_the_baseline_does(n_other: int, normal: list[int], is_wrong: bool) -> None:
    """The variant is compared with how often baseline starts differ among themselves, by an exact test at 1 %."""
    assert canary(n_other, baselines(*normal)).is_wrong_output is is_wrong


@pytest.mark.slow  # scipy alone takes more than a second
def test_the_test_is_fishers() -> None:
    """The chance is scipy's of the same table, one-sided; without anything to compare with it is 1."""
    fisher_exact = pytest.importorskip("scipy.stats").fisher_exact
    for n, n_all, n_normal, n_all_normal in [(6, 10, 0, 10), (9, 10, 3, 40), (0, 10, 5, 10), (30, 60, 1, 50)]:
        table = [[n, n_all - n], [n_normal, n_all_normal - n_normal]]
        p = admission._p_of_chance(admission._Mismatch(n, n_all), admission._Mismatch(n_normal, n_all_normal), 0.0)
        assert p == pytest.approx(fisher_exact(table, alternative="greater")[1])
    assert admission._p_of_chance(admission._Mismatch(10, 10), admission._Mismatch(0, 0), 0.0) == 1.0


def test_a_few_other_texts_are_a_flag() -> None:
    """Where the baseline repeated twenty texts without exception, any other text of a variant is shown."""
    judgement = canary(1, baselines(0, 0))
    assert judgement.is_admissible
    assert judgement.flags == (
        "concurrency 1: 1 of 10 texts are not the baseline's; between baseline starts 0 of 20:"
        " another order of summation, or a small error",
    )
    assert canary(1, baselines(0)).flags == canary(1, baselines(1, 0)).flags == ()


def test_requests_that_run_together_count_as_one() -> None:
    """At concurrency 8 there are ten waves, not 80 draws: a batch that was put together otherwise is no wrong kernel,
    and a variant of which every text differs is seen all the same."""
    normal = baselines(8, concurrency=8)
    assert not canary(32, normal, concurrency=8).is_wrong_output
    assert canary(80, normal, concurrency=8).is_wrong_output


def test_what_is_allowed_is_taken_off() -> None:
    """A mismatch named before the run (another order of summation) is no reason; more than that is."""
    assert not canary(6, baselines(0), allowed_mismatch=0.3).is_wrong_output
    assert canary(10, baselines(0), allowed_mismatch=0.3).is_wrong_output


def test_without_two_baseline_starts_nobody_can_judge() -> None:
    """One baseline start does not say what is normal; a start of the baseline is never wrong."""
    assert canary(10, baselines()) == canary(10, []) == Admission(())
    odd = baseline(load(1, n_other=10), load(8, n_other=80))
    assert judged(odd, [baseline(), baseline()]) == Admission(())


def test_several_concurrencies_share_the_error() -> None:
    """At 1 % over all: what is wrong output at one concurrency alone is not, when another one is judged too."""
    earlier = [baseline(block=0), baseline(block=1)]
    assert judged(start(load(1, n_other=6), load(8)), earlier).is_admissible  # p = 0.0054, and 0.5 % for each
    assert judged(start(load(1, n_other=7), load(8)), earlier).is_wrong_output


def test_a_load_that_is_not_ok_says_nothing_of_texts() -> None:
    """Requests of a load that cannot be trusted are not compared: the load's own reason stands alone."""
    bad = load(1, n_other=10, status="invalid", reasons=("cut",), metrics={})
    judgement = judged(start(bad, load(8)), [baseline(block=0), baseline(block=1)])
    assert not judgement.is_wrong_output and len(judgement.reasons) == 1


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_a_true_copy_is_seldom_called_wrong(rate: float) -> None:
    """A variant that differs as often as the baseline itself is called wrong in at most 1 % of starts."""
    chance = random.Random(7)
    n_trials, n_wrong = 2000, 0
    for _ in range(n_trials):
        found, *normal = (sum(chance.random() < rate for _ in range(10)) for _ in range(4))
        table = admission._Mismatch(found, 10), admission._Mismatch(sum(normal), 30)
        n_wrong += admission._p_of_chance(*table, 0.0) < admission.CANARY_LEVEL
    assert n_wrong <= 0.01 * n_trials
