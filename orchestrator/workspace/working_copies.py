"""The folders in which variants are edited: made, read, listed, dropped. What a variant changes is not known here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import UnknownNameError, UsageError, WorkspaceError
from orchestrator.records import Snapshot, SourceFile, Target, WorkingCopy
from orchestrator.workspace.baseline import BASELINE
from orchestrator.workspace.files import (
    NAME,
    as_workspace_error,
    checked_name,
    fill,
    free_name,
    read_file,
    read_record,
    utc_now,
    utc_stamp,
    write_file,
)

DROPPED = ".dropped"
VARIANT_RECORD = "variant.json"


def new_variant(
    root: Path,
    target: Target,
    name: str,
    files: Sequence[SourceFile],
    *,
    base_digest: str,
    message: str,
    settings: Mapping[str, str] | None = None,
) -> WorkingCopy:
    """Makes the folder of a variant with its files and record.

    Raises:
        UsageError: the name cannot be one.
        WorkspaceError: there is such a variant already, or the folder cannot be written.
    """
    folder = root / checked_name(target.name, "target")
    _refuse_taken(folder, checked_variant_name(name))
    working = WorkingCopy(target.name, name, tuple(files), base_digest, message, utc_now(), dict(settings or {}))
    with as_workspace_error(f"could not make {folder / name}"):
        fill(folder / name, lambda new: _write_variant_folder(new, working))
    return working


def variant_folder(root: Path, target: Target, name: str) -> Path:
    """The folder of an existing variant, to be edited.

    Raises:
        UnknownNameError: no such variant; the message lists those that there are.
    """
    folder = root / checked_name(target.name, "target")
    names = _variant_names(folder)
    if name in names:
        return folder / name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = f"{hint}variants: {', '.join(names)}" if names else f"make one with `orch variant new {name or 'V1'} …`"
    raise UnknownNameError(f"target {target.name} has no variant {name!r}", next_step=listed)


def read_working_copy(root: Path, target: Target, name: str) -> WorkingCopy:
    """A variant's files as they are now; what they change is ``variant.make_variant``'s to say.

    Raises:
        UnknownNameError: no such variant.
        WorkspaceError: a file or its record is missing or cannot be read.
    """
    folder = variant_folder(root, target, name)
    with as_workspace_error(f"variant {name} cannot be read"):
        next_step = f"put it back, or drop the variant with `orch variant drop {name}`"
        record = read_record(folder / VARIANT_RECORD, next_step)
        try:
            return WorkingCopy(
                target=target.name,
                name=name,
                files=tuple(read_file(folder, str(file)) for file in record["files"]),
                base_digest=str(record["base_digest"]),
                message=str(record["message"]),
                created_at=str(record["created_at"]),
                settings={str(knob): str(value) for knob, value in record["settings"].items()},
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise WorkspaceError(f"{folder / VARIANT_RECORD} is damaged", next_step=next_step) from exc


def list_variants(root: Path, target: Target) -> tuple[WorkingCopy, ...]:
    """Every variant that can be read, by name; the others are what ``unreadable_variants`` tells."""
    return tuple(entry for entry in _readings(root, target).values() if isinstance(entry, WorkingCopy))


def unreadable_variants(root: Path, target: Target) -> dict[str, WorkspaceError]:
    """Every variant that cannot be read, with the reason."""
    readings = _readings(root, target)
    return {name: entry for name, entry in readings.items() if isinstance(entry, WorkspaceError)}


def is_stale(working: WorkingCopy, baseline: Snapshot) -> bool:
    """Whether a variant was made from another baseline than this one."""
    return working.base_digest != baseline.digest


def drop_variant(root: Path, target: Target, name: str) -> Path:
    """Takes a variant out of the workspace. Nothing is deleted.

    Returns:
        Where it is kept.

    Raises:
        UnknownNameError: no such variant.
        WorkspaceError: the folder cannot be moved.
    """
    folder = variant_folder(root, target, name)
    with as_workspace_error(f"could not drop {name}"):
        kept = folder.parent / DROPPED
        kept.mkdir(exist_ok=True)
        place = free_name(kept / f"{name}-{utc_stamp()}")
        folder.rename(place)
    return place


def checked_variant_name(name: str) -> str:
    """The name, when it can be a variant's.

    Raises:
        UsageError: it is empty, ``baseline``, or holds something else than letters, digits, '.', '_' and '-'.
    """
    if name.lower() == BASELINE:  # whatever the case: some file systems see no difference
        raise UsageError(f"a variant cannot be called {name!r}", next_step="choose another name, such as V1")
    return checked_name(name, "variant")


def _refuse_taken(folder: Path, name: str) -> None:
    for taken in _variant_names(folder):
        if taken.lower() == name.lower():
            raise WorkspaceError(
                f"there is a variant {taken} already in {folder}",
                next_step=f"choose another name, or `orch variant drop {taken}`",
            )


def _variant_names(folder: Path) -> list[str]:
    """Folders that can be variants; a folder without a record is one too, a broken one."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    return sorted(name for name in names if NAME.fullmatch(name) and name.lower() != BASELINE)


def _readings(root: Path, target: Target) -> dict[str, WorkingCopy | WorkspaceError]:
    readings: dict[str, WorkingCopy | WorkspaceError] = {}
    for name in _variant_names(root / checked_name(target.name, "target")):
        try:
            readings[name] = read_working_copy(root, target, name)
        except WorkspaceError as exc:
            readings[name] = exc
    return readings


def _write_variant_folder(folder: Path, working: WorkingCopy) -> None:
    for file in working.files:
        write_file(folder, file, mode=0o644)
    record = {
        "base_digest": working.base_digest,
        "message": working.message,
        "created_at": working.created_at,
        "settings": dict(working.settings),
        "files": [file.name for file in working.files],
    }
    (folder / VARIANT_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
