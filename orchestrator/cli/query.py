"""``orch query``."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence

import click

from orchestrator.cli.options import example, json_option
from orchestrator.cli.output import Output, cell_text
from orchestrator.cli.table import Table


@click.command("query")
@click.argument("sql")
@json_option
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV with a header line.")
@click.pass_obj
@example(
    'orch query "select variant, concurrency, output_tokens_per_s from results"',
    'orch query "select * from drift" --json',
)
def command(obj: dict[str, str], sql: str, is_json: bool, is_csv: bool) -> None:
    """Run SQL on results.db, read-only.

    The views `results` (a row for each load) and `drift` need no joins; tables and columns are described in
    docs/database.md.
    """
    from orchestrator.project import Project
    from orchestrator.store import Store

    if is_json and is_csv:
        raise click.UsageError("--json and --csv exclude each other")
    project = Project.open(obj["inventory_path"])
    with Store.open_read_only(project.db_path) as store:
        names, rows = store.query(sql)
    columns = _distinct(names)
    if is_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([portable(cell) for cell in row] for row in rows)
        sys.stdout.flush()  # here, where a closed pipe is still noticed as one
        return
    out = Output(is_json=is_json)
    numbers = frozenset(name for i, name in enumerate(columns) if _is_numeric(rows, i))
    out.table(Table(columns, [[cell_text(cell) for cell in row] for row in rows], right=numbers))
    out.document([dict(zip(columns, (portable(cell) for cell in row), strict=True)) for row in rows])


def _distinct(names: Sequence[str]) -> list[str]:
    """The columns' names, a second ``a`` as ``a_2``: a JSON object would keep only one of them."""
    distinct: list[str] = []
    for name in names:
        n, free = 1, name
        while free in distinct:
            n += 1
            free = f"{name}_{n}"
        distinct.append(free)
    return distinct


def _is_numeric(rows: Sequence[Sequence[object]], i: int) -> bool:
    values = [row[i] for row in rows if row[i] is not None]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def portable(cell: object) -> object:
    """A value that JSON and CSV can carry: infinity as text, content as text or, when it is not UTF-8, as hex."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return cell.hex()
