"""A grid of configs, compiled, and kept until variants are made of its points: ``orch check --sweep``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.check.offline import Sweep, sweep_offline
from orchestrator.check.sweep import swept_values, variant_name
from orchestrator.errors import UsageError, WorkspaceError
from orchestrator.experiment.check import Options, ask
from orchestrator.project import Project
from orchestrator.records import Target, Variant
from orchestrator.session import Report
from orchestrator.store import Store
from orchestrator.verdicts import Constant


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the last grid, from which a variant can be made.

    Attributes:
        number: from 1, as the table shows it. settings: of the knobs, as ``variant new --set`` takes them.
        is_worth: it launches, and is not the same as an earlier point or the baseline, on every architecture.
    """

    number: int
    name: str
    settings: Mapping[str, str]
    is_worth: bool


@dataclass(frozen=True, slots=True)
class LastSweep:
    """The last grid of a target. ``variant`` and ``digest``: over whose files it was laid."""

    variant: str
    digest: str
    unsettable: tuple[str, ...]
    points: tuple[Point, ...]


def sweep(
    project: Project,
    store: Store,
    target: Target,
    variant: Variant | None,
    words: Sequence[str],
    say: Report,
    options: Options | None = None,
) -> Sweep:
    """Compiles a grid over a variant's (or the baseline's) first config, and keeps it for ``variant new --from-sweep``.

    Args:
        variant: None for the baseline. words: one a knob, such as ``num_stages=2..7``.

    Raises:
        As ``check``.
    """
    question, compiler = ask(project, store, target, variant, say, options or Options())
    found = sweep_offline(question, words, compiler)
    _write_atomically(_sweep_path(project, target), _as_json(found))
    return found


def last_sweep(project: Project, target: Target) -> LastSweep:
    """The last grid of a target.

    Raises:
        WorkspaceError: there was none.
    """
    try:
        kept = json.loads(_sweep_path(project, target).read_text(encoding="utf-8"))
        points = tuple(Point(**point) for point in kept["points"])
        return LastSweep(kept["variant"], kept["digest"], tuple(kept["unsettable"]), points)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise WorkspaceError(
            f"no sweep of {target.name} is on record here", next_step="run `orch check --sweep num_stages=2..5` first"
        ) from exc


def pick_points(found: LastSweep, numbers: Sequence[int]) -> list[Point]:
    """The points of these numbers; all that are worth GPU time when no number is given.

    Raises:
        UsageError: no such point, or none is worth it, or the grid has a knob that no config sets.
    """
    if found.unsettable:
        names = ", ".join(found.unsettable)
        raise UsageError(
            f"the last sweep has the knob {names}, which the kernel's launcher sets, not its autotune list",
            next_step="sweep the knobs of the list only, or edit the launcher with `orch variant edit`",
        )
    by_number = {point.number: point for point in found.points}
    missing = [number for number in numbers if number not in by_number]
    if missing:
        raise UsageError(f"the last sweep has no point {missing[0]}", next_step=f"it has 1 to {len(by_number)}")
    picked = [by_number[n] for n in numbers] if numbers else [point for point in found.points if point.is_worth]
    if not picked:
        raise UsageError(
            "no point of the last sweep is worth GPU time: each is too large, or the same as another",
            next_step="name the numbers that you want all the same",
        )
    return picked


def _as_json(found: Sweep) -> str:
    points: dict[int, dict[str, Any]] = {}
    for row in found.rows:
        values = swept_values(row.report.config, found.swept)
        point = points.setdefault(
            row.number,
            {
                "number": row.number,
                "name": variant_name(row.report.config, found.swept),
                "settings": {knob: _as_source(value) for knob, value in values.items()},
                "is_worth": True,
            },
        )
        point["is_worth"] &= row.mark == "new"
    kept = {
        "variant": found.variant,
        "digest": found.digest,
        "unsettable": found.unsettable,
        "points": list(points.values()),
    }
    return json.dumps(kept, indent=1)


def _as_source(value: Constant) -> str:
    """A value as it is written in the kernel's file: a dtype is a name, other texts are quoted."""
    if isinstance(value, str):
        return value if value.startswith("tl.") else json.dumps(value)
    return repr(value)


def _sweep_path(project: Project, target: Target) -> Path:
    return project.root / ".orch" / f"{target.name}.sweep.json"


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)
