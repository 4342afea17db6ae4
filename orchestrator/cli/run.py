"""``orch run``: a planned experiment, from its plan to its verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED, NEGATIVE_VERDICT
from orchestrator.cli.options import Concurrencies, example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.designs import Analysis, Plan
    from orchestrator.experiment.draw import Cost, Wanted
    from orchestrator.experiment.run import Outcome, Wishes
    from orchestrator.project import Project
    from orchestrator.records import LoadProgress, Target, Variant


class Percent(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """``1%`` or ``0.01`` → 0.01."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parses it; refuses what is not between 0 and 50 %."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            ratio = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            ratio = -1.0
        if not 0 < ratio <= 0.5:
            self.fail(f"{text!r} is not a margin such as 1%", param, ctx)
        return ratio


@click.command("run")
@click.argument("variant_names", metavar="[VARIANT]...", nargs=-1)
@click.option("--concurrency", "concurrencies", type=Concurrencies(), required=True, metavar="N,N", help="E.g. 1,8,64.")
@click.option("--primary", type=click.IntRange(min=1), metavar="N", help="The one that decides; else the highest.")
@click.option("--metric", "metric_name", default="output_tokens_per_s", show_default=True, help="What decides.")
@click.option("--pairs", "looks", type=Concurrencies(), default="6,8,10", show_default=True, help="Planned looks.")
@click.option("--margin", type=Percent(), default="1%", show_default=True, help="What does not matter.")
@click.option("--aa", "is_aa", is_flag=True, help="The baseline against itself: how noisy is this host?")
@click.option("--seed", type=click.IntRange(min=0), help="Of the order; drawn when left out, and stored.")
@click.option("-m", "--message", "hypothesis", default="", help="The hypothesis.")
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(min=30),
    default=1800,
    show_default=True,
    metavar="SECONDS",
    help="The host restores itself so long after the last sign of life.",
)
@click.option(
    "--force", "is_forced", is_flag=True, help="Also variants of which `orch check` says that they are no use."
)
@click.option("--dry-run", is_flag=True, help="Show the plan and its cost; start nothing.")
@click.option("--exit-code", "wants_code", is_flag=True, help="Exit 3 unless every variant ships.")
@target_option
@json_option
@click.pass_obj
@example(
    'orch run V1 V2 --concurrency 1,8,48,64,80,96 --primary 64 -m "fewer warps, deeper pipeline"',
    "orch run --aa --concurrency 1,8,64",
)
def command(obj: dict[str, str], /, variant_names: tuple[str, ...], ttl_s: float, **asked: Any) -> int:
    """Run a whole experiment: planned pairs of starts, and a verdict with a known error rate.

    The order is drawn and stored before the first start. Each start is pushed, restarted, proved, loaded at every
    concurrency and judged; one that may not count is made again, visibly. Verdicts come at the planned looks only. The
    host is put back however it ends. Ctrl-C asks once; `orch resume` goes on after a crash. With --json each event is
    one line.
    """
    from orchestrator.experiment.draw import Wanted
    from orchestrator.project import Project
    from orchestrator.session import read_variant

    out = Output(is_json=asked["is_json"])
    project = Project.open(obj["inventory_path"])
    target = project.target(asked["target_name"])
    variants = [read_variant(project, target, name) for name in dict.fromkeys(variant_names)]
    wanted = Wanted(
        workload=project.workload(asked["workload_name"]),
        concurrencies=asked["concurrencies"],
        primary=asked["primary"],
        metric=asked["metric_name"],
        margin=asked["margin"],
        looks=asked["looks"],
        seed=asked["seed"],
        hypothesis=asked["hypothesis"],
        is_aa=asked["is_aa"],
    )
    if asked["dry_run"]:
        return _dry_run(out, project, target, variants, wanted)
    with ProgressLine() as progress:
        outcome = _begin(out, progress, project, target, variants, wanted, ttl_s, is_forced=asked["is_forced"])
    return told(out, outcome, wants_code=asked["wants_code"])


def _dry_run(out: Output, project: Project, target: Target, variants: list[Variant], wanted: Wanted) -> int:
    from orchestrator.experiment.draw import cost, draw
    from orchestrator.report.document import plan_document
    from orchestrator.store import Store

    with Store.open(project.db_path) as store:
        plan = draw(store, target, variants, wanted)
        expected = cost(store, plan)
    print_plan(out, plan, expected)
    out.line("nothing was started: leave --dry-run out to run it with the same --seed")
    minutes = None if expected is None else [expected.first_look_min, expected.last_look_min]
    out.document({"plan": plan_document(plan), "cost_min": minutes})
    return DONE


def print_plan(out: Output, plan: Plan, expected: Cost | None) -> None:
    """What is compared, where it is looked at, in which order, and what it takes."""
    arms = ", ".join(arm.name for arm in plan.arms)
    out.line(f"{plan.target} on {plan.host}: {arms}; {len(plan.starts)} starts in {plan.n_blocks} blocks", style="bold")
    out.line(f"decides: {plan.metric} at concurrency {plan.primary_concurrency}, margin {100 * plan.margin:g} %")
    looks = ", ".join(f"{n} (p < {p:.4f})" for n, p in zip(plan.looks, plan.thresholds, strict=True))
    out.line(f"looks after pairs: {looks}; overall 5 %")
    letters = {arm.name: "ABCDEFGH"[i] for i, arm in enumerate(plan.arms)}
    blocks: dict[int, str] = {}
    for start in plan.starts:
        blocks[start.block] = blocks.get(start.block, "") + letters[start.arm]
    legend = ", ".join(f"{letter} = {name}" for name, letter in letters.items())
    out.line(f"order (seed {plan.seed}): {' '.join(blocks.values())}   {legend}")
    if expected is None:
        out.line("cost: not known, no start of this target was measured with this workload yet")
    else:
        out.line(
            f"cost: about {expected.first_look_min:.0f} min to the first look, {expected.last_look_min:.0f} min at "
            f"most (from {expected.n_known_starts} starts)"
        )


# ---- running


def _begin(
    out: Output,
    progress: ProgressLine,
    project: Project,
    target: Target,
    variants: list[Variant],
    wanted: Wanted,
    ttl_s: float,
    *,
    is_forced: bool,
) -> Outcome:
    from orchestrator.errors import ExperimentError
    from orchestrator.experiment.check import check_if_possible
    from orchestrator.experiment.draw import cost, draw
    from orchestrator.session import open_session

    with open_session(project, target.name, progress) as session:
        unfinished = session.store.unfinished_experiment(target.name)
        if unfinished is not None:
            raise ExperimentError(
                f"experiment {unfinished} of {target.name} is not finished",
                next_step=f"`orch resume {unfinished}` goes on with it, `orch resume {unfinished} --stop` ends it",
            )
        for variant in variants:
            attempt = check_if_possible(project, session.store, target, variant, progress)
            if attempt.refusal is not None and not is_forced:
                raise attempt.refusal
            if attempt.verdict is None:
                out.warn(f"{variant.name} was not checked: {attempt.why_not}")
        plan = draw(session.store, target, variants, wanted)
        print_plan(out, plan, cost(session.store, plan))
        experiment_id = session.store.create_experiment(plan)
        out.line(f"experiment {experiment_id}: {plan.hypothesis or 'no hypothesis was given'}")
        return conduct_shown(out, progress, session, experiment_id, ttl_s)


def conduct_shown(out: Output, progress: ProgressLine, session: Any, experiment_id: int, ttl_s: float) -> Outcome:
    """Conducts an experiment, with its events and loads shown; the first Ctrl-C asks."""
    from orchestrator.experiment.run import Wishes, conduct
    from orchestrator.interrupts import asking

    wishes = Wishes()
    with asking(lambda: _question(wishes)):
        return conduct(
            session,
            experiment_id,
            lambda kind, text, facts: print_event(out, kind, text, facts),
            wishes=wishes,
            on_load=lambda load: _show(progress, load),
            ttl_s=ttl_s,
        )


def _question(wishes: Wishes) -> bool:
    """Asked at the first Ctrl-C; whether to go on until the start under way is complete."""
    if not sys.stdin.isatty():
        return False
    click.echo(
        "\nfinish the start that is under way, then put the host back [f], or stop now [s]? ", err=True, nl=False
    )
    answer = sys.stdin.readline().strip().lower()
    wishes.finish_start = answer.startswith("f")
    return wishes.finish_start


def _show(progress: ProgressLine, load: LoadProgress) -> None:
    from orchestrator.records import Progress

    left_s = load.elapsed_s / load.n_done * (load.n_total - load.n_done) if load.n_done else None
    text = f"concurrency {load.concurrency_cap}"
    progress(Progress("load", text, load.n_done, load.n_total, load.elapsed_s, left_s, load.phase))


def print_event(out: Output, kind: str, text: str, facts: Mapping[str, Any]) -> None:
    """One event: a line of text, or with --json one line of JSON."""
    if out.is_json:
        click.echo(json.dumps({"event": kind, "text": text, **facts}, ensure_ascii=False, default=str))
    else:
        style = {"set-aside": "yellow", "look": "bold", "restored": "green", "recovered": "yellow"}.get(kind)
        out.line(f"{kind:<11} {text}", style=style)


# ---- what came out


def told(out: Output, outcome: Outcome, *, wants_code: bool) -> int:
    """Prints what came out, and returns the exit code."""
    experiment = outcome.experiment
    if outcome.analysis is not None:
        print_analysis(out, experiment.plan, outcome.analysis)
    if experiment.stop_reason:
        out.line(f"stopped: {experiment.stop_reason}", style="yellow")
    out.line(f"next: `orch report {experiment.id} --html report.html`, `orch history`")
    if out.is_json:
        from orchestrator.report.document import analysis_document

        document = None if outcome.analysis is None else analysis_document(outcome.analysis)
        result = {"experiment": experiment.id, "status": experiment.status, "stop_reason": experiment.stop_reason}
        print_event(
            out, "result", f"experiment {experiment.id} is {experiment.status}", {**result, "analysis": document}
        )
    ships = outcome.analysis is not None and all(arm.ships for arm in outcome.analysis.arms)
    if experiment.status == "failed":
        return FAILED
    return NEGATIVE_VERDICT if wants_code and not ships else DONE


def print_analysis(out: Output, plan: Plan, analysis: Analysis) -> None:
    """The verdict table, why each variant ships or not, warnings, the next step."""
    from orchestrator.report.tables import verdict_sheet

    sheet = verdict_sheet(analysis, plan)
    out.line()
    out.table(Table(sheet.columns, sheet.rows, right=sheet.right, title=sheet.title))
    for arm in analysis.arms:
        style = {True: "bold green", False: "bold red", None: "bold"}[arm.ships]
        out.line(f"{arm.arm}: {arm.why}", style=style)
    for warning in analysis.warnings:
        out.line(f"warning: {warning}", style="yellow")
    if analysis.next_step:
        out.line(f"next: {analysis.next_step}")
