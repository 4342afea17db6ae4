"""``orch resume``: go on with an experiment, or end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.run import conduct_shown, print_event, told

if TYPE_CHECKING:
    from orchestrator.records import Target
    from orchestrator.store import Store


@click.command("resume")
@click.argument("experiment_id", metavar="[EXPERIMENT]", type=int, required=False)
@click.option("--stop", "is_stop", is_flag=True, help="End it instead: put the host back, keep what was measured.")
@click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(min=30),
    default=1800,
    show_default=True,
    metavar="SECONDS",
    help="The host restores itself so long after the last sign of life.",
)
@target_option
@json_option
@click.pass_obj
@example("orch resume", "orch resume 3 --stop")
def command(
    obj: dict[str, str], experiment_id: int | None, is_stop: bool, ttl_s: float, target_name: str | None, is_json: bool
) -> int:
    """Go on with an experiment whose orch was interrupted, killed or cut off.

    The start that was under way is made again; every complete one counts. With --stop the host is put back and the
    experiment is ended.
    """
    from orchestrator.experiment.run import stop
    from orchestrator.project import Project
    from orchestrator.session import open_session

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    with ProgressLine() as progress, open_session(project, target.name, progress) as session:
        number = _unfinished(session.store, target, experiment_id)
        if is_stop:
            outcome = stop(session, number, lambda kind, text, facts: print_event(out, kind, text, facts))
        else:
            outcome = conduct_shown(out, progress, session, number, ttl_s)
    return told(out, outcome, wants_code=False)


def _unfinished(store: Store, target: Target, number: int | None) -> int:
    from orchestrator.errors import ExperimentError

    found = store.unfinished_experiment(target.name) if number is None else number
    if found is None:
        raise ExperimentError(f"no experiment of {target.name} is unfinished", next_step="see `orch history`")
    return found
