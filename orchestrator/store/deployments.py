"""Pushes: the intent before, the outcome after, and what a killed controller left open.

A deployment is *open* until the host is known to hold other bytes again. ``intent`` and ``unknown`` mean that only
the host can say whether the bytes arrived; ``pushed`` that they did.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import StoreError
from orchestrator.records import Deployment
from orchestrator.store.database import Database, insert_row, utc_now
from orchestrator.store.encoding import storable_text

DeploymentStatus = Literal["intent", "pushed", "unknown", "failed", "reverted", "replaced"]
"""``failed``: nothing was written. ``replaced``: a later push put other bytes over it."""

_CLOSING = ("failed", "reverted", "replaced")


@dataclass(frozen=True, slots=True)
class OpenDeployment:
    """A deployment whose end is not recorded."""

    id: int
    host: str
    target: str
    variant: str
    digest: str
    previous_digest: str
    status: DeploymentStatus
    nonce: str
    holder: str
    mtime_s: int | None
    started_at: str


class Deployments(Database):
    """Intents and outcomes."""

    def begin_deployment(
        self,
        *,
        host: str,
        target: str,
        variant: str,
        digest: str,
        previous_digest: str,
        nonce: str,
        holder: str,
        started_at: str | None = None,
        check_id: int | None = None,
        is_forced: bool = False,
    ) -> int:
        """Writes the intent; on disk when this returns, so do it before the first byte goes to the host.

        Args:
            variant: its name, or ``baseline``. digest, previous_digest: of the whole set.
            nonce, holder: of the lease.
            check_id: the offline check of these bytes that went before; None when there was none.
            is_forced: it was pushed although that check refused it.

        Returns:
            The deployment's id.

        Raises:
            StoreError: there is no such check.
        """
        written = {
            "host": host,
            "target": target,
            "variant": variant,
            "digest": digest,
            "previous_digest": previous_digest,
            "status": "intent",
            "nonce": nonce,
            "holder": storable_text(holder),
            "started_at": started_at or utc_now(),
            "check_id": check_id,
            "is_forced": int(is_forced),
        }
        with self._transaction() as connection:
            return insert_row(connection, "deployments", written)

    def end_deployment(
        self,
        deployment_id: int,
        status: DeploymentStatus,
        *,
        deployment: Deployment | None = None,
        error: str | None = None,
        at: str | None = None,
    ) -> None:
        """Writes the outcome. ``pushed`` and ``unknown`` stay open; ``pushed`` closes earlier ones of the target.

        Args:
            deployment: what the host acknowledged; None when its controller was gone before the answer came.
            error: why it failed or is unknown, or how the outcome is known. at: ISO 8601 UTC; now when not given.

        Raises:
            StoreError: there is no such deployment, or the host acknowledged another digest.
        """
        at = at or utc_now()
        with self._transaction() as connection:
            host, target, digest = _identity(connection, deployment_id)
            if deployment is not None:
                _record_acknowledgement(connection, deployment_id, digest, deployment)
            if status == "pushed":
                connection.execute(
                    "UPDATE deployments SET status = 'replaced', ended_at = ?"
                    " WHERE host = ? AND target = ? AND ended_at IS NULL AND id < ?",
                    (at, host, target, deployment_id),
                )
            connection.execute(
                "UPDATE deployments SET status = ?, error = ?, ended_at = ? WHERE id = ?",
                (status, storable_text(error), at if status in _CLOSING else None, deployment_id),
            )

    def open_deployments(self, target: str | None = None) -> list[OpenDeployment]:
        """What is (or may be) on the hosts now, oldest first; of every target when none is named."""
        rows = self._rows(
            "SELECT id, host, target, variant, digest, previous_digest, status, nonce, holder, mtime_s, started_at"
            " FROM deployments WHERE ended_at IS NULL AND (?1 IS NULL OR target = ?1) ORDER BY id",
            (target,),
        )
        return [OpenDeployment(*row) for row in rows]

    def last_nonce(self, target: str) -> str | None:
        """The lease of the newest deployment of a target; None when there was none."""
        row = self._row("SELECT nonce FROM deployments WHERE target = ? ORDER BY id DESC LIMIT 1", (target,))
        return None if row is None else str(row[0])

    def is_own_nonce(self, nonce: str) -> bool:
        """Whether a lease was taken for a deployment of this record, ended or not."""
        return self._row("SELECT 1 FROM deployments WHERE nonce = ? LIMIT 1", (nonce,)) is not None

    def own_nonces(self, target: str) -> frozenset[str]:
        """Every lease that was ever taken for a deployment of a target by this record."""
        rows = self._rows("SELECT DISTINCT nonce FROM deployments WHERE target = ?", (target,))
        return frozenset(str(row[0]) for row in rows)

    def highest_mtime_s(self, host: str, real_path: str) -> int | None:
        """The latest modification time that the file was ever seen with or given; None when it was never seen.

        A push must give a later one: Python's cached bytecode is told apart only by whole seconds and size.
        """
        row = self._row(
            "SELECT max(mtime_s) FROM ("
            " SELECT max(mtime_s) AS mtime_s FROM observations WHERE host = ?1 AND real_path = ?2 UNION ALL"
            " SELECT max(f.mtime_s) FROM deployment_files AS f JOIN deployments AS d ON d.id = f.deployment_id"
            " WHERE f.real_path = ?2 AND d.host = ?1)",
            (host, real_path),
        )
        return None if row is None or row[0] is None else int(row[0])


def _identity(connection: sqlite3.Connection, deployment_id: int) -> tuple[str, str, str]:
    row = connection.execute("SELECT host, target, digest FROM deployments WHERE id = ?", (deployment_id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no deployment {deployment_id} in the record")
    host, target, digest = row
    return host, target, digest


def _record_acknowledgement(
    connection: sqlite3.Connection, deployment_id: int, intended: str, deployment: Deployment
) -> None:
    if deployment.digest != intended:
        raise StoreError(
            f"deployment {deployment_id}: the host acknowledged {deployment.digest}, the intent was {intended}"
        )
    connection.executemany(
        "INSERT INTO deployment_files (deployment_id, path, real_path, digest, previous_digest, mtime_s,"
        " was_already_there) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (deployment_id, f.path, f.real_path, f.digest, f.previous_digest, f.mtime_s, int(f.was_already_there))
            for f in deployment.files
        ],
    )
    connection.execute(
        "UPDATE deployments SET pushed_at = ?, mtime_s = ? WHERE id = ?",
        (deployment.pushed_at, max((f.mtime_s for f in deployment.files), default=None), deployment_id),
    )
