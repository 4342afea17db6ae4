"""Answers of the compile program, kept under what they depend on, so that nothing is compiled twice.

A key is a digest of the source, the config, the architecture, the Triton version and the program itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.verdicts import KernelSource

Answer = dict[str, Any]


class AnswerCache:
    """Answers by what they depend on: one JSON file each. Damaged or foreign files count as not there."""

    def __init__(self, folder: Path, program_folder: Path) -> None:
        self._folder, self._program_folder = folder, program_folder
        self._program_digest: str | None = None

    def get(self, key: str, request: Answer) -> Answer | None:
        """An answer; None when it is not there, or lacks a num_stages that is asked for now."""
        try:
            kept = json.loads(self._path(key).read_text(encoding="utf-8"))
            answer, also_stages = kept["answer"], kept["also_stages"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        wanted = request.get("also_stages") or []
        if wanted and wanted != also_stages[: len(wanted)]:
            return None
        return dict(answer)

    def put(self, key: str, request: Answer, answer: Answer) -> None:
        """Keeps an answer; a full or read-only disk only means that it will be computed again."""
        path = self._path(key)
        content = json.dumps({"answer": answer, "also_stages": request.get("also_stages") or []})
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
            Path(name).replace(path)

    def key(self, request: Answer, version: str) -> str:
        """What an answer to the request depends on, as 64 hex digits; not which further stages are asked for."""
        source: KernelSource = request["source"]
        told = {name: value for name, value in request.items() if name not in ("source", "also_stages")}
        parts = [self._program(), version, source.kind, source.kernel, source.digest, told]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def _program(self) -> str:
        """Digest of the compile program: a newer one may say more."""
        if self._program_digest is None:
            digest = hashlib.sha256()
            for path in sorted(self._program_folder.glob("*.py")):
                digest.update(path.read_bytes())
            self._program_digest = digest.hexdigest()
        return self._program_digest
