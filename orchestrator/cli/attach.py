"""``orch attach``: watch an experiment that another orch runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.run import events_option, print_event, told

if TYPE_CHECKING:
    from orchestrator.designs import Analysis, ExperimentRecord
    from orchestrator.project import Project
    from orchestrator.records import Target
    from orchestrator.store import RecordedEvent, Store

POLL_S = 1.0
_WHILE_LEASED = " and takes over the load under way; else the host restores itself when its lease ends"


@click.command("attach")
@click.argument("experiment_id", metavar="[EXPERIMENT]", type=int, required=False)
@target_option
@events_option
@click.pass_obj
@example("orch attach", "orch attach 3 --json")
def command(obj: dict[str, str], experiment_id: int | None, target_name: str | None, is_json: bool) -> int:
    """Watch an experiment that another orch of this project runs.

    Prints every event from the first on, and ends with the experiment. Changes nothing; Ctrl-C ends the watching
    alone. When no orch is at work on it any more, says so, and what to run.
    """
    from orchestrator.cli.resume import chosen
    from orchestrator.errors import ExperimentError
    from orchestrator.experiment.run import Outcome
    from orchestrator.project import Project
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    number, target_name = chosen(project, experiment_id, target_name)
    with Store.open_read_only(project.db_path) as store:
        record, last = _follow(out, project, project.target(target_name), store, number)
        if record.status in ("planned", "running"):
            is_back = last is not None and last.kind == "left" and last.detail["is_restored"]
            raise ExperimentError(
                f"no orch is at work on experiment {number} any more",
                next_step=f"`orch resume {number}` goes on with it"
                + ("; the host is restored already" if is_back else _WHILE_LEASED),
            )
        return told(out, Outcome(record, _last_analysis(store, number)), wants_code=False)


def _follow(
    out: Output, project: Project, target: Target, store: Store, number: int
) -> tuple[ExperimentRecord, RecordedEvent | None]:
    """Prints every event once, until the experiment has ended or nobody is at work on it.

    Returns:
        The experiment, and its last event.
    """
    last: RecordedEvent | None = None
    while True:
        with project.lock(target, is_required=False) as is_free:  # first: what is recorded after it is still printed
            pass
        record = store.experiment(number)
        for event in store.events(number, after=last.id if last else 0):
            print_event(out, event)
            last = event
        has_ended = record.status not in ("planned", "running") and last is not None and last.kind == "end"
        if is_free or has_ended:
            return record, last
        time.sleep(POLL_S)


def _last_analysis(store: Store, number: int) -> Analysis | None:
    from orchestrator.report.document import analysis_from_document

    made = store.analyses(number)
    return analysis_from_document(made[-1].document) if made else None
