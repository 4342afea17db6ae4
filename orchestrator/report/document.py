"""An experiment as JSON; keys are stable. Pure: gives plain values, writes nothing.

Telemetry is summed up for each start; every sample is in results.db.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.designs import Analysis, ArmAnalysis, ConcurrencyAnalysis, Estimate, Plan, TelemetrySample
from orchestrator.metrics import METRICS
from orchestrator.report.experiment_data import ExperimentReport, StartReport
from orchestrator.report.summaries import arm_mean, facts_seen
from orchestrator.report.words import headline


def document(report: ExperimentReport) -> dict[str, Any]:
    """Everything that the page shows."""
    experiment = report.experiment
    return {
        "experiment": experiment.id,
        "status": experiment.status,
        "headline": headline(report),
        "started_at": experiment.started_at,
        "ended_at": experiment.ended_at,
        "stop_reason": experiment.stop_reason,
        "plan": plan_document(report.plan),
        "analysis": None if report.analysis is None else analysis_document(report.analysis),
        "looks": [analysis_document(look) for look in report.looks if look.look is not None],
        "means": _means(report),
        "starts": [_start_document(start) for start in report.starts],
        "facts": facts_seen(report.starts),
        "workload": None if report.workload is None else asdict(report.workload),
        "warnings": list(report.warnings),
        "generated_at": report.generated_at,
        "orch_version": report.orch_version,
    }


def plan_document(plan: Plan) -> dict[str, Any]:
    """The JSON of a plan."""
    metric = METRICS[plan.metric]
    return {
        "target": plan.target,
        "host": plan.host,
        "workload": plan.workload,
        "hypothesis": plan.hypothesis,
        "is_aa": plan.is_aa,
        "metric": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "arms": [asdict(arm) for arm in plan.arms],
        "concurrencies": list(plan.concurrencies),
        "primary_concurrency": plan.primary_concurrency,
        "margin": plan.margin,
        "looks": list(plan.looks),
        "thresholds": list(plan.thresholds),
        "seed": plan.seed,
        "max_repeats": plan.max_repeats,
        "starts": [asdict(start) for start in plan.starts],
    }


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """The JSON of an analysis: for each variant and concurrency the estimate and the verdict."""
    return {
        "look": analysis.look,
        "threshold": analysis.threshold,
        "n_blocks": analysis.n_blocks,
        "is_final": analysis.is_final,
        "stop_reason": analysis.stop_reason,
        "arms": [_arm_document(arm, analysis.e_values.get(arm.arm)) for arm in analysis.arms],
        "warnings": list(analysis.warnings),
        "next_step": analysis.next_step,
    }


def _arm_document(arm: ArmAnalysis, e_value: float | None) -> dict[str, Any]:
    return {
        "arm": arm.arm,
        "digest": arm.digest,
        "ships": arm.ships,
        "why": arm.why,
        "e_value": e_value,
        "rows": [asdict(row) for row in arm.rows],
    }


def analysis_from_document(found: Mapping[str, Any]) -> Analysis:
    """The analysis that ``analysis_document`` was given; the record keeps them in that form."""
    return Analysis(
        look=found["look"],
        threshold=found["threshold"],
        n_blocks=found["n_blocks"],
        arms=tuple(_arm_from_document(arm) for arm in found["arms"]),
        is_final=found["is_final"],
        stop_reason=found["stop_reason"],
        e_values={arm["arm"]: arm["e_value"] for arm in found["arms"]},
        warnings=tuple(found["warnings"]),
        next_step=found["next_step"],
    )


def _arm_from_document(found: Mapping[str, Any]) -> ArmAnalysis:
    rows = tuple(
        ConcurrencyAnalysis(**{**row, "estimate": None if row["estimate"] is None else Estimate(**row["estimate"])})
        for row in found["rows"]
    )
    return ArmAnalysis(arm=found["arm"], digest=found["digest"], rows=rows, ships=found["ships"], why=found["why"])


def _means(report: ExperimentReport) -> list[dict[str, Any]]:
    """The geometric mean of every metric that was measured, over the starts of an arm that count."""
    found = []
    for arm in report.plan.arms:
        for cap in report.plan.concurrencies:
            for name in METRICS:
                mean = arm_mean(report, arm.name, name, cap)
                if mean is not None:
                    found.append({"arm": arm.name, "concurrency": cap, "metric": name, **asdict(mean)})
    return found


def _start_document(start: StartReport) -> dict[str, Any]:
    record = start.record
    return {
        "id": record.id,
        "index": record.planned.index,
        "block": record.planned.block,
        "position": record.planned.position,
        "arm": record.planned.arm,
        "attempt": record.attempt,
        "status": record.status,
        "trial_id": record.trial_id,
        "reasons": list(record.reasons),
        "flags": list(record.flags),
        "loaded_digest": start.loaded_digest,
        "started_at": start.started_at,
        "ended_at": start.ended_at,
        "client": start.client,
        "autotune_winners": None if start.winners is None else [asdict(winner) for winner in start.winners],
        "loads": [{"concurrency": load.concurrency, "metrics": dict(load.metrics)} for load in start.loads],
        "telemetry": _telemetry_document(start.telemetry),
    }


def _telemetry_document(samples: tuple[TelemetrySample, ...]) -> dict[str, Any] | None:
    """None where nothing was watched."""
    if not samples:
        return None
    fields = ("power_w", "sm_clock_mhz", "temperature_c")
    found: dict[str, Any] = {"n_samples": len(samples)}
    for field in fields:
        values = [value for sample in samples if (value := getattr(sample, field)) is not None]
        found[f"{field}_mean"] = sum(values) / len(values) if values else None
        found[f"{field}_min"] = min(values, default=None)
        found[f"{field}_max"] = max(values, default=None)
    found["throttle_reasons"] = sorted({reason for sample in samples for reason in sample.throttle_reasons})
    found["foreign_pids"] = sorted({pid for sample in samples for pid in sample.foreign_pids})
    return found
