"""``orch resume``: go on with an experiment, or end it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.run import Shown, conduct_shown, events_option, exit_code_option, told, ttl_option

if TYPE_CHECKING:
    from orchestrator.project import Project


@click.command("resume")
@click.argument("experiment_id", metavar="[EXPERIMENT]", type=int, required=False)
@click.option("--stop", "is_stop", is_flag=True, help="End it instead: put the host back, keep what was measured.")
@ttl_option
@exit_code_option
@target_option
@events_option
@click.pass_obj
@example("orch resume", "orch resume 3 --stop")
def command(
    obj: dict[str, str],
    experiment_id: int | None,
    is_stop: bool,
    ttl_s: float,
    wants_code: bool,
    target_name: str | None,
    is_json: bool,
) -> int:
    """Go on with an experiment whose orch was interrupted, killed or cut off.

    Every complete start counts. The one under way is taken over with its load, where the host still has both and they
    can be proved to be the same; else it is made again. A block that was begun more than an hour ago is made again as a
    whole. With --stop the host is put back and the experiment is ended.
    """
    from orchestrator.experiment.run import stop
    from orchestrator.project import Project
    from orchestrator.session import open_session

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    number, target = chosen(project, experiment_id, target_name)
    with ProgressLine() as progress, open_session(project, target, progress, ask=progress.ask) as session:
        shown = Shown(out, progress)
        outcome = stop(session, number, shown.event) if is_stop else conduct_shown(shown, session, number, ttl_s)
    return told(out, outcome, wants_code=wants_code)


def chosen(project: Project, experiment_id: int | None, target_name: str | None) -> tuple[int, str]:
    """The experiment that is meant and its target; the unfinished one when no number is given.

    Raises:
        ExperimentError: there is none, or it is of another target than the one named.
    """
    from orchestrator.errors import ExperimentError
    from orchestrator.store import Store

    with Store.open_read_only(project.db_path) as store:
        if experiment_id is None:
            target = project.target(target_name).name
            number = store.unfinished_experiment(target)
            if number is None:
                raise ExperimentError(f"no experiment of {target} is unfinished", next_step="see `orch history`")
            return number, target
        target = store.experiment(experiment_id).plan.target
    if target_name not in (None, target):
        raise ExperimentError(f"experiment {experiment_id} is of {target}", next_step="leave --target out")
    return experiment_id, target
