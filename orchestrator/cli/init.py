"""``orch init``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from orchestrator.cli.options import example, json_option
from orchestrator.cli.output import Output

GITIGNORE = "results.db\nresults.db-wal\nresults.db-shm\nvariants/\n.orch/\n"
SCHEMA_NAME = "inventory.schema.json"


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@json_option
@example("orch init my-kernel && $EDITOR my-kernel/inventory.yaml")
def command(folder: Path, is_json: bool) -> None:
    """Write a commented inventory.yaml.

    Also a .gitignore for what orch makes, and a JSON schema that editors check inventory.yaml with. Files that are
    there already are left alone.
    """
    from orchestrator import inventory
    from orchestrator.errors import UsageError

    out = Output(is_json=is_json)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"{folder} cannot be made a folder ({exc.strerror})", next_step="name another one") from exc
    schema = json.dumps(inventory.json_schema(), indent=2) + "\n"
    wanted = {"inventory.yaml": inventory.template(), SCHEMA_NAME: schema, ".gitignore": GITIGNORE}
    written = [name for name, text in wanted.items() if _write_new(folder / name, text)]
    kept = [name for name in wanted if name not in written]
    for name in wanted:
        out.line(f"{'wrote ' if name in written else 'kept  '} {folder / name}")
    there = "" if folder == Path() else f" in {folder}"
    out.line(f"next: fill in {folder / 'inventory.yaml'}, then run `orch pull`{there}")
    out.document({"folder": str(folder), "written": written, "kept": kept})


def _write_new(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True
