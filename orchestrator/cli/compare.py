"""``orch compare``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.designs import Analysis, ExperimentRecord
    from orchestrator.project import Project
    from orchestrator.records import Comparison, Measurement, Target
    from orchestrator.store import Store


@click.command("compare")
@click.argument("variant_name", metavar="VARIANT")
@click.option("--to", "base_name", default="baseline", show_default=True, metavar="NAME", help="Compare with this arm.")
@click.option("--metric", "metric_name", default="output_tokens_per_s", show_default=True, help="Which metric.")
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@target_option
@json_option
@click.pass_obj
@example("orch compare V2", "orch compare V2 --to V1 --metric ttft_ms_p50")
def command(
    obj: dict[str, str],
    variant_name: str,
    base_name: str,
    metric_name: str,
    workload_name: str | None,
    target_name: str | None,
    is_json: bool,
) -> None:
    """Ratio of a variant to the baseline at each concurrency.

    Shows the verdict of the newest planned experiment of the variant's and the baseline's present digests. Without
    one, uses every good engine start of them: refuses unlike runs and names what differs, and gives no verdict.
    """
    from difflib import get_close_matches

    from orchestrator import report, stats
    from orchestrator.errors import UnknownNameError
    from orchestrator.metrics import METRICS
    from orchestrator.project import Project
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    if metric_name not in METRICS:
        near = get_close_matches(metric_name, METRICS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownNameError(f"no metric {metric_name!r}", next_step=f"{hint}metrics: {', '.join(METRICS)}")
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    workload = project.workload(workload_name).name
    with Store.open_read_only(project.db_path) as store:
        arms = {name: digest_of_arm(project, store, target, name) for name in (base_name, variant_name)}
        planned = planned_verdict(store, target.name, workload, metric_name, arms[base_name], arms[variant_name])
        if planned is not None:
            _print_planned(out, planned)
            return
        sides = [
            _measurements(store, target, name, arms[name], workload, metric_name) for name in (base_name, variant_name)
        ]
        both = experiment_of_both(store, target.name, workload, metric_name, set(arms.values()))
    comparison = stats.compare(sides[0], sides[1], metric=metric_name)
    if both is not None:
        why = (
            f"experiment {both} compared {variant_name} and {base_name} each with the baseline, not with each other; "
            "of its starts only the ratios are shown here"
        )
        next_step = f"`orch report {both}` has the verdicts of both against the baseline"
        comparison = dataclasses.replace(comparison, why_no_verdict=why, next_step=next_step)
    print_comparison(out, comparison)
    out.document(report.comparison_document(comparison))


def planned_verdict(
    store: Store, target: str, workload: str, metric: str, base_digest: str, digest: str
) -> tuple[ExperimentRecord, Analysis] | None:
    """The newest experiment of these bytes with its last analysis; None when there is none."""
    from orchestrator.report.document import analysis_from_document

    for record in store.experiments(target):
        plan = record.plan
        is_alike = (plan.workload, plan.metric, plan.arms[0].digest) == (workload, metric, base_digest)
        analyses = store.analyses(record.id) if is_alike and digest in [arm.digest for arm in plan.arms[1:]] else ()
        if analyses:
            return record, analysis_from_document(analyses[-1].document)
    return None


def experiment_of_both(store: Store, target: str, workload: str, metric: str, digests: set[str]) -> int | None:
    """The newest analysed experiment in which both are variants; None when there is none."""
    for record in store.experiments(target):
        plan = record.plan
        is_alike = (plan.workload, plan.metric) == (workload, metric)
        if is_alike and digests <= {arm.digest for arm in plan.arms[1:]} and store.analyses(record.id):
            return record.id
    return None


def _print_planned(out: Output, planned: tuple[ExperimentRecord, Analysis]) -> None:
    from orchestrator.cli.run import print_analysis
    from orchestrator.report.document import analysis_document

    record, analysis = planned
    out.line(f"experiment {record.id}, {record.status}: {record.plan.hypothesis or 'no hypothesis was given'}")
    print_analysis(out, record.plan, analysis)
    out.document({"experiment": record.id, "status": record.status, "analysis": analysis_document(analysis)})


def print_comparison(out: Output, comparison: Comparison) -> None:
    """The table, then what a reader must know before believing it."""
    from orchestrator import report

    columns, rows = report.comparison_rows(comparison)
    out.table(Table(columns, rows, right=frozenset(columns[:1] + columns[-1:]), title=report.title(comparison)))
    for warning in comparison.warnings:
        out.line(f"warning: {warning}", style="yellow")
    out.line(f"verdict: {comparison.verdict or 'none'}", style="bold")
    if comparison.why_no_verdict:
        out.line(f"why: {comparison.why_no_verdict}")
    if comparison.next_step:
        out.line(f"next: {comparison.next_step}")


def _measurements(store: Store, target: Target, arm: str, digest: str, workload: str, metric: str) -> list[Measurement]:
    """Every good value of an arm's present digest, under the name that was asked for."""
    from orchestrator.errors import ComparisonError
    from orchestrator.records import short

    found: list[Any] = store.measurements(target=target.name, workload=workload, metric=metric, digest=digest)
    if not found:
        push = "" if arm == "baseline" else f"orch push --variant {arm} && "
        raise ComparisonError(
            f"no good measurement of {arm} ({short(digest)}) under workload {workload}",
            next_step=f"run `{push}orch bench --concurrency 1,8`",
        )
    return [dataclasses.replace(measurement, arm=arm) for measurement in found]


def digest_of_arm(project: Project, store: Store, target: Target, arm: str) -> str:
    """Digest of ``baseline`` as recorded, or of a variant as it is in the workspace now."""
    from orchestrator import workspace
    from orchestrator.errors import WorkspaceError

    if arm != "baseline":
        return workspace.read_working_copy(project.variants_root, target, arm).digest
    stored = store.baseline(target.name)
    if stored is None:
        raise WorkspaceError(f"target {target.name} has no recorded baseline", next_step="run `orch pull`")
    return stored.digest
