"""Files and folders that appear whole or not at all, and their names. Knows nothing of baselines or variants."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.errors import UsageError, WorkspaceError
from orchestrator.records import SourceFile

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def checked_name(name: str, noun: str) -> str:
    """The name, when it is safe as a folder's name.

    Raises:
        UsageError: it is empty, or holds something else than letters, digits, '.', '_' and '-'.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot name a {noun}",
            next_step="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def fill(place: Path, write: Callable[[Path], None]) -> None:
    """Makes a folder whole: filled under a temporary name, then renamed to its place."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        temporary.chmod(0o755)
        write(temporary)
        temporary.rename(place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_file(folder: Path, file: SourceFile, *, mode: int) -> None:
    """Writes one file of a target below a folder that is not in its place yet."""
    path = _inside(folder, file.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content)
    path.chmod(mode)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a text file: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_file(folder: Path, name: str) -> SourceFile:
    """One file of a target, with the digest of what is there now."""
    return SourceFile.of(name, _inside(folder, name).read_bytes())


def _inside(folder: Path, name: str) -> Path:
    """The path of a target's file; a name from a damaged record may not lead out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise WorkspaceError(f"{name!r} cannot be a file inside {folder}")
    return folder.joinpath(*parts)


def read_record(path: Path, next_step: str) -> dict[str, Any]:
    """A JSON record of orch's own.

    Raises:
        WorkspaceError: missing, or not a JSON object.
    """
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError as exc:
        raise WorkspaceError(f"{path} is missing", next_step=next_step) from exc
    except ValueError as exc:
        raise WorkspaceError(f"{path} is damaged ({exc})", next_step=next_step) from exc
    if not isinstance(record, dict):
        raise WorkspaceError(f"{path} is damaged", next_step=next_step)
    return record


@contextlib.contextmanager
def as_workspace_error(doing: str) -> Iterator[None]:
    """Turns what the file system says into a ``WorkspaceError`` that begins with ``doing``."""
    try:
        yield
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        raise WorkspaceError(f"{doing}: {exc.strerror or exc}{where}") from exc


def free_name(path: Path) -> Path:
    """The path, or with ``-2``, ``-3`` … behind it when something is there."""
    n = 1
    free = path
    while free.exists():
        n += 1
        free = path.with_name(f"{path.name}-{n}")
    return free


def utc_now() -> str:
    """ISO 8601, whole seconds, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def utc_stamp() -> str:
    """The time as part of a folder's name."""
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
