"""What Triton compiled for a kernel, read from its cache on disk: no Triton is needed for that.

The cache is looked for where the engine's processes really have it, inside their mount namespace: the variable of
the running process counts, not what it was meant to be.

A compiled form is a folder with ``NAME.json``, which Triton writes last, and beside it the binary and the Triton IR
that it was made from. A folder without that json belongs to another kernel or is being written.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import autotune_log, engine_state, process_table

VARIABLE = "TRITON_CACHE_DIR"
BINARIES = (".cubin", ".hsaco")
_ARCHITECTURE_PREFIX = {"cuda": "sm_", "hip": ""}


class Form(NamedTuple):
    """One compiled form: the name of its folder, its files without their suffixes, what its json says, and its age."""

    key: str
    stem: str
    metadata: Dict[str, Any]
    n_metadata_bytes: int
    written_s: float


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the folder that was read, one entry for each compiled form of ``request["kernel"]``, and the newest IR.

    Of IR and metadata no more than ``max_forms`` and ``max_bytes`` are answered; ``n_left_out`` counts the rest. Of no
    kernel (None) there are no forms. ``winners`` are of all kernels, see ``autotune_log``.
    """
    record = engine_state.read_record(request["state_dir"])
    alive = engine_state.members(request["state_dir"], record, process_table.processes()) if record else []
    root, folder = _locate([one.pid for one in alive], request["cache_dir"])
    kernel = request["kernel"]
    found_forms = _forms(root + folder, kernel) if kernel else ()
    forms = sorted(found_forms, key=lambda form: (-form.written_s, form.key))
    entries = [_entry(form, kernel) for form in forms]
    found = {(one["digest"], json.dumps(one, sort_keys=True)): one for one in entries}
    return {
        "cache_dir": folder,
        "kernels": [found[key] for key in sorted(found, key=str)],
        "winners": autotune_log.winners(record["log_path"]) if record and record.get("log_path") else None,
        **_with_text(forms, request["max_forms"], request["max_bytes"]),
    }


def _locate(pids: List[int], configured: str) -> Tuple[str, str]:
    """Root and folder of the cache of the first process that names one; else the configured folder."""
    for pid in pids:
        folder = (process_table.environment_of(pid) or {}).get(VARIABLE)
        if folder:
            return "%s/%d/root" % (process_table.PROC, pid), os.path.abspath(folder)
    return "", configured


def _forms(folder: str, kernel: str) -> Iterator[Form]:
    """Each compiled form that is there whole."""
    if not os.path.isdir(folder):
        return
    for key in os.listdir(folder):
        stem = os.path.join(folder, key, kernel)
        try:
            with open(stem + ".json", "rb") as file:
                content = file.read()
                written_s = os.fstat(file.fileno()).st_mtime
            metadata = json.loads(content.decode("utf-8"))
        except (OSError, ValueError):
            continue  # another kernel's, or one that is being written
        if isinstance(metadata, dict):
            yield Form(key, stem, metadata, len(content), written_s)


def _entry(form: Form, kernel: str) -> Dict[str, Any]:
    """What of the metadata says which form this is, and its binary."""
    return {
        "name": form.metadata.get("name", kernel),
        "num_warps": form.metadata.get("num_warps"),
        "num_stages": form.metadata.get("num_stages"),
        "shared_bytes": form.metadata.get("shared"),
        "target": _target(form.metadata.get("target")),
        "digest": _binary_digest(form.stem),
    }


def _with_text(forms: Sequence[Form], max_forms: int, max_bytes: int) -> Dict[str, Any]:
    """Triton IR and metadata of the first forms that fit; equal IR is answered, and counted, once."""
    texts: Dict[str, str] = {}
    chosen: List[Dict[str, Any]] = []
    n_bytes = n_left_out = 0
    for form in forms:
        if len(chosen) == max_forms:
            n_left_out += os.path.isfile(form.stem + ".ttir")
            continue
        content = _triton_ir(form.stem)
        if content is None:
            continue
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        n_more_bytes = form.n_metadata_bytes + (0 if digest in texts else len(content))
        if n_bytes + n_more_bytes > max_bytes:
            n_left_out += 1
            continue
        n_bytes += n_more_bytes
        texts[digest] = content.decode("utf-8")
        chosen.append({"cache_key": form.key, "ttir_digest": digest, "metadata": form.metadata})
    return {"forms": chosen, "texts": texts, "n_left_out": n_left_out}


def _triton_ir(stem: str) -> Optional[bytes]:
    """The IR that the form was compiled from; None where it is not there, or is no text."""
    try:
        with open(stem + ".ttir", "rb") as file:
            content = file.read()
        content.decode("utf-8")
    except (OSError, ValueError):
        return None
    return content


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
