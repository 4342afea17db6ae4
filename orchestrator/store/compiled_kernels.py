"""What Triton compiled for an engine, as its cache on the host held it: one row a form and start, its IR kept once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from orchestrator.errors import StoreError
from orchestrator.records import digest_of
from orchestrator.store.database import Database, insert_row, utc_now
from orchestrator.store.encoding import to_json
from orchestrator.verdicts import CachedKernel


class CompiledKernels(Database):
    """Compiled forms of the targets' kernels."""

    def record_compiled_kernels(self, trial_id: int, kernels: Sequence[CachedKernel]) -> None:
        """Keeps the forms that a start's Triton cache held; the same form of another start is a row of its own.

        Args:
            kernels: newest first.

        Raises:
            StoreError: there is no such trial, or two of the forms have one key.
        """
        recorded_at = utc_now()
        with self._transaction() as connection:
            row = connection.execute("SELECT target, host FROM trials WHERE id = ?", (trial_id,)).fetchone()
            if row is None:
                raise StoreError(f"there is no trial {trial_id} in the record")
            start = {"trial_id": trial_id, "target": row[0], "host": row[1], "recorded_at": recorded_at}
            for kernel in kernels:
                content = kernel.ttir.encode()
                connection.execute(
                    "INSERT INTO artifacts (digest, size_bytes, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (digest_of(content), len(content), content),
                )
                form = {**_columns(kernel), "ttir_digest": digest_of(content)}
                insert_row(connection, "compiled_kernels", {**start, **form})

    def cached_kernels(self, target: str, digest: str) -> tuple[CachedKernel, ...]:
        """Every form that starts of these bytes left, of the newest start first; each cache key once.

        Args:
            digest: of the target's files.
        """
        rows = self._rows(
            "SELECT cache_key, name, content, metadata, triton_version FROM compiled_kernels"
            " JOIN artifacts ON artifacts.digest = ttir_digest WHERE target = ? AND compiled_kernels.digest = ?"
            " ORDER BY trial_id DESC, id",
            (target, digest),
        )
        found: dict[str, CachedKernel] = {}
        for key, name, content, metadata, triton_version in rows:
            kernel = CachedKernel(key, name, content.decode(), json.loads(metadata), triton_version, digest)
            found.setdefault(key, kernel)
        return tuple(found.values())


def _columns(kernel: CachedKernel) -> dict[str, object]:
    return {
        "digest": kernel.digest,
        "cache_key": kernel.cache_key,
        "name": kernel.name,
        "num_warps": _count(kernel.metadata, "num_warps"),
        "num_stages": _count(kernel.metadata, "num_stages"),
        "shared_bytes": _count(kernel.metadata, "shared"),
        "architecture": _architecture(kernel.metadata.get("target")),
        "triton_version": kernel.triton_version,
        "metadata": to_json(dict(kernel.metadata)),
    }


def _count(metadata: Mapping[str, object], name: str) -> int | None:
    """A number of the metadata; None where a Triton of another version has none, or something else, by that name."""
    value = metadata.get(name)
    return value if isinstance(value, int) else None


def _architecture(target: object) -> str | None:
    """``cuda sm_120``; ``hip gfx942``, which has no number."""
    if not isinstance(target, Mapping):
        return None
    prefix = "sm_" if target.get("backend") == "cuda" else ""
    return f"{target.get('backend')} {prefix}{target.get('arch')}"
