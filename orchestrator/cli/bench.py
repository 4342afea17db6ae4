"""``orch bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED
from orchestrator.cli.options import Concurrencies, example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.trial import LoadWatch, Trial
    from orchestrator.records import LoadProgress, LoadResult
    from orchestrator.session import Session

MAX_SHOWN_WINNERS = 12
COLUMNS = ("output_tokens_per_s", "ttft_ms_p50", "tpot_ms_p50", "e2el_ms_p99")


@click.command("bench")
@click.option(
    "--concurrency", "concurrencies", type=Concurrencies(), required=True, metavar="N,N,…", help="E.g. 1,8,64."
)
@target_option
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@click.option(
    "--client",
    "clients",
    metavar="NAME,…",
    help="Load clients that make the workload's recipe in turn, such as sglang,vllm, or all: side by side.",
)
@click.option("--keep-running", is_flag=True, help="Leave the engine running at the end.")
@json_option
@click.pass_obj
@example("orch bench --concurrency 1,8,64,96", "orch bench --concurrency 1,8 --client all")
def command(
    obj: dict[str, str],
    concurrencies: tuple[int, ...],
    target_name: str | None,
    workload_name: str | None,
    clients: str | None,
    keep_running: bool,
    is_json: bool,
) -> int:
    """Restart the engine, prove what it loaded, load it, store the numbers.

    Measures what is live: the baseline, or the variant that was pushed. The numbers belong to the digest that the
    engine loaded. One start is one replicate: repeat the command for more, in alternating order with the baseline.
    Exit code 1 when a load is invalid or failed, or the start was contaminated: what was seen is stored, and marked.

    With --client several load clients load the same start one after the other, each by its own workload of the same
    recipe, and their numbers are shown side by side with what each means by them. They are never compared.
    """
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    if clients is not None:
        return _bench_clients(out, project, target_name, workload_name, clients, concurrencies, keep_running)
    workload = project.workload(workload_name)
    with _loading(project, target_name) as (session, show):
        from orchestrator.experiment.trial import trial

        made = trial(session, workload, concurrencies, keep_running=keep_running, on_load=show)
    print_trial(out, made, workload.name)
    out.document(trial_document(made, workload.name))
    return DONE if is_good(made) else FAILED


def _bench_clients(
    out: Output,
    project: Any,
    target_name: str | None,
    workload_name: str | None,
    clients: str,
    concurrencies: tuple[int, ...],
    keep_running: bool,
) -> int:
    from orchestrator.cli.bench_clients import print_side_by_side, side_by_side_document
    from orchestrator.experiment.side_by_side import side_by_side

    workloads = project.workloads_of_recipe(workload_name)
    names = [] if clients.strip() == "all" else [name.strip() for name in clients.split(",")]
    with _loading(project, target_name) as (session, show):
        made = side_by_side(session, workloads, names, concurrencies, keep_running=keep_running, on_load=show)
    print_side_by_side(out, made)
    out.document(side_by_side_document(made))
    return DONE if all(map(is_good, made.trials)) else FAILED


def is_good(trial: Trial) -> bool:
    """Whether the start and every load of it can be trusted."""
    return trial.status == "ok" and all(load.status == "ok" for load in trial.loads)


@contextlib.contextmanager
def _loading(project: Any, target_name: str | None) -> Iterator[tuple[Session, LoadWatch]]:
    """A session for loads, and who is told how far one is."""
    from orchestrator.records import Progress
    from orchestrator.session import open_session

    with ProgressLine() as progress, open_session(project, target_name, progress, ask=progress.ask) as session:

        def show(load: LoadProgress) -> None:
            left_s = load.elapsed_s / load.n_done * (load.n_total - load.n_done) if load.n_done else None
            text, detail = f"concurrency {load.concurrency_cap}", _phase_words(load)
            progress(Progress("load", text, load.n_done, load.n_total, load.elapsed_s, left_s, detail))

        yield session, show


def _phase_words(load: LoadProgress) -> str:
    phase = "" if load.phase == "load" else load.phase
    return " ".join(words for words in (phase, f"{load.n_failed} failed," if load.n_failed else "") if words)


def print_trial(out: Output, trial: Trial, workload: str) -> None:
    """The table of one start, with what makes it doubtful."""
    from orchestrator.metrics import METRICS
    from orchestrator.records import short

    headers = ["concurrency", "status", "ok/asked", *(f"{name} [{METRICS[name].unit}]" for name in COLUMNS)]
    rows = [load_row(load, METRICS) for load in trial.loads]
    title = f"{trial.arm} {short(trial.digest)}, workload {workload}, engine start {trial.trial_id} (n = 1)"
    out.table(Table(headers, rows, right=frozenset(headers) - {"status"}, title=title))
    for load in trial.loads:
        for reason in load.reasons:
            out.line(f"concurrency {load.concurrency_cap} is {load.status}: {reason}", style="yellow")
    print_start(out, trial)
    out.line("one engine start is one value: it has no interval, and one value against another is no verdict")
    if trial.arm == "baseline":
        out.line("next: `orch push --variant …`, and `orch bench` again")
    else:
        out.line(f"next: `orch compare {trial.arm}`, and `orch revert` at the end")


def print_start(out: Output, trial: Trial) -> None:
    """Whether the start can be trusted, what it loaded and what was autotuned."""
    from orchestrator.records import short

    if trial.status != "ok":
        for reason in trial.reasons:
            out.line(f"this start is {trial.status.upper()}: {reason}", style="bold red")
    if trial.service is not None:
        proof = trial.service.proof
        processes = "1 process" if len(proof.pids) == 1 else f"{len(proof.pids)} processes"
        if proof.nodes:
            processes += f" of {len(proof.nodes)} nodes ({', '.join(proof.nodes)})"
        if all(file.module or file.reported_digest for file in proof.files):
            out.line(f"loaded: {short(proof.digest)} proved on {processes}", style="green")
        else:
            what = "no module: is given, so that the engine reads it is not proved"
            out.line(f"in place: {short(proof.digest)} before {processes} began; {what}", style="yellow")
    for line in _winner_lines(trial):
        out.line(line)


def _winner_lines(trial: Trial) -> list[str]:
    """What Triton's autotuner chose, where the engine's log told it."""
    from orchestrator.report.words import config_words

    winners = (trial.compiled.winners if trial.compiled else None) or ()
    lines = [f"autotuned: {one.kernel} {one.key or ''}".rstrip() + f": {config_words(one.config)}" for one in winners]
    n_more = len(lines) - MAX_SHOWN_WINNERS
    return lines if n_more <= 0 else [*lines[:MAX_SHOWN_WINNERS], f"autotuned: {n_more} more, see --json"]


def load_row(load: LoadResult, metrics: Any) -> list[str | int]:
    """Cells of a load: concurrency, status, how many requests, and the metrics of ``COLUMNS``."""
    n_ok = sum(1 for request in load.requests if request.error is None)
    cells: list[str | int] = [load.concurrency_cap, load.status, f"{n_ok}/{len(load.requests)}"]
    return [*cells, *(metrics[name].format(load.metrics.get(name)) for name in COLUMNS)]


def _winner_documents(trial: Trial) -> list[dict[str, Any]] | None:
    from dataclasses import asdict

    winners = trial.compiled.winners if trial.compiled else None
    return None if winners is None else [asdict(winner) for winner in winners]


def trial_document(trial: Trial, workload: str) -> dict[str, Any]:
    """The JSON of one start; keys are stable."""
    service = trial.service
    return {
        "trial_id": trial.trial_id,
        "arm": trial.arm,
        "digest": trial.digest,
        "loaded_digest": service.proof.digest if service else None,
        "n_processes": len(service.proof.pids) if service else None,
        "nodes": list(service.proof.nodes) if service else [],
        "workload": workload,
        "status": trial.status,
        "reasons": list(trial.reasons),
        "ready_after_s": service.ready_after_s if service else None,
        "autotune_winners": _winner_documents(trial),
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
