"""Station, pure: one start with those before it → ``Admission``: whether it may count, and what a reader must see.

Nothing is asked of the host and nothing is taken on trust: the rules on files, engine and requests are checked again
on the records. A start is judged by what was seen of its conditions, never by its speed: a value that lies far off is
flagged and kept, for throwing slow starts away would be choosing the result.

The canary of correctness compares texts at temperature 0, request by request, with those of the first baseline start;
how often other baseline starts give the same texts says what is normal here. A variant whose texts differ
significantly more often computes something else. That ends an experiment; everything else sets a pair aside.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from orchestrator.designs import Admission, EngineCounters, Plan, TelemetrySample
from orchestrator.records import LoadResult, RequestRecord, Workload, short

__all__ = ["EarlierStart", "StartFacts", "judge", "remember"]

THROTTLED = ("sw_thermal", "hw_thermal", "hw_power_brake", "hw_slowdown")
"""Somebody or something slowed the GPU down. ``sw_power_cap`` is how a full GPU works within its limit."""
MAX_KV_POOL_DIFFERENCE = 0.01
"""Engines size their pool by the memory that is free, which differs a little from start to start."""
OUTLIER = 0.20
MIN_STARTS_FOR_OUTLIER = 3
MIN_COVERAGE = 0.5
MIN_SECONDS_FOR_COVERAGE = 5.0
CLOCK_SLACK_S = 1.0
CANARY_LEVEL = 0.01
MAX_CHANCE_HITS = 1.5
"""Tokens a request: many prompts begin with the same one (that of the tokenizer), two in some thousands by chance."""
MIN_REPEATED_TEXTS = 20

Process = tuple[int, int | None]
"""Pid and start ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known of one start when its loads have ended.

    Attributes:
        block, arm: as planned. is_baseline: it runs the baseline's bytes (in an A/A, both arms do).
        status, reasons: of the trial.
        digest: that was to be measured. loaded_digest: proved. digest_before, digest_after: of the live file.
        process_before, process_after: the engine's leader; None where nobody looked.
        loads: in the order in which they ran.
        telemetry: by concurrency; None on a host without a GPU; without those that nobody watched.
        counters: what the engine said just before and just after each load, by concurrency.
        facts: of the environment.
    """

    block: int
    arm: str
    is_baseline: bool
    status: str
    reasons: tuple[str, ...]
    digest: str
    loaded_digest: str | None
    digest_before: str | None
    digest_after: str | None
    process_before: Process | None
    process_after: Process | None
    loads: tuple[LoadResult, ...]
    telemetry: Mapping[int, tuple[TelemetrySample, ...] | None] = field(default_factory=dict)
    counters: Mapping[int, tuple[EngineCounters, EngineCounters]] = field(default_factory=dict)
    facts: Mapping[str, str | int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStart:
    """What a later start is compared with: of an admissible start of the same experiment.

    Attributes:
        conditions: ``KV pool``, ``power limit``, ``clock policy``; None where unknown.
        values: of the plan's metric by concurrency.
        texts: digest of each output, by concurrency and position in the seeded order.
    """

    block: int
    arm: str
    is_baseline: bool
    conditions: Mapping[str, str | int | float | None]
    values: Mapping[int, float]
    texts: Mapping[int, Mapping[int, str]]


def remember(start: StartFacts, metric: str) -> EarlierStart:
    """What of a start the later ones need."""
    measured = {load.concurrency_cap: load.metrics.get(metric) for load in start.loads}
    return EarlierStart(
        block=start.block,
        arm=start.arm,
        is_baseline=start.is_baseline,
        conditions=_conditions(start),
        values={concurrency: value for concurrency, value in measured.items() if value is not None},
        texts={load.concurrency_cap: _texts(load) for load in start.loads if load.status == "ok"},
    )


def judge(
    start: StartFacts,
    workload: Workload,
    plan: Plan,
    earlier: Sequence[EarlierStart] = (),
    *,
    allowed_mismatch: float = 0.0,
) -> Admission:
    """Whether a start may count.

    Args:
        earlier: the admissible starts of the experiment so far, in the order in which they ran.
        allowed_mismatch: part of the texts (0.05 is 5 %) that may differ from the baseline's beyond what baseline
            starts differ among themselves: a kernel that sums in another order rounds otherwise, and is not wrong.
    """
    now = remember(start, plan.metric)
    paired = [one for one in earlier if one.block == start.block and one.arm != start.arm]
    wrong, doubtful = ([], []) if start.is_baseline else _canary(now, earlier, allowed_mismatch)
    reasons = [
        *_trial_reasons(start),
        *_load_reasons(start, workload, plan),
        *(line for load in start.loads for line in _throttled(load, _watched(start, load))),
        *(line for load in start.loads for line in _foreign(load, _watched(start, load))),
        *_preempted(start.counters),
        *(line for one in paired for line in _unlike(now, one)),
        *wrong,
    ]
    flags = [
        *(line for load in start.loads for line in _telemetry_flags(start, load)),
        *(line for one in paired for line in _slightly_unlike(now, one)),
        *_reused(start, workload),
        *_outlying(now, earlier, plan.metric),
        *doubtful,
    ]
    return Admission(tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(flags)), is_wrong_output=bool(wrong))


# ---- the trial and its loads


def _trial_reasons(start: StartFacts) -> Iterator[str]:
    """The files and the engine: the trial's own reasons, or what contradicts its being ok."""
    if start.status != "ok":
        yield from start.reasons or (f"the trial is {start.status}",)
        return
    if start.loaded_digest != start.digest:
        yield f"the engine loaded {short(start.loaded_digest)}, deployed was {short(start.digest)}"
    if start.digest_before != start.digest or start.digest_after != start.digest:
        yield (
            f"the live file was {short(start.digest_before)} before and {short(start.digest_after)} after the loads, "
            f"deployed was {short(start.digest)}"
        )
    if None not in (start.process_before, start.process_after) and start.process_before != start.process_after:
        yield f"the engine was restarted under load: {_named(start.process_before)}, then {_named(start.process_after)}"


def _named(process: Process | None) -> str:
    return "none" if process is None else f"pid {process[0]}"


def _load_reasons(start: StartFacts, workload: Workload, plan: Plan) -> Iterator[str]:
    for load in start.loads:
        yield from (f"concurrency {load.concurrency_cap}: {problem}" for problem in _load_problems(load, workload))
    missing = [c for c in plan.concurrencies if c not in {load.concurrency_cap for load in start.loads}]
    if missing and start.status != "failed":  # a failed trial has said why
        yield f"no load at concurrency {', '.join(map(str, missing))}"


def _load_problems(load: LoadResult, workload: Workload) -> Iterator[str]:
    """Why the numbers of one load are not to be believed."""
    if load.status != "ok":
        first, *more = load.reasons or ("no reason is recorded",)
        yield f"the load is {load.status}: {first}" + (f" (and {len(more)} more)" if more else "")
        return
    n_asked = workload.prompts_per_concurrency * load.concurrency_cap
    if load.raw is None:
        yield "the client's result is missing"
    if [one.i for one in load.requests] != list(range(n_asked)):
        yield f"the client's result is cut: {len(load.requests)} records for {n_asked} requests"
    faults = Counter(fault for request in load.requests for fault in _faults(request, workload))
    yield from (f"{n} of {n_asked} requests: {fault}" for fault, n in faults.items())
    odd = [name for name, value in load.metrics.items() if value is not None and not math.isfinite(value)]
    if odd:
        yield f"not finite: {', '.join(odd)}"


def _faults(request: RequestRecord, workload: Workload) -> Iterator[str]:
    if request.error is not None:
        yield "failed"
        return
    if request.n_output_tokens != workload.output_tokens:
        yield f"output tokens are not the {workload.output_tokens} asked for"
    if workload.client != "loadgen" and request.sent_s is None:
        return  # this client does not write when it sent a request; its adapter has judged what it does write
    times = (request.sent_s, request.first_chunk_s, request.last_chunk_s, *request.itl_ms)
    if not all(time is not None and math.isfinite(time) for time in times):
        yield "a time is missing or not finite"
    elif request.sent_s is not None and request.first_chunk_s is not None and request.first_chunk_s <= request.sent_s:
        yield "TTFT of 0"


# ---- the GPU during the loads


def _watched(start: StartFacts, load: LoadResult) -> list[TelemetrySample]:
    """The samples between begin and end of the load; the warm-up before it does not count."""
    began_s, ended_s = _span(load)
    samples = start.telemetry.get(load.concurrency_cap) or ()
    return [one for one in samples if began_s - CLOCK_SLACK_S <= one.at_s <= ended_s + CLOCK_SLACK_S]


def _span(load: LoadResult) -> tuple[float, float]:
    """Begin and end by the host's clock."""
    return _seconds(load.started_at), _seconds(load.ended_at)


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()  # Python 3.10 does not know the Z


def _active(samples: Iterable[TelemetrySample], names: Sequence[str]) -> Iterator[str]:
    """``hw_thermal on GPU 0 in 3 of 60 samples``, for each GPU and reason."""
    found = Counter((one.node, one.gpu, one.place, name) for one in samples for name in one.throttle_reasons)
    n_all = Counter(one.place for one in samples)
    for (_, _, place, name), n in sorted(found.items()):
        if name in names:
            yield f"{name} on {place} in {n} of {n_all[place]} samples"


def _throttled(load: LoadResult, samples: list[TelemetrySample]) -> Iterator[str]:
    for text in _active(samples, THROTTLED):
        yield f"concurrency {load.concurrency_cap}: throttled: {text}"


def _foreign(load: LoadResult, samples: list[TelemetrySample]) -> Iterator[str]:
    found = sorted({(one.node, one.gpu, one.place, pid) for one in samples for pid in one.foreign_pids})
    for _, _, place, pid in found:
        yield f"concurrency {load.concurrency_cap}: process {pid}, which is not the engine's, computed on {place}"


def _telemetry_flags(start: StartFacts, load: LoadResult) -> Iterator[str]:
    """What of the GPU is worth knowing, or is not known; nothing where there is none."""
    if start.telemetry.get(load.concurrency_cap) is None or load.status == "failed":
        return
    samples = _watched(start, load)
    for text in _active(samples, ("sw_power_cap",)):
        yield f"concurrency {load.concurrency_cap}: at the power limit: {text}"
    began_s, ended_s = _span(load)
    if ended_s - began_s >= MIN_SECONDS_FOR_COVERAGE:
        nodes = sorted({one.node for seen in start.telemetry.values() for one in seen or ()}) or [""]
        for node in nodes:
            n_seen = max(Counter(one.gpu for one in samples if one.node == node).values(), default=0)
            if n_seen < MIN_COVERAGE * (ended_s - began_s):
                whose = f"telemetry of {node}" if node else "telemetry"
                yield f"concurrency {load.concurrency_cap}: {whose} has {n_seen} samples of {ended_s - began_s:.0f} s"
    unknown = {name for one in samples for name in one.unknown}
    if "foreign_pids" in unknown:
        yield "nobody can tell whether other processes computed on the GPU: the host hides them (a container does)"
    if "throttle_reasons" in unknown:
        yield "nobody can tell whether the GPU was throttled: its driver does not say"


# ---- the engine, and the paired start


def _preempted(counters: Mapping[int, tuple[EngineCounters, EngineCounters]]) -> Iterator[str]:
    for concurrency, (before, after) in counters.items():
        n_before = _counted(before.n_preemptions, told_beside=before.kv_pool)
        if n_before is not None and (after.n_preemptions or 0) > n_before:
            n = (after.n_preemptions or 0) - n_before
            yield f"concurrency {concurrency}: the engine preempted {n} requests for want of KV pages"


def _counted(value: int | None, *, told_beside: int | None) -> int | None:
    """A counter before a load. SGLang does not show one that has not counted yet: beside what it shows, that is 0."""
    return 0 if value is None and told_beside is not None else value


def _reused(start: StartFacts, workload: Workload) -> Iterator[str]:
    """Prompt tokens that came out of a cache that was flushed: prompts differ, so nothing but chance may hit it."""
    if workload.cache_policy != "flush":
        return
    for concurrency, (before, after) in start.counters.items():
        n_before = _counted(before.n_prefix_hits, told_beside=before.n_prefix_queries)
        if n_before is None or after.n_prefix_hits is None:
            continue
        n_hits = after.n_prefix_hits - n_before
        n_requests = concurrency * (workload.prompts_per_concurrency + workload.warmup_per_concurrency)
        if n_hits > MAX_CHANCE_HITS * n_requests:
            yield (
                f"concurrency {concurrency}: {n_hits} prompt tokens ({n_hits / n_requests:.1f} a request) came from the"
                " prefix cache, which was to be flushed"
            )


def _conditions(start: StartFacts) -> dict[str, str | int | float | None]:
    pools = [one.kv_pool for pair in start.counters.values() for one in pair if one.kv_pool is not None]
    return {
        "KV pool": pools[0] if pools else None,
        "power limit": start.facts.get("power_limits_w"),
        "clock policy": start.facts.get("clock_policy"),
    }


def _unlike(now: EarlierStart, paired: EarlierStart) -> Iterator[str]:
    for name, value in now.conditions.items():
        other = paired.conditions.get(name)
        is_near = name == "KV pool" and _pool_difference(now, paired) <= MAX_KV_POOL_DIFFERENCE
        if None not in (value, other) and value != other and not is_near:
            yield f"{name} is {value}, and was {other} in the paired start of {paired.arm}"


def _slightly_unlike(now: EarlierStart, paired: EarlierStart) -> Iterator[str]:
    difference = _pool_difference(now, paired)
    if 0 < difference <= MAX_KV_POOL_DIFFERENCE:
        yield f"KV pool differs by {difference:.2%} from the paired start of {paired.arm}"


def _pool_difference(now: EarlierStart, paired: EarlierStart) -> float:
    """As a part of the larger one; 0 where one of them is unknown."""
    one, other = now.conditions.get("KV pool"), paired.conditions.get("KV pool")
    if not isinstance(one, int) or not isinstance(other, int):
        return 0.0
    return abs(one - other) / max(one, other, 1)


def _outlying(now: EarlierStart, earlier: Iterable[EarlierStart], metric: str) -> Iterator[str]:
    same_arm = [one for one in earlier if one.arm == now.arm]
    for concurrency, value in now.values.items():
        others = [one.values[concurrency] for one in same_arm if concurrency in one.values]
        median = statistics.median(others) if len(others) >= MIN_STARTS_FOR_OUTLIER else 0.0
        if median and abs(value / median - 1) > OUTLIER:
            side = "above" if value > median else "below"
            yield (
                f"concurrency {concurrency}: {metric} is {abs(value / median - 1):.0%} {side} the median of this "
                f"arm's {len(others)} earlier starts; kept"
            )


# ---- the canary


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """How many texts differ of how many that were compared."""

    n: int
    n_all: int

    def waves(self, concurrency: int) -> _Mismatch:
        """The same in waves: requests that run side by side share a batch, so its rounding is theirs together."""
        n_all = self.n_all // concurrency
        return _Mismatch(min(n_all, round(self.n / concurrency)), n_all)

    def __str__(self) -> str:
        return f"{self.n} of {self.n_all}"


def _canary(now: EarlierStart, earlier: Sequence[EarlierStart], allowed_mismatch: float) -> tuple[list[str], list[str]]:
    """Reasons and flags from the texts of a variant's start; nothing until two baseline starts can be compared.

    For each concurrency a one-sided exact test (Fisher's) that this start differs from the first baseline start no
    more often than the other baseline starts do, at 1 % over all concurrencies. Below that, a difference from a
    baseline that always repeated itself is flagged.
    """
    reference, *others = [one for one in earlier if one.is_baseline] or [now]
    wrong, doubtful = [], []
    for concurrency in now.texts:
        normal = _mismatch(reference, others, concurrency)
        found = _mismatch(reference, [now], concurrency)
        p = _p_of_chance(found.waves(concurrency), normal.waves(concurrency), allowed_mismatch)
        text = f"concurrency {concurrency}: {found} texts are not the baseline's; between baseline starts {normal}"
        if p < CANARY_LEVEL / len(now.texts):
            wrong.append(f"wrong output at {text} (p = {p:.2g})")
        elif found.n and not normal.n and normal.n_all >= MIN_REPEATED_TEXTS:
            doubtful.append(f"{text}: another order of summation, or a small error")
    return wrong, doubtful


def _texts(load: LoadResult) -> dict[int, str]:
    return {one.i: one.text_digest for one in load.requests if one.text_digest is not None}


def _mismatch(reference: EarlierStart, starts: Iterable[EarlierStart], concurrency: int) -> _Mismatch:
    """Over all starts, position by position, what is not the text of the reference."""
    wanted = reference.texts.get(concurrency, {})
    compared = [
        (text, wanted[i]) for one in starts for i, text in one.texts.get(concurrency, {}).items() if i in wanted
    ]
    return _Mismatch(sum(text != other for text, other in compared), len(compared))


def _p_of_chance(found: _Mismatch, normal: _Mismatch, allowed: float) -> float:
    """How likely so many mismatches or more are, if the variant differs as often as the baseline itself.

    What is allowed is taken off first. 1 without anything to compare with.
    """
    n_found = max(0, found.n - math.floor(allowed * found.n_all))
    n_both = n_found + normal.n
    n_ways = sum(
        math.comb(found.n_all, n) * math.comb(normal.n_all, n_both - n)
        for n in range(n_found, min(found.n_all, n_both) + 1)
    )
    return n_ways / math.comb(found.n_all + normal.n_all, n_both)
