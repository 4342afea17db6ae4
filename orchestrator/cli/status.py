"""``orch status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import Output, counted
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.status import HostStatus
    from orchestrator.project import Project
    from orchestrator.records import Target
    from orchestrator.session import Live


@click.command("status")
@target_argument
@click.option("--offline", is_flag=True, help="Show what is on record without asking the host.")
@json_option
@click.pass_obj
@example("orch status", "orch status --offline --json")
def command(obj: dict[str, str], target_name: str | None, offline: bool, is_json: bool) -> None:
    """What is on the host, who holds it, what is in the workspace.

    Names the live bytes (baseline, a variant, or unknown), shows the lease, the engine and whether it started before
    the file changed, the variants, and what an earlier orch left open. Finishes the record of a killed orch.
    """
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    recorded = _on_record(project, target, is_upgraded=not offline)
    where = {"target": target.name, "host": target.host, "kernel": target.kernel}
    document: dict[str, Any] = {**where, **recorded, "now": None}
    if not offline:
        document["now"] = _ask_host(out, project, target, has_baseline=recorded["baseline"] is not None)
    _print_record(out, target, recorded)
    out.document(document)


def _ask_host(out: Output, project: Project, target: Target, *, has_baseline: bool) -> dict[str, Any]:
    from orchestrator.cli.progress import ProgressLine
    from orchestrator.experiment.status import host_status
    from orchestrator.session import open_session

    with (
        ProgressLine() as progress,
        open_session(project, target.name, progress, is_exclusive=False, is_patient=False) as session,
    ):
        status = host_status(session)
    _print_host(out, target, status, has_baseline=has_baseline)
    return host_document(status)


def _print_host(out: Output, target: Target, status: HostStatus, *, has_baseline: bool) -> None:
    for state, file in zip(status.live.states, target.files, strict=True):
        real = f" → {state.real_path}" if state.real_path != file.path else ""
        out.line(f"file       {target.host}:{file.path}{real}")
    words, style = live_words(status.live, has_baseline=has_baseline)
    out.line(f"live       {words}", style=style)
    for node, text in status.live.by_node.items():
        out.line(f"node {node:<6}{text}", style="bold red")
    out.line(f"lease      {_lease_words(status.live)}")
    out.line(f"engine     {_engine_words(status)}", style="yellow" if status.engine_is_older else None)
    for node, process in status.ranks.items():
        out.line(f"rank on {node}: {'none' if process is None else f'pid {process.pid} since {process.started_at}'}")


def live_words(live: Live, *, has_baseline: bool) -> tuple[str, str | None]:
    """The live bytes by name, and the colour that fits."""
    from orchestrator.records import short

    if live.by_node:
        way_out = "`orch revert` puts every node back" if live.is_torn else "see `orch drift`"
        return f"NOT THE SAME on every node that the engine spans: {way_out}", "bold red"
    if live.digest is None:
        what = "restore it there, or correct its path in inventory.yaml" if live.is_clean else "run `orch revert`"
        return f"a file is MISSING: {what}", "bold red"
    unclean = "a push was cut off: `orch revert` clears it" if live.name == "baseline" else "deployed by orch"
    phase = "clean" if live.is_clean else unclean
    if not has_baseline and live.name is None and live.is_clean:
        return f"{short(live.digest)}, not recorded yet: run `orch pull`", None
    if live.name is None:
        where = "" if live.is_clean else " over what orch deployed"
        return f"UNKNOWN bytes {short(live.digest)}{where}: see `orch drift`", "bold red"
    style = "green" if live.name == "baseline" else "yellow"
    return f"{live.name} {short(live.digest)} ({phase})", style


def _lease_words(live: Live) -> str:
    if live.lease is None:
        return "nobody holds it"
    whose = "this project" if live.is_ours else "SOMEBODY ELSE"
    left_s = live.lease.remaining_s
    when = f"for another {left_s:.0f} s (until {live.lease.expires_at})" if left_s > 0 else "EXPIRED"
    return f"{whose}: {live.lease.holder}, {when}"


def _engine_words(status: HostStatus) -> str:
    from orchestrator.records import short

    if status.engine is None:
        return "none that orch started"
    older = (
        ": STARTED BEFORE the file last changed, so it holds other bytes in memory" if status.engine_is_older else ""
    )
    return (
        f"{status.engine.engine} pid {status.engine.pid} since {status.engine.started_at}, "
        f"on {short(status.engine.deployed_digest)}{older}"
    )


def host_document(status: HostStatus) -> dict[str, Any]:
    """The JSON of what is on the host; keys are stable."""
    live, engine = status.live, status.engine
    return {
        "digest": live.digest,
        "name": live.name,
        "is_clean": live.is_clean,
        "files": [{"remote_path": s.path, "digest": s.digest, "phase": s.phase} for s in live.states],
        "lease": None
        if live.lease is None
        else {
            "holder": live.lease.holder,
            "is_ours": live.is_ours,
            "remaining_s": live.lease.remaining_s,
            "expires_at": live.lease.expires_at,
        },
        "engine": None
        if engine is None
        else {
            "name": engine.engine,
            "pid": engine.pid,
            "started_at": engine.started_at,
            "deployed_digest": engine.deployed_digest,
            "is_older_than_file": status.engine_is_older,
        },
        "open_deployments": [
            {"variant": d.variant, "status": d.status, "started_at": d.started_at} for d in status.opened
        ],
        "nodes": [
            {"node": node, "differs": live.by_node.get(node), "pid": process.pid if process else None}
            for node, process in status.ranks.items()
        ],
    }


def _on_record(project: Project, target: Target, *, is_upgraded: bool) -> dict[str, Any]:
    """Baseline, variants and number of trials; from files and the record only, and without heavy imports.

    Args:
        is_upgraded: bring the record of an older orch to this one's schema, as every command does that records.
    """
    from orchestrator import workspace
    from orchestrator.store import Store

    baseline, n_trials, opened, unfinished = None, 0, [], None
    if project.db_path.exists():
        with Store.open(project.db_path) if is_upgraded else Store.open_read_only(project.db_path) as store:
            baseline = store.baseline(target.name)
            n_trials = len(store.trials(target.name))
            opened = store.open_deployments(target.name)
            unfinished = store.unfinished_experiment(target.name)
    return {
        "baseline": None if baseline is None else {"digest": baseline.digest, "pulled_at": baseline.pulled_at},
        "variants": [
            {
                "name": working.name,
                "digest": working.digest,
                "settings": dict(working.settings),
                "is_stale": None if baseline is None else workspace.is_stale(working, baseline),
                "message": working.message,
            }
            for working in workspace.list_variants(project.variants_root, target)
        ],
        "unreadable_variants": {
            n: str(e) for n, e in workspace.unreadable_variants(project.variants_root, target).items()
        },
        "n_trials": n_trials,
        "unfinished_experiment": unfinished,
        "recorded_open": [{"variant": d.variant, "status": d.status, "started_at": d.started_at} for d in opened],
    }


def _print_record(out: Output, target: Target, recorded: dict[str, Any]) -> None:
    baseline = recorded["baseline"]
    shown = f"{baseline['digest'][7:19]} pulled {baseline['pulled_at']}" if baseline else "none: run `orch pull`"
    kernel = f"kernel {target.kernel}" if target.kernel else "no kernel"
    out.line(f"target     {target.name} on {target.host}, {kernel}, {counted(len(target.files), 'file')}")
    out.line(f"baseline   {shown}")
    out.line(f"record     {counted(recorded['n_trials'], 'engine start')}")
    if recorded["unfinished_experiment"] is not None:
        number = recorded["unfinished_experiment"]
        words = f"experiment {number} is not finished: `orch attach` watches it, `orch resume` goes on"
        out.line(words, style="yellow")
    for opened in recorded["recorded_open"]:
        since = f"{opened['started_at'][:19]}Z"
        out.line(f"open       {opened['variant']} {opened['status']} since {since}", style="yellow")
    if recorded["variants"]:
        rows = [
            (v["name"], v["digest"][7:19], _settings(v), "older baseline" if v["is_stale"] else "", v["message"])
            for v in recorded["variants"]
        ]
        out.table(Table(("variant", "digest", "set", "stale", "message"), rows))
    for name, error in recorded["unreadable_variants"].items():
        out.warn(f"variant {name} cannot be read: {error}")


def _settings(entry: dict[str, Any]) -> str:
    return " ".join(f"{knob}={value}" for knob, value in entry["settings"].items()) or "by hand"
