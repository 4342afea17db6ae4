"""The pristine copy of a target: written whole, read-only, and proved by digest whenever it is read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import WorkspaceError
from orchestrator.records import FileState, Lease, Snapshot, Target, short
from orchestrator.workspace.files import (
    as_workspace_error,
    checked_name,
    fill,
    free_name,
    read_file,
    read_record,
    utc_stamp,
    write_atomically,
    write_file,
)

BASELINE = "baseline"
BASELINES = ".baselines"
BASELINE_RECORD = "baseline.json"
READ_ONLY = 0o444


@dataclass(frozen=True, slots=True)
class BaselineWrite:
    """What ``write_baseline`` found and left.

    Attributes:
        previous: the baseline before; None when there was none, or when its copy was edited or damaged.
        replaced_damaged: where an edited or damaged pristine copy was put aside; None when there was none.
    """

    current: Snapshot
    previous: Snapshot | None
    replaced_damaged: Path | None

    @property
    def has_moved(self) -> bool:
        """Whether the bytes differ from the baseline before."""
        return self.previous is not None and self.previous.digest != self.current.digest

    @property
    def moved_files(self) -> tuple[str, ...]:
        """Names of the files that differ, appeared or are gone."""
        if self.previous is None:
            return ()
        before = {file.name: file.digest for file in self.previous.files}
        after = {file.name: file.digest for file in self.current.files}
        return tuple(sorted(name for name in before | after if before.get(name) != after.get(name)))


# ---- the baseline


def write_baseline(root: Path, snapshot: Snapshot) -> BaselineWrite:
    """Makes a snapshot the target's baseline; safe to repeat.

    The copy is complete before ``baseline`` points to it, in one rename. An older baseline stays under
    ``.baselines/``; an edited pristine copy is put aside, not overwritten.

    Raises:
        WorkspaceError: the folder cannot be written, or something that orch did not make is in the way.
    """
    folder = root / checked_name(snapshot.target, "target")
    with as_workspace_error(f"could not write the baseline of {snapshot.target}"):
        previous = _previous(folder)
        home = folder / BASELINES / short(snapshot.digest)
        replaced = _put_aside_damaged(home, snapshot.digest)
        if home.exists():
            write_atomically(home / BASELINE_RECORD, _baseline_record(snapshot))
        else:
            fill(home, lambda new: _write_baseline_folder(new, snapshot))
        _point_to(folder / BASELINE, home / "files")
    return BaselineWrite(snapshot, previous, replaced)


def read_baseline(root: Path, target: Target, digest: str | None = None) -> Snapshot:
    """The pristine copy, proved by the digests recorded with it.

    Args:
        root: the folder ``variants/``.
        target: whose baseline.
        digest: an earlier baseline, such as a stale variant's base; the present one when None.

    Raises:
        WorkspaceError: nothing was pulled, the copy was edited or is incomplete, or the earlier one is not kept.
    """
    folder = root / checked_name(target.name, "target")
    home = folder / BASELINES / short(digest) if digest is not None else _current_home(folder)
    if home is None or not home.is_dir():
        what = f"baseline {short(digest)}" if digest is not None else "baseline"
        raise WorkspaceError(
            f"target {target.name} has no {what} in {folder}", next_step=f"run `orch pull {target.name}`"
        )
    with as_workspace_error(f"the baseline of {target.name} cannot be read"):
        return _read_home(home, f"run `orch pull {target.name}`")


def _previous(folder: Path) -> Snapshot | None:
    home = _current_home(folder)
    try:
        return _read_home(home, "") if home is not None else None
    except (WorkspaceError, OSError):
        return None  # edited or damaged: write_baseline says where it went


def _current_home(folder: Path) -> Path | None:
    link = folder / BASELINE
    return folder / BASELINES / link.readlink().parent.name if link.is_symlink() else None


def _read_home(home: Path, next_step: str) -> Snapshot:
    record = read_record(home / BASELINE_RECORD, next_step)
    try:
        digests = {str(entry["name"]): str(entry["digest"]) for entry in record["files"]}
        files = tuple(read_file(home / "files", name) for name in digests)
        states = tuple(_file_state(state) for state in record["states"])
        snapshot = Snapshot(record["target"], record["host"], files, states, record["pulled_at"])
    except (KeyError, TypeError, AttributeError) as exc:
        raise WorkspaceError(f"{home / BASELINE_RECORD} is damaged", next_step=next_step) from exc
    for file in files:
        if file.digest != digests[file.name]:
            raise WorkspaceError(
                f"the pristine copy {home / 'files' / file.name} was edited "
                f"(has {short(file.digest)}, pulled {short(digests[file.name])})",
                next_step=next_step,
            )
    return snapshot


def _file_state(record: Mapping[str, Any]) -> FileState:
    lease = record["lease"]
    return FileState(**{**record, "lease": Lease(**lease) if lease is not None else None})


def _put_aside_damaged(home: Path, digest: str) -> Path | None:
    if not home.exists():
        return None
    with contextlib.suppress(WorkspaceError, OSError):
        if _read_home(home, "").digest == digest:
            return None
    aside = free_name(home.with_name(f"{home.name}.edited-{utc_stamp()}"))
    home.rename(aside)
    return aside


def _write_baseline_folder(folder: Path, snapshot: Snapshot) -> None:
    for file in snapshot.files:
        write_file(folder / "files", file, mode=READ_ONLY)
    (folder / BASELINE_RECORD).write_text(_baseline_record(snapshot), encoding="utf-8")


def _baseline_record(snapshot: Snapshot) -> str:
    files = [{"name": f.name, "digest": f.digest, "size_bytes": len(f.content)} for f in snapshot.files]
    record = {
        "target": snapshot.target,
        "host": snapshot.host,
        "digest": snapshot.digest,
        "pulled_at": snapshot.pulled_at,
        "files": files,
        "states": [asdict(state) for state in snapshot.states],
    }
    return json.dumps(record, indent=2) + "\n"


def _point_to(link: Path, files: Path) -> None:
    if link.exists() and not link.is_symlink():
        raise WorkspaceError(f"{link} is not orch's own link", next_step=f"move it away: mv {link} {link}.mine")
    temporary = link.with_name(f".{BASELINE}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(files.relative_to(link.parent))
    temporary.replace(link)
