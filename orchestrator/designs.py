"""The records of an experiment: what is planned before the first start, and what its starts show.

Nouns only, frozen, without behaviour that touches the world. ``Plan → (Start, Value)… → ArmAnalysis → Analysis``.
As in ``records``, ``None`` means "not known" or "not measured", never 0.

Words: an *arm* is a condition under test, the baseline or a variant. A *block* starts every arm once, close in time; a
*pair* is the baseline and one variant of one block. A *look* is a planned analysis after so many complete blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

VerdictWord = Literal["FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE"]
"""FASTER means better in the metric's own direction: a higher throughput, a lower latency."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A condition under test: a set of bytes under a name. The baseline is the first of a plan.

    Attributes:
        name: ``baseline`` or the variant's. digest: of its files, as they were when the plan was drawn.
        message: the variant's hypothesis; empty for the baseline.
    """

    name: str
    digest: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """One start of the engine that is planned.

    Attributes:
        index: from 0, in the order of the whole experiment. block: from 0. position: inside its block, from 0.
        arm: name of the arm.
    """

    index: int
    block: int
    position: int
    arm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An experiment, drawn and stored before its first start.

    Attributes:
        target, host, workload: names in the inventory.
        arms: the baseline first; with ``is_aa`` the second arm is the baseline too, under the name ``baseline-again``.
        concurrencies: as they are loaded inside each start, in that order.
        primary_concurrency, metric: the one comparison that is judged at 5 % by itself.
        margin: a ratio; 0.01 is 1 %. Differences inside it do not matter.
        looks: numbers of complete blocks after which the analysis is made, rising; the last one ends the experiment.
        thresholds: nominal two-sided p at each look, so that the overall error is 5 %.
        seed: of the order. starts: the whole order, up to the last look.
        max_repeats: how many starts may be repeated in all, because theirs was inadmissible.
        hypothesis: in the user's words.
    """

    target: str
    host: str
    workload: str
    arms: tuple[Arm, ...]
    concurrencies: tuple[int, ...]
    primary_concurrency: int
    metric: str
    margin: float
    looks: tuple[int, ...]
    thresholds: tuple[float, ...]
    seed: int
    starts: tuple[PlannedStart, ...]
    max_repeats: int = 6
    hypothesis: str = ""
    is_aa: bool = False

    @property
    def n_blocks(self) -> int:
        """Blocks up to the last look."""
        return self.looks[-1]


@dataclass(frozen=True, slots=True)
class StartValues:
    """What one admissible start measured: one number a concurrency and metric.

    Attributes:
        trial_id: in the record. block, position, arm: as planned; a repeated start has those of the one it replaces.
        values: of the plan's metric by concurrency, in the metric's unit; without those that were not measured.
    """

    trial_id: int
    block: int
    position: int
    arm: str
    values: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A variant ÷ the baseline at one concurrency, from complete pairs. Logs are natural.

    Attributes:
        n_pairs: complete pairs. df: degrees of freedom of the t distribution.
        log_ratio, se: estimate and its standard error.
        sigma_d: SD of one paired log-ratio, the order term taken out.
        ratio, low95, high95, low90, high90: e to the estimate and to the ends of its intervals.
        p: two-sided, of no difference. order_log: the effect of being started second, a log. order_p: of none.
        sign_flip_p: exact, of the paired differences; None below 6 pairs and above 20.
    """

    n_pairs: int
    df: int
    log_ratio: float
    se: float
    sigma_d: float
    ratio: float
    low95: float
    high95: float
    low90: float
    high90: float
    p: float
    order_log: float
    order_p: float
    sign_flip_p: float | None


@dataclass(frozen=True, slots=True)
class ConcurrencyAnalysis:
    """The judgement at one concurrency.

    Attributes:
        estimate: None when there are too few complete pairs for one.
        is_primary: judged at the look's threshold by itself.
        p_adjusted: for the whole family of variants and concurrencies, to compare with the look's threshold; None
            without an estimate.
        verdict: None below 4 complete pairs; then ``why_no_verdict`` says so.
        clears_margin: the 95 % interval lies beyond the margin, not only beyond 1.
        is_not_worse: not worse than the margin, one-sided at 5 %.
        pairs_needed: how many pairs in all would decide, at the upper 95 % bound of the noise seen; None when decided.
    """

    concurrency: int
    estimate: Estimate | None
    is_primary: bool
    p_adjusted: float | None
    verdict: VerdictWord | None
    why_no_verdict: str | None
    clears_margin: bool
    is_not_worse: bool | None
    pairs_needed: int | None


@dataclass(frozen=True, slots=True)
class ArmAnalysis:
    """One variant against the baseline.

    Attributes:
        rows: one a concurrency, in the plan's order.
        ships: FASTER at the primary and not worse than the margin at every concurrency; None without a verdict.
        why: one sentence for a person: why it ships, was rejected, or is open.
    """

    arm: str
    digest: str
    rows: tuple[ConcurrencyAnalysis, ...]
    ships: bool | None
    why: str

    @property
    def primary(self) -> ConcurrencyAnalysis:
        """The row of the primary concurrency."""
        return next(row for row in self.rows if row.is_primary)


@dataclass(frozen=True, slots=True)
class Analysis:
    """All variants after so many complete blocks.

    Attributes:
        look: index into the plan's looks; None between looks, where nothing may be decided.
        threshold: nominal p of that look. n_blocks: complete ones.
        is_final: decided, or the last look. stop_reason: why to stop now; None to go on.
        e_value: of the anytime-valid e-process at the primary, by arm; None without a pair in
            each order.
        warnings: what a reader must know: order effect, outliers, starts set aside.
        next_step: what to run or do.
    """

    look: int | None
    threshold: float | None
    n_blocks: int
    arms: tuple[ArmAnalysis, ...]
    is_final: bool
    stop_reason: str | None
    e_values: Mapping[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    next_step: str = ""


# ---- the baseline over time


@dataclass(frozen=True, slots=True)
class BaselineValue:
    """What one good start of the baseline measured at one concurrency, whatever it was started for.

    Attributes:
        digest: of the baseline as it was then. environment_id: equal for equal facts; None when none were recorded.
        conditions: equal for values that were loaded alike: the workload as it was, the load client and its version.
    """

    trial_id: int
    started_at: str
    workload: str
    concurrency: int
    value: float
    digest: str
    environment_id: int | None
    conditions: str


# ---- what is watched during a load


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """One look at the GPUs of the host, about once a second; None for what the driver does not tell.

    Attributes:
        at_s: seconds since the epoch by the host's clock. gpu: index as nvidia-smi counts.
        throttle_reasons: names of the active ones that matter: ``sw_thermal``, ``hw_thermal``, ``hw_power_brake``,
            ``sw_power_cap`` …
        foreign_pids: processes that compute on this GPU and are not the engine's.
        unknown: which of the last two nobody could tell; they are empty then, and that says nothing.
        node: whose GPU it is, where one engine spans several nodes; else empty.
    """

    at_s: float
    gpu: int
    power_w: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    memory_used_bytes: int | None
    utilization_pct: float | None
    throttle_reasons: tuple[str, ...]
    foreign_pids: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    node: str = ""

    @property
    def place(self) -> str:
        """The GPU in words: ``GPU 0``, ``GPU 0 of n2``."""
        return f"GPU {self.gpu} of {self.node}" if self.node else f"GPU {self.gpu}"


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """What an engine says of itself at one moment; None for what it does not tell.

    Attributes:
        n_preemptions: requests that it took back from the batch for want of KV pages, since it started.
        kv_pool: size of its KV pool, in its own unit (pages, blocks or tokens).
        kv_pool_tokens: the same in tokens.
        n_prefix_hits, n_prefix_queries: prompt tokens since it started that came out of the prefix cache, and that were
            looked up there.
    """

    n_preemptions: int | None
    kv_pool: int | None
    kv_pool_tokens: int | None = None
    n_prefix_hits: int | None = None
    n_prefix_queries: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a start may count.

    Attributes:
        reasons: why not, one line each; empty when it may.
        flags: what a reader should see and what is kept all the same (an outlying value).
        is_wrong_output: the variant's texts are not the baseline's: a reason to stop the experiment, not to repeat.
    """

    reasons: tuple[str, ...]
    flags: tuple[str, ...] = ()
    is_wrong_output: bool = False

    @property
    def is_admissible(self) -> bool:
        """Whether the start counts."""
        return not self.reasons


# ---- an experiment as it stands


ExperimentStatus = Literal["planned", "running", "decided", "hopeless", "exhausted", "stopped", "failed"]
"""``decided`` at a look; ``hopeless`` at a look: the last one would hardly find FASTER; ``exhausted`` all looks made
without a decision; ``stopped`` by the user; ``failed``."""

StartStatus = Literal["planned", "running", "ok", "set-aside", "failed"]


@dataclass(frozen=True, slots=True)
class StartRecord:
    """One start of an experiment as it stands in the record.

    Attributes:
        attempt: 0, or the number of the repeat. trial_id: None while it is planned.
        reasons: why it was set aside.
    """

    id: int
    planned: PlannedStart
    attempt: int
    status: StartStatus
    trial_id: int | None
    reasons: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExperimentRecord:
    """One experiment as it stands in the record."""

    id: int
    plan: Plan
    status: ExperimentStatus
    started_at: str | None
    ended_at: str | None
    stop_reason: str | None
    starts: tuple[StartRecord, ...]
