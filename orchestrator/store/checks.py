"""Verdicts of ``orch check``: the whole document, and of the offline ones each config in columns.

A check is never changed: a later one of the same bytes is a further row, and the newest counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.store.database import Database, insert_row
from orchestrator.store.encoding import storable_text, to_json
from orchestrator.verdicts import ConfigReport, KernelConfig, RemoteVerdict, Verdict

CheckKind = Literal["offline", "remote"]


@dataclass(frozen=True, slots=True)
class RecordedCheck:
    """One check as it was recorded.

    Attributes:
        status: of the verdict; of a remote one ``passed``, ``failed`` or ``not-checked``.
        host: None for an offline one.
        document: the JSON document that was printed.
    """

    id: int
    target: str
    variant: str
    digest: str
    base_digest: str | None
    kind: CheckKind
    status: str
    host: str | None
    triton_version: str | None
    checked_at: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KnownBinary:
    """What one config of a variant compiled to, by its newest check.

    Attributes:
        variant: name under which it was checked last. arch: as Triton counts it: 90, 120.
    """

    variant: str
    digest: str
    arch: int
    triton_version: str
    config: KernelConfig
    binary_digest: str

    @property
    def launch_key(self) -> tuple[object, ...]:
        """Equal to ``ConfigReport.launch_key`` of a launch that cannot differ from this one."""
        constants = tuple(sorted((name, repr(value)) for name, value in self.config.constants.items()))
        return self.arch, self.binary_digest, self.config.num_warps, self.config.num_ctas, constants


class Checks(Database):
    """Verdicts, offline and on the host."""

    def record_check(self, verdict: Verdict, document: Mapping[str, Any]) -> int:
        """Keeps an offline verdict.

        Args:
            document: what is printed of it as JSON.

        Returns:
            The check's id.

        Raises:
            StoreError: a number is not finite, or two configs of one architecture have one index.
        """
        row = {
            "target": verdict.target,
            "variant": verdict.variant,
            "digest": verdict.digest,
            "base_digest": verdict.base_digest,
            "kind": "offline",
            "status": verdict.status,
            "kernel": verdict.kernel,
            "source": verdict.source,
            "triton_version": verdict.triton_version,
            "checked_at": verdict.checked_at,
            "verdict": to_json(document),
        }
        configs = [_config_row(report) for report in verdict.configs]
        with self._transaction() as connection:
            check_id = insert_row(connection, "checks", row)
            for config in configs:
                insert_row(connection, "check_configs", {"check_id": check_id, **config})
        return check_id

    def record_remote_check(self, verdict: RemoteVerdict, document: Mapping[str, Any]) -> int:
        """Keeps what a variant did on its host.

        Args:
            document: what is printed of it as JSON.

        Returns:
            The check's id.

        Raises:
            StoreError: a number is not finite.
        """
        row = {
            "target": verdict.target,
            "variant": verdict.variant,
            "digest": verdict.digest,
            "kind": "remote",
            "status": _remote_status(verdict),
            "host": verdict.host,
            "checked_at": verdict.checked_at,
            "verdict": to_json(document),
        }
        with self._transaction() as connection:
            return insert_row(connection, "checks", row)

    def latest_check(self, target: str, digest: str, *, kind: CheckKind = "offline") -> RecordedCheck | None:
        """The newest check of these bytes, whatever their variant was called; None when there is none."""
        row = self._row(
            "SELECT id, target, variant, digest, base_digest, kind, status, host, triton_version, checked_at, verdict"
            " FROM checks WHERE target = ? AND digest = ? AND kind = ? ORDER BY id DESC LIMIT 1",
            (target, digest, kind),
        )
        return None if row is None else replace(RecordedCheck(*row), document=json.loads(row[-1]))

    def known_binaries(self, target: str, base_digest: str, triton_version: str) -> list[KnownBinary]:
        """What the variants of a baseline, and the baseline where it was checked itself, compile to.

        Of each set of bytes and architecture the newest check that compiled it with this Triton counts, whole.

        Returns:
            In the order of the checks and of their configs; configs without a binary are left out.
        """
        return [_known_binary(*row) for row in self._rows(_KNOWN_BINARIES, (target, base_digest, triton_version))]


_KNOWN_BINARIES = """
    WITH compiled AS (
        SELECT *, max(check_id) OVER (PARTITION BY digest, arch) AS newest_id
        FROM checks JOIN check_configs ON check_id = id
        WHERE target = ?1 AND base_digest = ?2 AND triton_version = ?3
    )
    SELECT variant, digest, arch, triton_version, binary_digest, constants, num_warps, num_stages, num_ctas, maxnreg
    FROM compiled WHERE check_id = newest_id AND binary_digest IS NOT NULL ORDER BY check_id, arch, i
"""


def _known_binary(*columns: Any) -> KnownBinary:
    variant, digest, arch, triton_version, binary_digest, constants, num_warps, num_stages, num_ctas, maxnreg = columns
    config = KernelConfig(
        constants=json.loads(constants),
        num_warps=num_warps,
        num_stages=num_stages,
        num_ctas=num_ctas,
        maxnreg=maxnreg,
    )
    return KnownBinary(variant, digest, arch, triton_version, config, binary_digest)


def _remote_status(verdict: RemoteVerdict) -> str:
    """A kernel that nobody tried is not a wrong one."""
    if verdict.passed:
        return "passed"
    return "failed" if any(finding.passed is False for finding in verdict.findings) else "not-checked"


def _config_row(report: ConfigReport) -> dict[str, object]:
    config, compiled, occupancy = report.config, report.compiled, report.occupancy
    is_compiled = compiled.error is None
    return {
        "i": report.index,
        "arch": report.arch,
        "constants": to_json(dict(config.constants)),
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "num_ctas": config.num_ctas,
        "maxnreg": config.maxnreg,
        "can_launch": report.can_launch,
        "shared_bytes": compiled.shared_bytes,
        "shared_limit_bytes": occupancy.shared_limit_bytes if occupancy else None,
        "n_registers": compiled.n_registers,
        "stack_bytes": compiled.stack_bytes,
        "spill_bytes": compiled.spill_bytes,
        "blocks_per_sm": occupancy.blocks_per_sm if occupancy else None,
        "warps_per_sm": occupancy.warps_per_sm if occupancy else None,
        "limited_by": to_json(occupancy.limiters) if occupancy else None,
        "tensor_cores": to_json(compiled.tensor_cores) if is_compiled else None,
        "n_kv_buffers": compiled.n_kv_buffers,
        "binary_digest": compiled.binary_digest,
        "compile_s": compiled.compile_s,
        "error": storable_text(compiled.error),
    }
