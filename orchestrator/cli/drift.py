"""``orch drift``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from orchestrator.cli.exit_codes import DONE, NEGATIVE_VERDICT
from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import Output, cell_text, counted
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table


@click.command("drift")
@target_argument
@click.option("--offline", is_flag=True, help="Show what is on record without asking the host.")
@click.option("--exit-code", is_flag=True, help="Exit with 3 when the live file is not the one on record.")
@json_option
@click.pass_obj
@example("orch drift")
def command(obj: dict[str, str], target_name: str | None, offline: bool, exit_code: bool, is_json: bool) -> int:
    """Every change that nobody made on purpose: files, environment and speed.

    Looks at the host now, with the diff of what is live against what should be, then lists every unexpected change on
    record: other bytes in the target's files, another driver, torch, triton or engine between two starts, and where
    the baseline's own starts changed to another level of output tokens per second.
    """
    from orchestrator.cli.speed import print_speed, speed_document
    from orchestrator.experiment.drift import find_drift, find_speed_drift
    from orchestrator.metrics import PRIMARY_METRIC
    from orchestrator.project import Project
    from orchestrator.session import open_session
    from orchestrator.speed_drift import FALSE_ALARM_RATE
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    found = None
    if not offline:
        with (
            ProgressLine() as progress,
            open_session(project, target.name, progress, is_exclusive=False, is_patient=False) as session,
        ):
            found = find_drift(session)
        _print_found(out, found)
    with Store.open_read_only(project.db_path) as store:
        columns, rows = store.query("select * from drift where target = ? or target is null", (target.name,))
        speed = find_speed_drift(store, target)
    if rows:
        out.line()
        out.table(_record_table(columns, rows))
    else:
        out.line(f"on record: no unexpected change of {target.name}")
    print_speed(out, speed, PRIMARY_METRIC)
    out.document(
        {
            "now": _document(found),
            "on_record": [dict(zip(columns, row, strict=True)) for row in rows],
            "speed": speed_document(speed, PRIMARY_METRIC, FALSE_ALARM_RATE),
        }
    )
    return NEGATIVE_VERDICT if exit_code and found is not None and found.is_unexpected else DONE


SHOWN = ("at", "kind", "name", "before", "after", "source")


def _record_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """The changes on record, short enough for 80 columns; --json has them whole."""
    picked = [columns.index(name) for name in SHOWN]
    shown = [[_short_text(row[i]) for i in picked] for row in rows]
    return Table(SHOWN, shown, title=f"on record: {counted(len(rows), 'unexpected change')}")


def _short_text(value: object) -> str | None:
    text = cell_text(value)
    return text[7:19] if text is not None and text.startswith("sha256:") else text


def _print_found(out: Output, found: Any) -> None:
    from orchestrator.records import short

    where = f"{found.where}, {found.snapshot.target}"
    if not found.is_unexpected:
        out.line(f"{where}: as it should be ({found.expected_name} {short(found.expected_digest)})", style="green")
        return
    name = f" (byte for byte {found.live.name})" if found.live.name else ""
    out.line(
        f"{where}: DRIFTED: have {short(found.snapshot.digest)}{name}, "
        f"want {found.expected_name} {short(found.expected_digest)}",
        style="bold red",
    )
    out.diff(found.diff)
    if found.live.is_clean:
        out.line("next: `orch pull` if the change is meant; otherwise have it undone on the host")
    else:
        out.line("next: `orch revert --force` restores the host and keeps this edit beside the file")


def _document(found: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "is_unexpected": found.is_unexpected,
        "digest": found.snapshot.digest,
        "name": found.live.name,
        "expected_digest": found.expected_digest,
        "expected_name": found.expected_name,
        "diff": list(found.diff),
        "observed_at": found.snapshot.pulled_at,
    }
