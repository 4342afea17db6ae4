"""``orch run``: a planned experiment, from its plan to its verdict."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED, NEGATIVE_VERDICT
from orchestrator.cli.options import Concurrencies, example, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table, fold

if TYPE_CHECKING:
    from orchestrator.designs import Analysis, ExperimentRecord, Plan
    from orchestrator.experiment.draw import Cost, Wanted
    from orchestrator.experiment.run import Outcome, Wishes
    from orchestrator.project import Project
    from orchestrator.records import LoadProgress, Target, Variant
    from orchestrator.session import Session
    from orchestrator.store import RecordedEvent, Store

WIDTH = 80
"""Of a title, where a terminal is no wider."""

STYLES = {
    "plan": "bold",
    "set-aside": "yellow",
    "node-lost": "yellow",
    "recovered": "yellow",
    "left": "yellow",
    "look": "bold",
    "restored": "green",
}


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


class Pairs(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """``6,8,10`` → (6, 8, 10); whether they make looks is for the plan to say."""

    name = "pairs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parses the list; refuses what is not a whole number."""
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isascii() and word.isdigit() for word in words):
            self.fail(f"{value!r} is not numbers of pairs such as 6,8,10", param, ctx)
        return tuple(map(int, words))


events_option = click.option(
    "--json", "is_json", is_flag=True, help="Print one JSON object a line: every event, then the result."
)
ttl_option = click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(min=30),
    default=1800,
    show_default=True,
    metavar="SECONDS",
    help="The host restores itself so long after the last sign of life.",
)
exit_code_option = click.option("--exit-code", "wants_code", is_flag=True, help="Exit 3 unless every variant ships.")


@click.command("run")
@click.argument("variant_names", metavar="[VARIANT]...", nargs=-1)
@click.option("--concurrency", "concurrencies", type=Concurrencies(), required=True, metavar="N,N", help="E.g. 1,8,64.")
@click.option("--primary", type=click.IntRange(min=1), metavar="N", help="The one that decides; else the highest.")
@click.option("--metric", "metric_name", default="output_tokens_per_s", show_default=True, help="What decides.")
@click.option(
    "--pairs", "looks", type=Pairs(), default="6,8,10", show_default=True, metavar="N,N", help="Planned looks."
)
@click.option("--margin", type=Percent(), default="1%", show_default=True, help="What does not matter.")
@click.option("--aa", "is_aa", is_flag=True, help="The baseline against itself: how noisy is this host?")
@click.option("--seed", type=click.IntRange(min=0), help="Of the order; drawn when left out, and stored.")
@click.option("-m", "--message", "hypothesis", default="", help="The hypothesis.")
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@ttl_option
@click.option("--force", "is_forced", is_flag=True, help="Also variants that `orch check` refuses.")
@click.option("--dry-run", is_flag=True, help="Show the plan and its cost; start nothing, store nothing.")
@exit_code_option
@target_option
@events_option
@click.pass_obj
@example(
    'orch run V1 V2 --concurrency 1,8,48,64,80,96 --primary 64 -m "fewer warps, deeper pipeline"',
    "orch run --aa --concurrency 1,8,64",
)
def command(obj: dict[str, str], /, variant_names: tuple[str, ...], ttl_s: float, **asked: Any) -> int:
    """Run a whole experiment: planned pairs of starts, a verdict with a known error rate.

    The order is drawn and stored before the first start. Each start is pushed, restarted, proved, loaded at every
    concurrency and judged; one that may not count is made again, visibly. Verdicts come at the planned looks only. The
    host is put back however it ends. Ctrl-C asks whether to finish the start under way; `orch resume` goes on.
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
    plan, expected = _drawn(project, target, variants, wanted)
    if asked["dry_run"]:
        return _dry_run(out, plan, expected)
    with ProgressLine() as progress:
        shown = Shown(out, progress)
        outcome = _begin(shown, project, variants, plan, expected, ttl_s, is_forced=asked["is_forced"])
    return told(out, outcome, wants_code=asked["wants_code"])


# ---- the plan


def _drawn(project: Project, target: Target, variants: list[Variant], wanted: Wanted) -> tuple[Plan, Cost | None]:
    """The plan and its cost, from the record alone."""
    from orchestrator.experiment.draw import cost, draw
    from orchestrator.store import Store

    with Store.open_read_only(project.db_path) as store:
        plan = draw(store, target, variants, wanted)
        return plan, cost(store, plan)


def _dry_run(out: Output, plan: Plan, expected: Cost | None) -> int:
    from orchestrator.report.document import plan_document

    print_plan(out, plan, expected)
    out.line(f"nothing was started; with --seed {plan.seed} instead of --dry-run this very plan runs")
    minutes = {
        "first_look_min": None if expected is None else expected.first_look_min,
        "last_look_min": None if expected is None else expected.last_look_min,
    }
    print_json(out, {"event": "result", "text": "nothing was started", "plan": plan_document(plan), **minutes})
    return DONE


def print_plan(out: Output, plan: Plan, expected: Cost | None) -> None:
    """What is compared, where it is looked at, in which order, and what it takes."""
    arms = ", ".join(arm.name for arm in plan.arms)
    out.line(f"{plan.target} on {plan.host}: {arms}; {len(plan.starts)} starts in {plan.n_blocks} blocks", style="bold")
    out.line(f"decides  {plan.metric} at concurrency {plan.primary_concurrency}, margin {100 * plan.margin:g} %")
    looks = ", ".join(f"{n} (p < {p:.4f})" for n, p in zip(plan.looks, plan.thresholds, strict=True))
    out.line(f"looks    at {looks} pairs; 5 % overall")
    letters = {arm.name: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i % 26] for i, arm in enumerate(plan.arms)}
    orders: dict[int, str] = {}
    for start in plan.starts:
        orders[start.block] = orders.get(start.block, "") + letters[start.arm]
    out.line(f"order    {' '.join(orders.values())}  (seed {plan.seed})")
    out.line(f"         {', '.join(f'{letter} = {name}' for name, letter in letters.items())}")
    if expected is None:
        out.line("cost     not known: no start of this target was measured with this workload yet")
    else:
        out.line(
            f"cost     about {expected.first_look_min:.0f} GPU minutes to the first look, "
            f"{expected.last_look_min:.0f} at most (from {expected.n_known_starts} starts)"
        )


# ---- running


def _begin(
    shown: Shown,
    project: Project,
    variants: list[Variant],
    plan: Plan,
    expected: Cost | None,
    ttl_s: float,
    *,
    is_forced: bool,
) -> Outcome:
    """Refuses what must not begin, stores the plan, and makes its starts."""
    from orchestrator import serve
    from orchestrator.clients.presence import require_makeable
    from orchestrator.experiment.nodes import refuse_shared_files
    from orchestrator.experiment.trial import arm_on_host
    from orchestrator.report.document import plan_document
    from orchestrator.session import open_session

    with open_session(project, plan.target, shown.progress, ask=shown.progress.ask) as session:
        _refuse_unfinished(session.store, plan.target)
        serve.require_restartable(session.engine, is_attended=session.ask is not None)
        require_makeable(session.engine, [project.workload(plan.workload)], plan.concurrencies)
        _refuse_useless(shown, session, variants, is_forced=is_forced)
        if session.n_places > 1:
            refuse_shared_files(session)
        arm_on_host(session)
        shown.progress.finish(is_good=True)
        print_plan(shown.out, plan, expected)
        experiment_id = session.store.create_experiment(plan)
        text = f"experiment {experiment_id}" + (f": {plan.hypothesis}" if plan.hypothesis else "")
        shown.event(session.store.record_event(experiment_id, "plan", text, {"plan": plan_document(plan)}))
        return conduct_shown(shown, session, experiment_id, ttl_s)


def _refuse_unfinished(store: Store, target_name: str) -> None:
    from orchestrator.errors import ExperimentError

    unfinished = store.unfinished_experiment(target_name)
    if unfinished is not None:
        raise ExperimentError(
            f"experiment {unfinished} of {target_name} is not finished",
            next_step=f"`orch resume {unfinished}` goes on with it, `orch resume {unfinished} --stop` ends it",
        )


def _refuse_useless(shown: Shown, session: Session, variants: list[Variant], *, is_forced: bool) -> None:
    """Before any GPU time: a variant that cannot launch, or is the baseline's binary, is refused."""
    from orchestrator.experiment.check import check_if_possible

    for variant in variants:
        attempt = check_if_possible(session.project, session.store, session.target, variant, shown.progress)
        if attempt.refusal is not None and not is_forced:
            raise attempt.refusal
        if attempt.verdict is None:
            shown.progress.finish(is_good=True)
            shown.out.warn(f"{variant.name} was not checked: {attempt.why_not}")


class Shown:
    """An experiment as a person watches it: events on standard output, the start under way in the progress line."""

    def __init__(self, out: Output, progress: ProgressLine) -> None:
        self.out = out
        self.progress = progress
        self._start = ""

    def event(self, event: RecordedEvent) -> None:
        """Prints an event; the progress line is ended first, for both may be on one terminal."""
        self.progress.finish(is_good=True)
        if event.kind == "start":
            self._start = f"start {event.detail['n_done'] + 1}/{event.detail['n_starts']}"
        print_event(self.out, event)

    def load(self, load: LoadProgress) -> None:
        """Shows how far a load is."""
        from orchestrator.records import Progress

        left_s = load.elapsed_s / load.n_done * (load.n_total - load.n_done) if load.n_done else None
        text = f"concurrency {load.concurrency_cap}"
        now = f"{self._start}," if load.phase == "load" else f"{self._start}, {load.phase}"
        self.progress(Progress("load", text, load.n_done, load.n_total, load.elapsed_s, left_s, now))

    def question(self, wishes: Wishes) -> bool:
        """Asked at the first Ctrl-C; whether to go on until the start under way is complete."""
        if not sys.stdin.isatty():
            return False
        words = "\nfinish the start under way [f], or stop now [s]? The host is put back either way. "
        click.echo(words, err=True, nl=False)
        wishes.finish_start = sys.stdin.readline().strip().lower().startswith("f")
        return wishes.finish_start


def conduct_shown(shown: Shown, session: Session, experiment_id: int, ttl_s: float) -> Outcome:
    """Conducts an experiment, with its events and loads shown; the first Ctrl-C asks."""
    from orchestrator.experiment.run import Wishes, conduct
    from orchestrator.interrupts import asking

    wishes = Wishes()
    shown.progress.flee()
    with asking(lambda: shown.question(wishes)):
        return conduct(session, experiment_id, shown.event, wishes=wishes, on_load=shown.load, ttl_s=ttl_s)


# ---- what is told


def print_event(out: Output, event: RecordedEvent) -> None:
    """One event: a line of text with what proves it, or with --json one line of JSON."""
    head = {"event": event.kind, "experiment": event.experiment_id, "at": event.at, "text": event.text}
    print_json(out, {**head, **event.detail})
    out.line(f"{event.kind:<10} {event.text}", style=STYLES.get(event.kind))
    for text in (*event.detail.get("flags", ()), *event.detail.get("evidence", ())):
        out.line(f"{'':<10} {text}")


def print_json(out: Output, document: dict[str, Any]) -> None:
    """One line of JSON; printed only with --json."""
    if out.is_json:
        click.echo(json.dumps(document, ensure_ascii=False, allow_nan=False))


def told(out: Output, outcome: Outcome, *, wants_code: bool) -> int:
    """Prints what came out, and returns the exit code.

    Raises:
        RevertError: a node is not proved to be restored.
    """
    code = _told(out, outcome.experiment, outcome.analysis, wants_code=wants_code)
    if outcome.trouble is not None:
        raise outcome.trouble
    return code


def _told(out: Output, experiment: ExperimentRecord, analysis: Analysis | None, *, wants_code: bool) -> int:
    from orchestrator.report.document import analysis_document

    print_json(
        out,
        {
            "event": "result",
            "experiment": experiment.id,
            "at": experiment.ended_at,
            "text": f"experiment {experiment.id} is {experiment.status}",
            "status": experiment.status,
            "reason": experiment.stop_reason,
            "analysis": None if analysis is None else analysis_document(analysis),
        },
    )
    if analysis is not None:
        print_analysis(out, experiment.plan, analysis)
    else:
        out.line("no block was completed, so there is nothing to compare")
    if experiment.status in ("failed", "stopped"):
        out.line(f"{experiment.status}: {experiment.stop_reason}", style="yellow")
    out.line(f"report: `orch report {experiment.id} --html report.html`")
    if experiment.status == "failed":
        return FAILED
    ships = analysis is not None and all(arm.ships for arm in analysis.arms)
    return NEGATIVE_VERDICT if wants_code and not ships else DONE


def print_analysis(out: Output, plan: Plan, analysis: Analysis) -> None:
    """The verdict table, why each variant ships or not, warnings, the next step."""
    from orchestrator.report.tables import verdict_sheet

    sheet = verdict_sheet(analysis, plan)
    out.line()
    for text in fold(sheet.title, WIDTH):
        out.line(text)
    out.table(Table(sheet.columns, sheet.rows, right=sheet.right))
    for arm in analysis.arms:
        style = {True: "bold green", False: "bold red", None: "bold"}[arm.ships]
        out.line(f"{arm.arm}: {arm.why}", style=style)
    for warning in analysis.warnings:
        out.line(f"warning: {warning}", style="yellow")
    if analysis.next_step and analysis.is_final:
        out.line(f"next: {analysis.next_step}")
