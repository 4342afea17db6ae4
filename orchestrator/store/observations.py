"""Every look at a target's files on their host, expected or not.

What is unexpected is decided here, once, when the look is recorded: the caller says what should have been there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.records import FileState, Snapshot, Target
from orchestrator.store.database import Database, utc_now
from orchestrator.store.files import insert_files

LookSource = Literal["pull", "push", "bench-before", "bench-after", "status", "revert", "drift"]
"""Which act looked."""


class Observations(Database):
    """Looks at the host."""

    def record_snapshot(
        self, snapshot: Snapshot, source: LookSource = "pull", expected: Mapping[str, str] | None = None
    ) -> int:
        """Keeps the content of a snapshot and the look at each of its files. Sets no baseline.

        Args:
            expected: the digest that should have been there, by name or path of the file.

        Returns:
            How many files were unexpected.
        """
        names = [file.name for file in snapshot.files]
        with self._transaction() as connection:
            insert_files(connection, snapshot.digest, snapshot.files)
            return _insert_looks(
                connection, snapshot.host, snapshot.target, names, snapshot.states, source, expected, snapshot.pulled_at
            )

    def record_states(
        self,
        host: str,
        target: Target,
        states: Sequence[FileState],
        source: LookSource,
        expected: Mapping[str, str] | None = None,
        *,
        at: str | None = None,
    ) -> int:
        """Keeps one look at the files of a target.

        Args:
            states: of some or all files of the target.
            expected: the digest that should have been there, by name or path; a file that it leaves out is neither
                expected nor unexpected.
            at: ISO 8601 UTC; now when not given.

        Returns:
            How many files were unexpected.
        """
        names_by_path = {file.path: file.name for file in target.files}
        names = [names_by_path.get(state.path, state.path) for state in states]
        with self._transaction() as connection:
            return _insert_looks(connection, host, target.name, names, states, source, expected, at or utc_now())


def _insert_looks(
    connection: sqlite3.Connection,
    host: str,
    target: str,
    names: Sequence[str],
    states: Sequence[FileState],
    source: LookSource,
    expected: Mapping[str, str] | None,
    at: str,
) -> int:
    rows = [
        _look_row(host, target, name, state, source, _expected_of(expected or {}, name, state.path), at)
        for name, state in zip(names, states, strict=True)
    ]
    marks = ", ".join(f":{column}" for column in _LOOK_COLUMNS)
    connection.executemany(f"INSERT INTO observations ({', '.join(_LOOK_COLUMNS)}) VALUES ({marks})", rows)
    return sum(row["is_unexpected"] == 1 for row in rows)


def _expected_of(expected: Mapping[str, str], name: str, path: str) -> str | None:
    return expected.get(path, expected.get(name))


_LOOK_COLUMNS = (
    *("at", "host", "target", "file", "path", "real_path", "source", "digest", "expected_digest", "is_unexpected"),
    *("phase", "base_digest", "pushed_digest", "size_bytes", "mode", "owner", "inode", "n_links", "mtime_s", "ctime_s"),
    *("lease_holder", "lease_expires_at"),
)


def _look_row(
    host: str, target: str, name: str, state: FileState, source: LookSource, expected_digest: str | None, at: str
) -> dict[str, object]:
    return {
        "at": at,
        "host": host,
        "target": target,
        "file": name,
        "path": state.path,
        "real_path": state.real_path,
        "source": source,
        "digest": state.digest,
        "expected_digest": expected_digest,
        "is_unexpected": None if expected_digest is None else int(state.digest != expected_digest),
        "phase": state.phase,
        "base_digest": state.base_digest,
        "pushed_digest": state.pushed_digest,
        "size_bytes": state.size_bytes,
        "mode": state.mode,
        "owner": state.owner,
        "inode": None if state.inode is None else str(state.inode),
        "n_links": state.n_links,
        "mtime_s": state.mtime_s,
        "ctime_s": state.ctime_s,
        "lease_holder": state.lease.holder if state.lease else None,
        "lease_expires_at": state.lease.expires_at if state.lease else None,
    }
