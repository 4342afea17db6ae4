"""Everything that the report of an experiment shows, as one frozen tree. Must not read, compute or judge.

Each form (terminal, Markdown, JSON, page) is made of this and nothing else, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.designs import Analysis, ExperimentRecord, Plan, StartRecord, TelemetrySample
from orchestrator.records import AutotuneWinner, Workload

Fact = str | int | float | None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one load at one concurrency measured; several loads of one start at one concurrency are repeats.

    Attributes:
        metrics: by name of ``metrics.py``; empty when the load cannot be trusted.
    """

    concurrency: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """One start of the engine with what it measured and under which facts.

    Attributes:
        loaded_digest: that the engine was proved to run; None when it was not.
        started_at, ended_at: UTC; None while it has not.
        telemetry: in the order of time; empty on a host without a GPU.
        facts: of the environment, as ``records.Environment``.
        client: load client with its version, as it named itself.
        winners: what Triton's autotuner chose; None where the engine's log told nothing.
    """

    record: StartRecord
    loaded_digest: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    loads: tuple[LoadReport, ...] = ()
    telemetry: tuple[TelemetrySample, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    client: str | None = None
    winners: tuple[AutotuneWinner, ...] | None = None

    @property
    def arm(self) -> str:
        """Name of the arm that was started."""
        return self.record.planned.arm


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport:
    """One experiment, whole.

    Attributes:
        looks: every analysis that was made, in order; the last one is the verdict as it stands.
        starts: those that began, in the order they ran; repeats and starts set aside too.
        workload: as it was loaded; None before the first start.
        warnings: what a reader must know before believing it.
        generated_at: UTC. orch_version: that made this report.
    """

    experiment: ExperimentRecord
    looks: tuple[Analysis, ...]
    starts: tuple[StartReport, ...]
    workload: Workload | None
    warnings: tuple[str, ...]
    generated_at: str
    orch_version: str

    @property
    def plan(self) -> Plan:
        """As it was drawn before the first start."""
        return self.experiment.plan

    @property
    def analysis(self) -> Analysis | None:
        """The newest; None before the first complete block."""
        return self.looks[-1] if self.looks else None
