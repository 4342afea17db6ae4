"""Comparison of measurements taken by hand → table and JSON. Pure: prints nothing, judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.metrics import METRICS
from orchestrator.records import Comparison, short


def title(comparison: Comparison) -> str:
    """What is compared with what, by which metric."""
    metric = METRICS[comparison.metric]
    better = {"higher": "higher is better", "lower": "lower is better", "none": "a fact, not a goal"}[metric.direction]
    return (
        f"{comparison.variant_arm} {short(comparison.variant_digest)} against "
        f"{comparison.baseline_arm} {short(comparison.baseline_digest)}: {metric.name} [{metric.unit}], {better}"
    )


def comparison_rows(comparison: Comparison) -> tuple[list[str], list[list[str | int]]]:
    """Columns and rows: every value of both arms in the order they ran, n, and the ratio of geometric means."""
    columns = ["concurrency", comparison.baseline_arm, comparison.variant_arm, "n", "ratio"]
    rows: list[list[str | int]] = [
        [
            row.concurrency_cap,
            _values(comparison.metric, row.baseline_values),
            _values(comparison.metric, row.variant_values),
            f"{len(row.baseline_values)}+{len(row.variant_values)}",
            "–" if row.ratio is None else f"{row.ratio:.3f}",
        ]
        for row in comparison.rows
    ]
    return columns, rows


def _values(metric: str, values: Sequence[float]) -> str:
    return " ".join(METRICS[metric].format(value) for value in values) or "–"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The JSON of a comparison; keys are stable. ``ratio`` has no interval yet, and so there is no verdict."""
    metric = METRICS[comparison.metric]
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "baseline": {"arm": comparison.baseline_arm, "digest": comparison.baseline_digest},
        "variant": {"arm": comparison.variant_arm, "digest": comparison.variant_digest},
        "order": list(comparison.order),
        "rows": [
            {
                "concurrency_cap": row.concurrency_cap,
                "baseline_values": list(row.baseline_values),
                "variant_values": list(row.variant_values),
                "n_baseline": len(row.baseline_values),
                "n_variant": len(row.variant_values),
                "ratio": row.ratio,
            }
            for row in comparison.rows
        ],
        "verdict": comparison.verdict,
        "why_no_verdict": comparison.why_no_verdict,
        "next_step": comparison.next_step,
        "warnings": list(comparison.warnings),
    }
