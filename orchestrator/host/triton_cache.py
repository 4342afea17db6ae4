"""What Triton compiled for a kernel, read from its cache on disk: no Triton is needed for that.

The cache is looked for where the engine's processes really have it, inside their mount namespace: the variable of
the running process counts, not what it was meant to be.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import engine_state, process_table

VARIABLE = "TRITON_CACHE_DIR"
BINARIES = (".cubin", ".hsaco")
_ARCHITECTURE_PREFIX = {"cuda": "sm_", "hip": ""}


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the folder that was read, and one entry for each compiled form of ``request["kernel"]``."""
    record = engine_state.read_record(request["state_dir"])
    alive = engine_state.members(request["state_dir"], record, process_table.processes()) if record else []
    root, folder = _locate([one.pid for one in alive], request["cache_dir"])
    found = {
        (one["digest"], json.dumps(one, sort_keys=True)): one for one in _kernels(root + folder, request["kernel"])
    }
    return {"cache_dir": folder, "kernels": [found[key] for key in sorted(found, key=str)]}


def _locate(pids: List[int], configured: str) -> Tuple[str, str]:
    """Root and folder of the cache of the first process that names one; else the configured folder."""
    for pid in pids:
        folder = (process_table.environment_of(pid) or {}).get(VARIABLE)
        if folder:
            return "%s/%d/root" % (process_table.PROC, pid), os.path.abspath(folder)
    return "", configured


def _kernels(folder: str, kernel: str) -> Iterator[Dict[str, Any]]:
    """Each compiled form: the metadata that Triton wrote beside its binary."""
    if not os.path.isdir(folder):
        return
    for key in os.listdir(folder):
        path = os.path.join(folder, key, kernel + ".json")
        try:
            with open(path) as file:
                metadata = json.load(file)
        except (OSError, ValueError):
            continue  # another kernel's, or one that is being written
        yield {
            "name": metadata.get("name", kernel),
            "num_warps": metadata.get("num_warps"),
            "num_stages": metadata.get("num_stages"),
            "shared_bytes": metadata.get("shared"),
            "target": _target(metadata.get("target")),
            "digest": _binary_digest(path[: -len(".json")]),
        }


def _target(target: Any) -> Optional[str]:
    """``cuda sm_120`` from the metadata's target."""
    if not isinstance(target, dict):
        return None
    backend = target.get("backend")
    return "%s %s%s" % (backend, _ARCHITECTURE_PREFIX.get(str(backend), ""), target.get("arch"))


def _binary_digest(stem: str) -> Optional[str]:
    """Digest of the compiled binary: equal ones are the same machine code. None when there is none."""
    for suffix in BINARIES:
        if os.path.isfile(stem + suffix):
            with open(stem + suffix, "rb") as file:
                return "sha256:" + hashlib.sha256(file.read()).hexdigest()
    return None
