"""An accepted inventory kept as JSON, so that reading it again costs a hash and no imports.

Kept in ``.orch/`` beside inventory.yaml, and only in a project in use (one with ``variants/``): reading some inventory
leaves no trace. The key covers everything that the result depends on, so a kept copy is never stale; a damaged one is
simply not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import records
from orchestrator.records import (
    CheckSettings,
    Engine,
    Host,
    Inventory,
    Launcher,
    SlurmSettings,
    Target,
    TargetFile,
    Workload,
)
from orchestrator.version import VERSION

FOLDER = ".orch"
FILE = "inventory.cache.json"


def read(path: Path, content: bytes) -> Inventory | None:
    """The inventory that was made from exactly these bytes by this orch in this place, or None."""
    try:
        kept = json.loads(_cache_path(path).read_bytes())
        if kept["key"] != _key(path, content):
            return None
        return _inventory(str(path), kept["inventory"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # not there or damaged: the caller reads the file itself, which is the truth


def write(path: Path, content: bytes, inventory: Inventory) -> None:
    """Keeps an accepted inventory; does nothing outside a project in use, or without the right to write there."""
    if not (path.parent / "variants").is_dir():
        return
    cache_path = _cache_path(path)
    kept = {"key": _key(path, content), "inventory": asdict(inventory)}
    temporary = cache_path.with_name(f"{cache_path.name}.{os.getpid()}.tmp")
    # only speed is lost when this fails (a read-only or full disk)
    with contextlib.suppress(OSError):
        cache_path.parent.mkdir(exist_ok=True)
        try:
            temporary.write_text(json.dumps(kept), encoding="utf-8")
            temporary.replace(cache_path)
        finally:
            temporary.unlink(missing_ok=True)


def _cache_path(path: Path) -> Path:
    return path.parent / FOLDER / FILE


def _key(path: Path, content: bytes) -> str:
    """Digest of the bytes, the place (local paths are made absolute), the home folder (``~``) and the code."""
    code = [Path(__file__).parent, Path(records.__file__)]
    files = sorted(file for place in code for file in (place.glob("*.py") if place.is_dir() else [place]))
    parts = [VERSION, str(path.absolute()), str(Path("~").expanduser())]
    parts += [f"{file.name} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\0".join(parts).encode() + b"\0" + content).hexdigest()


def _inventory(path: str, kept: dict[str, Any]) -> Inventory:
    return Inventory(
        path=path,
        hosts={name: _host(fields) for name, fields in kept["hosts"].items()},
        targets={name: _target(fields) for name, fields in kept["targets"].items()},
        engines={name: _engine(fields) for name, fields in kept["engines"].items()},
        workloads={name: Workload(**fields) for name, fields in kept["workloads"].items()},
    )


def _host(fields: dict[str, Any]) -> Host:
    kept = fields["slurm"]
    slurm = None if kept is None else SlurmSettings(**{**kept, "options": tuple(kept["options"])})
    return Host(**{**fields, "slurm": slurm})


def _engine(fields: dict[str, Any]) -> Engine:
    kept = fields["launcher"]
    launcher = Launcher(**{**kept, "restart_command": tuple(kept["restart_command"])})
    return Engine(**{**fields, "command": tuple(fields["command"]), "launcher": launcher})


def _target(fields: dict[str, Any]) -> Target:
    files = tuple(TargetFile(**file) for file in fields["files"])
    lists = {key: tuple(fields["check"][key]) for key in ("arch", "varies", "reference")}
    return Target(**{**fields, "files": files, "check": CheckSettings(**{**fields["check"], **lists})})
