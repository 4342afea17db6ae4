"""``orch attach``: watch an experiment that another orch runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import DONE
from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output

if TYPE_CHECKING:
    from orchestrator.project import Project
    from orchestrator.records import Target
    from orchestrator.store import Store

POLL_S = 1.0


@click.command("attach")
@click.argument("experiment_id", metavar="[EXPERIMENT]", type=int, required=False)
@target_option
@json_option
@click.pass_obj
@example("orch attach", "orch attach 3 --json")
def command(obj: dict[str, str], experiment_id: int | None, target_name: str | None, is_json: bool) -> int:
    """Watch an experiment that another orch of this project runs, from its first event to its last.

    Changes nothing, and ends with the experiment; Ctrl-C ends the watching alone. When no orch is at work on it any
    more, says so, and what to run.
    """
    from orchestrator.errors import ExperimentError
    from orchestrator.project import Project
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    with Store.open_read_only(project.db_path) as store:
        number = store.unfinished_experiment(target.name) if experiment_id is None else experiment_id
        if number is None:
            raise ExperimentError(f"no experiment of {target.name} is unfinished", next_step="see `orch history`")
        _follow(out, project, target, store, number)
        record = store.experiment(number)
    if record.status in ("planned", "running"):
        raise ExperimentError(
            f"no orch is at work on experiment {number} any more",
            next_step=f"`orch resume {number}` goes on with it; the host restores itself when its lease ends",
        )
    return DONE


def _follow(out: Output, project: Project, target: Target, store: Store, number: int) -> None:
    """Prints every event, until the experiment has ended or nobody is at work on it."""
    from orchestrator.cli.run import print_event

    last = 0
    while True:
        with project.lock(target, is_required=False) as is_free:
            pass
        for event in store.events(number, after=last):
            print_event(out, event.kind, event.text, event.detail)
            last = event.id
        if is_free or store.experiment(number).status not in ("planned", "running"):
            return
        time.sleep(POLL_S)
