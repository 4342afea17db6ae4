"""inventory.yaml → ``Inventory``: hosts, targets, engines, workloads. Touches no host.

Takes a path, gives the validated records, or an ``InventoryError`` that names file, line and key of everything that
is wrong. A project in use keeps its accepted inventory as JSON in ``.orch/`` (``cache.py``), so that a light command
need not import a YAML reader and a validator.

    yaml_tree.py  text → plain values with lines        shapes.py    pydantic, and its refusals in words; JSON schema
    secrecy.py    what looks like a secret              build.py     plain values → records; references, paths
    problems.py   one problem, and all of them told     template.py  what ``orch init`` writes
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import InventoryError, UnknownNameError
from orchestrator.inventory import cache
from orchestrator.inventory.template import template
from orchestrator.records import Host, Inventory, Target, Workload

__all__ = ["SCHEMA_PATH", "json_schema", "load", "pick_host", "pick_target", "pick_workload", "template"]

SCHEMA_PATH = "inventory.schema.json"
"""Where the template tells an editor to look for ``json_schema()``, relative to the inventory's folder."""

_Record = TypeVar("_Record")


def load(path: str | Path) -> Inventory:
    """Reads and validates an inventory.

    Args:
        path: of inventory.yaml. Local paths inside it are relative to its folder.

    Returns:
        Every record, with every reference resolved.

    Raises:
        InventoryError: missing, unreadable, or wrong. The message is the first problem, the evidence all of them.
    """
    path = Path(path)
    content = _read(path)
    known = cache.read(path, content)
    if known is not None:
        return known
    inventory = _validated(path, content)
    cache.write(path, content, inventory)
    return inventory


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as exc:
        raise InventoryError(f"{path}: no such file", next_step="write one with `orch init`") from exc
    except OSError as exc:
        raise InventoryError(f"{path}: cannot be read ({exc.strerror or exc})") from exc
    if not content.strip():
        raise InventoryError(f"{path}: is empty", next_step="remove it and write a new one with `orch init`")
    return content


def _validated(path: Path, content: bytes) -> Inventory:
    from orchestrator.inventory.build import build
    from orchestrator.inventory.problems import refusal
    from orchestrator.inventory.secrecy import find_secrets
    from orchestrator.inventory.yaml_tree import parse

    text = _decoded(path, content)
    tree = parse(text)
    # secrets first and alone: other messages show values
    problems = find_secrets(text, tree) or tree.problems
    if not problems:
        if tree.root is None:
            raise InventoryError(f"{path}: holds only comments", next_step="see `orch init` for a filled one")
        inventory, problems = build(tree, path)
        if inventory is not None:
            return inventory
    raise refusal(str(path), problems)


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise InventoryError(
            f"{path}:{line}: byte 0x{content[exc.start]:02x} is not UTF-8", next_step="save the file as UTF-8"
        ) from exc


def pick_host(inventory: Inventory, name: str | None) -> Host:
    """The named host; the only one when no name is given.

    Raises:
        UnknownNameError: no such host, or several and no name.
    """
    return _pick(inventory, "host", inventory.hosts, name)


def pick_target(inventory: Inventory, name: str | None) -> Target:
    """The named target; the only one when no name is given.

    Raises:
        UnknownNameError: no such target, or several and no name.
    """
    return _pick(inventory, "target", inventory.targets, name)


def pick_workload(inventory: Inventory, name: str | None) -> Workload:
    """The named workload; the only one when no name is given.

    Raises:
        UnknownNameError: no such workload, or several and no name.
    """
    return _pick(inventory, "workload", inventory.workloads, name)


def workloads_of_recipe(inventory: Inventory, name: str | None) -> list[Workload]:
    """The workloads that are the same load as the named one, each by another client; itself among them.

    Raises:
        UnknownNameError: no such workload; or several recipes, and no name.
    """
    workloads = list(inventory.workloads.values())
    if name is None and len({one.recipe for one in workloads}) == 1:
        return workloads
    named = pick_workload(inventory, name)
    return [one for one in workloads if one.recipe == named.recipe]


def _pick(inventory: Inventory, noun: str, records: Mapping[str, _Record], name: str | None) -> _Record:
    if name is None and len(records) == 1:
        return next(iter(records.values()))
    if name is not None and name in records:
        return records[name]
    listed = ", ".join(records)
    if not records:
        raise UnknownNameError(f"{inventory.path} has no {noun}", next_step=f"add one under `{noun}s:`")
    if name is None:
        raise UnknownNameError(f"{inventory.path} has several {noun}s", next_step=f"name one of {listed}")
    near = difflib.get_close_matches(name, records, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UnknownNameError(f"no {noun} {name!r} in {inventory.path}", next_step=f"{hint}{noun}s: {listed}")


def json_schema() -> dict[str, Any]:
    """JSON Schema of an inventory, for editors; made from the same shapes that validate it."""
    from orchestrator.inventory import shapes

    return shapes.json_schema()
