"""``orch bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED
from orchestrator.cli.options import Concurrencies, example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.trial import Trial
    from orchestrator.records import LoadProgress, LoadResult

COLUMNS = ("output_tokens_per_s", "ttft_ms_p50", "tpot_ms_p50", "e2el_ms_p99")


@click.command("bench")
@click.option(
    "--concurrency", "concurrencies", type=Concurrencies(), required=True, metavar="N,N,…", help="E.g. 1,8,64."
)
@target_option
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@click.option("--keep-running", is_flag=True, help="Leave the engine running at the end.")
@json_option
@click.pass_obj
@example("orch bench --concurrency 1,8,64,96")
def command(
    obj: dict[str, str],
    concurrencies: tuple[int, ...],
    target_name: str | None,
    workload_name: str | None,
    keep_running: bool,
    is_json: bool,
) -> int:
    """Restart the engine, prove what it loaded, load it, store the numbers.

    Measures what is live: the baseline, or the variant that was pushed. The numbers belong to the digest that the
    engine loaded. One start is one replicate: repeat the command for more, in alternating order with the baseline.
    Exit code 1 when a load is invalid or failed, or the start was contaminated: what was seen is stored, and marked.
    """
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    workload = project.workload(workload_name)
    trial = _measured(project, target_name, workload, concurrencies, keep_running)
    print_trial(out, trial, workload.name)
    out.document(trial_document(trial, workload.name))
    is_good = trial.status == "ok" and all(load.status == "ok" for load in trial.loads)
    return DONE if is_good else FAILED


def _measured(
    project: Any,
    target_name: str | None,
    workload: Any,
    concurrencies: tuple[int, ...],
    keep_running: bool,
) -> Trial:
    from orchestrator.experiment.trial import trial
    from orchestrator.records import Progress
    from orchestrator.session import open_session

    with ProgressLine() as progress, open_session(project, target_name, progress) as session:

        def show(load: LoadProgress) -> None:
            left_s = load.elapsed_s / load.n_done * (load.n_total - load.n_done) if load.n_done else None
            text, detail = f"concurrency {load.concurrency_cap}", _phase_words(load)
            progress(Progress("load", text, load.n_done, load.n_total, load.elapsed_s, left_s, detail))

        return trial(session, workload, concurrencies, keep_running=keep_running, on_load=show)


def _phase_words(load: LoadProgress) -> str:
    phase = "" if load.phase == "load" else load.phase
    return " ".join(words for words in (phase, f"{load.n_failed} failed," if load.n_failed else "") if words)


def print_trial(out: Output, trial: Trial, workload: str) -> None:
    """The table of one start, with what makes it doubtful."""
    from orchestrator.metrics import METRICS
    from orchestrator.records import short

    headers = ["concurrency", "status", "ok/asked", *(f"{name} [{METRICS[name].unit}]" for name in COLUMNS)]
    rows = [_row(load, METRICS) for load in trial.loads]
    title = f"{trial.arm} {short(trial.digest)}, workload {workload}, engine start {trial.trial_id} (n = 1)"
    out.table(Table(headers, rows, right=frozenset(headers) - {"status"}, title=title))
    for load in trial.loads:
        for reason in load.reasons:
            out.line(f"concurrency {load.concurrency_cap} is {load.status}: {reason}", style="yellow")
    if trial.status != "ok":
        for reason in trial.reasons:
            out.line(f"this start is {trial.status.upper()}: {reason}", style="bold red")
    if trial.service is not None:
        n = len(trial.service.proof.pids)
        processes = "1 process" if n == 1 else f"{n} processes"
        out.line(f"loaded: {short(trial.service.proof.digest)} proved on {processes}", style="green")
    out.line("one engine start is one value: it has no interval, and one value against another is no verdict")
    if trial.arm == "baseline":
        out.line("next: `orch push --variant …`, and `orch bench` again")
    else:
        out.line(f"next: `orch compare {trial.arm}`, and `orch revert` at the end")


def _row(load: LoadResult, metrics: Any) -> list[str | int]:
    n_ok = sum(1 for request in load.requests if request.error is None)
    cells: list[str | int] = [load.concurrency_cap, load.status, f"{n_ok}/{len(load.requests)}"]
    return [*cells, *(metrics[name].format(load.metrics.get(name)) for name in COLUMNS)]


def trial_document(trial: Trial, workload: str) -> dict[str, Any]:
    """The JSON of one start; keys are stable."""
    service = trial.service
    return {
        "trial_id": trial.trial_id,
        "arm": trial.arm,
        "digest": trial.digest,
        "loaded_digest": service.proof.digest if service else None,
        "n_processes": len(service.proof.pids) if service else None,
        "workload": workload,
        "status": trial.status,
        "reasons": list(trial.reasons),
        "ready_after_s": service.ready_after_s if service else None,
        "loads": [
            {
                "concurrency_cap": load.concurrency_cap,
                "status": load.status,
                "reasons": list(load.reasons),
                "n_asked": len(load.requests),
                "metrics": dict(load.metrics),
                "client": load.client,
                "client_version": load.client_version,
                "started_at": load.started_at,
                "ended_at": load.ended_at,
            }
            for load in trial.loads
        ],
    }
