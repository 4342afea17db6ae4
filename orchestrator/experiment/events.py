"""The events of an experiment in words and in facts. Pure: what to tell, not whom.

The text is for a person, one line; the facts have keys that programs rely on (docs/json.md lists them).
"""

from __future__ import annotations

from typing import Any

from orchestrator.designs import Admission, Analysis, ArmAnalysis, ExperimentRecord, Plan, StartRecord
from orchestrator.errors import OrchError
from orchestrator.experiment import blocks
from orchestrator.metrics import METRICS
from orchestrator.records import LoadResult
from orchestrator.report.document import analysis_document

Told = tuple[str, dict[str, Any]]
"""A line, and the facts."""

N_EVIDENCE_LINES = 25


def start_begins(record: ExperimentRecord, start: StartRecord, each_s: float | None, elapsed_s: float) -> Told:
    """Which start comes, and how long there is to go: to the next look, and at most.

    Args:
        each_s: what one start takes; None when that is not known yet.
    """
    plan, arm, block = record.plan, start.planned.arm, start.planned.block
    n_done = sum(one.status == "ok" for one in record.starts)
    planned = [one.planned.block for one in record.starts if one.status == "planned"]
    look_at = blocks.next_look(record) or plan.n_blocks
    to_look_s = None if each_s is None else each_s * sum(other < look_at for other in planned)
    at_most_s = None if each_s is None else each_s * len(planned)
    words = "" if to_look_s is None or at_most_s is None else f"; {_left(to_look_s, at_most_s)}"
    facts = {
        "block": block,
        "position": start.planned.position,
        "arm": arm,
        "attempt": start.attempt,
        "n_done": n_done,
        "n_starts": len(plan.starts),
        "elapsed_s": elapsed_s,
        "left_to_look_s": to_look_s,
        "left_s": at_most_s,
    }
    return f"{n_done + 1}/{len(plan.starts)} {arm}, block {block + 1}{words}", facts


def _left(to_look_s: float, at_most_s: float) -> str:
    if to_look_s == at_most_s:
        return f"{_duration(at_most_s)} left"
    return f"{_duration(to_look_s)} to the look, {_duration(at_most_s)} at most"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def recovered(n_abandoned: int, why_not: str, is_torn: bool, *, is_taken_over: bool) -> Told:
    """What becomes of what an orch left that ended before its time.

    Args:
        n_abandoned: starts that are made again. why_not: why the one under way cannot be taken over.
        is_torn: a whole block is made again. is_taken_over: the start under way is gone on with.
    """
    if is_taken_over:
        what = "the start under way is taken over"
    elif is_torn:
        what = "a block that was begun long ago is made again"
    else:
        what = "the start under way is made again" + (f", {why_not}" if why_not else "")
    facts = {"n_starts": n_abandoned, "is_taken_over": is_taken_over, "why_not": why_not or None}
    return f"an earlier orch ended before its time: {what}", facts


def node_lost(error: OrchError) -> Told:
    """A node that is out of reach, while others go on."""
    facts = {"reason": error.message, "evidence": list(error.evidence[-N_EVIDENCE_LINES:])}
    return f"out of reach: {error.message}; its block is made again on another node", facts


def start_counts(plan: Plan, start: StartRecord, trial_id: int, loads: list[LoadResult], admission: Admission) -> Told:
    """What a start that counts measured."""
    metric, primary = METRICS[plan.metric], plan.primary_concurrency
    values = {load.concurrency_cap: load.metrics.get(metric.name) for load in loads}
    facts = {
        "block": start.planned.block,
        "arm": start.planned.arm,
        "trial_id": trial_id,
        "metric": metric.name,
        "values": [{"concurrency": concurrency, "value": value} for concurrency, value in values.items()],
        "flags": list(admission.flags),
    }
    return (
        f"{start.planned.arm}: {metric.format(values.get(primary))} {metric.unit} at concurrency {primary}",
        facts,
    )


def start_is_lost(
    start: StartRecord, admission: Admission, *, is_repeated: bool, evidence: tuple[str, ...] = ()
) -> Told:
    """Why a start may not count, and what becomes of its block."""
    arm, block = start.planned.arm, start.planned.block
    what = "the block is made again" if is_repeated else "the block is given up, too many starts were lost"
    facts = {
        "block": block,
        "arm": arm,
        "reasons": list(admission.reasons),
        "is_repeated": is_repeated,
        "evidence": list(evidence[-N_EVIDENCE_LINES:]),
    }
    return f"{arm}, block {block + 1}: {'; '.join(admission.reasons)}; {what}", facts


def look_made(analysis: Analysis) -> Told:
    """What an analysis found at the primary concurrency."""
    where = f"{analysis.n_blocks} pairs" + ("" if analysis.look is not None else ", no planned look")
    return f"{where}: {', '.join(map(_found, analysis.arms))}", {"analysis": analysis_document(analysis)}


def _found(arm: ArmAnalysis) -> str:
    estimate = arm.primary.estimate
    ratio = "" if estimate is None else f" {estimate.ratio:.4f} ({estimate.low95:.4f}–{estimate.high95:.4f})"
    return f"{arm.arm} {arm.primary.verdict or 'no verdict'}{ratio}"


def ending(status: str, reason: str | None) -> str:
    """Status and reason as one phrase; ``decided at look 1`` says both by itself."""
    return status if reason is None else reason if reason.startswith(status) else f"{status}: {reason}"
