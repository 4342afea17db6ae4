"""Bytes by digest, and which of them are a target's baseline and variants.

Content is kept once, whoever refers to it; nothing is ever deleted.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from orchestrator.errors import StoreError, UnknownNameError
from orchestrator.records import Snapshot, SourceFile, Variant, digest_of, short
from orchestrator.store.database import Database
from orchestrator.store.encoding import (
    changes_from_json,
    names_from_json,
    names_to_json,
    records_to_json,
    states_from_json,
    storable_text,
    texts_from_json,
    to_json,
)

_PREFIX = re.compile(r"(?:sha256:)?([0-9a-f]{4,64})")


class Files(Database):
    """Artifacts, manifests, baselines and variants."""

    def artifact_content(self, digest: str) -> bytes:
        """The exact bytes of a file by its digest, or by a beginning of it that is unique.

        Args:
            digest: with or without ``sha256:``; at least four hex digits.

        Raises:
            UnknownNameError: no file has it, or several do.
            StoreError: what is stored no longer has this digest.
        """
        full, content = self._artifact(digest)
        if digest_of(content) != full:
            raise StoreError(f"{self.path} is damaged: the content stored for {full} has another digest")
        return content

    def files(self, digest: str) -> tuple[SourceFile, ...]:
        """The named files of a baseline, a variant or any recorded set of several files; empty for an unknown digest.

        One digest is one content, so it does not matter of which target.
        """
        row = self._row(
            "SELECT files FROM (SELECT files, digest, created_at AS at FROM variants"
            " UNION ALL SELECT files, digest, pulled_at FROM baselines) WHERE digest = ? ORDER BY at DESC LIMIT 1",
            (digest,),
        )
        if row is not None:
            return self._sources(row[0])
        rows = self._rows(
            "SELECT name, file_digest, content FROM manifests JOIN artifacts ON artifacts.digest = file_digest"
            " WHERE manifests.digest = ? ORDER BY name",
            (digest,),
        )
        return tuple(SourceFile(*row) for row in rows)

    def set_baseline(self, snapshot: Snapshot) -> str | None:
        """Makes a snapshot the target's baseline; the earlier ones stay as history.

        Returns:
            The digest of the baseline before, equal to the new one when it did not move; None for the first.
        """
        with self._transaction() as connection:
            insert_files(connection, snapshot.digest, snapshot.files)
            previous = connection.execute(
                "SELECT digest FROM baselines WHERE target = ? ORDER BY id DESC LIMIT 1", (snapshot.target,)
            ).fetchone()
            connection.execute(
                "INSERT INTO baselines (target, host, digest, pulled_at, files, states) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    snapshot.target,
                    snapshot.host,
                    snapshot.digest,
                    snapshot.pulled_at,
                    names_to_json(snapshot.files),
                    records_to_json(snapshot.states),
                ),
            )
        return None if previous is None else str(previous[0])

    def baseline(self, target: str) -> Snapshot | None:
        """The newest baseline with its content, as it was pulled; None when the target was never pulled."""
        row = self._row(
            "SELECT host, pulled_at, files, states FROM baselines WHERE target = ? ORDER BY id DESC LIMIT 1", (target,)
        )
        if row is None:
            return None
        host, pulled_at, files, states = row
        return Snapshot(target, host, self._sources(files), states_from_json(states), pulled_at)

    def record_variant(self, variant: Variant) -> int:
        """Keeps a variant; one that was edited since becomes a new row, an unchanged one does not.

        Returns:
            The id of its row.
        """
        row = (
            variant.target,
            variant.name,
            variant.digest,
            variant.base_digest,
            storable_text(variant.message),
            int(variant.is_isolated),
            names_to_json(variant.files),
            records_to_json(variant.changes),
            to_json(variant.edited_functions),
        )
        with self._transaction() as connection:
            newest = connection.execute(
                "SELECT target, name, digest, base_digest, message, is_isolated, files, changes, edited_functions, id"
                " FROM variants WHERE target = ? AND name = ? ORDER BY id DESC LIMIT 1",
                (variant.target, variant.name),
            ).fetchone()
            if newest is not None and newest[:-1] == row:
                return int(newest[-1])
            insert_files(connection, variant.digest, variant.files)
            cursor = connection.execute(
                "INSERT INTO variants (target, name, digest, base_digest, message, is_isolated, files, changes,"
                " edited_functions, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, variant.created_at),
            )
            return int(cursor.lastrowid or 0)

    def variant(self, target: str, name: str) -> Variant | None:
        """The newest recorded variant of this name with its content; None when there is none."""
        row = self._row(
            "SELECT files, base_digest, message, changes, edited_functions, created_at FROM variants"
            " WHERE target = ? AND name = ? ORDER BY id DESC LIMIT 1",
            (target, name),
        )
        if row is None:
            return None
        files, base_digest, message, changes, functions, created_at = row
        return Variant(
            target,
            name,
            self._sources(files),
            base_digest,
            message,
            changes_from_json(changes),
            texts_from_json(functions),
            created_at,
        )

    def variant_digests(self, target: str, name: str) -> tuple[str, ...]:
        """Every digest that a variant of this name ever had, each once, newest first."""
        rows = self._rows(
            "SELECT digest FROM variants WHERE target = ? AND name = ? GROUP BY digest ORDER BY max(id) DESC",
            (target, name),
        )
        return tuple(digest for (digest,) in rows)

    def variant_names(self, target: str) -> dict[str, str]:
        """The name of every digest that was ever recorded as a variant of the target; of several names the newest."""
        return dict(self._rows("SELECT digest, name FROM variants WHERE target = ? ORDER BY id", (target,)))

    def _sources(self, names: str) -> tuple[SourceFile, ...]:
        return tuple(SourceFile(name, digest, self.artifact_content(digest)) for name, digest in names_from_json(names))

    def _artifact(self, prefix: str) -> tuple[str, bytes]:
        matched = _PREFIX.fullmatch(prefix)
        if matched is None:
            raise UnknownNameError(f"{prefix!r} is no digest", next_step="give at least its first four hex digits")
        start = f"sha256:{matched[1]}"
        rows = self._rows(
            "SELECT digest, content FROM artifacts WHERE digest >= ? AND digest < ? || 'g' ORDER BY digest LIMIT 5",
            (start, start),
        )
        if not rows:
            raise UnknownNameError(f"no file with digest {prefix} is in {self.path}")
        if len(rows) > 1:
            raise UnknownNameError(
                f"{len(rows)} or more files have a digest that begins with {prefix}",
                next_step="give more digits: " + ", ".join(short(digest) for digest, _ in rows),
            )
        digest, content = rows[0]
        return digest, content


def insert_files(connection: sqlite3.Connection, digest: str, files: Sequence[SourceFile]) -> None:
    """Keeps the content of a set of files, and its manifest when there are several."""
    for file in files:
        if digest_of(file.content) != file.digest:
            raise StoreError(f"{file.name}: its content does not have the digest {file.digest}; nothing was kept")
    connection.executemany(
        "INSERT INTO artifacts (digest, size_bytes, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        [(file.digest, len(file.content), file.content) for file in files],
    )
    if len(files) > 1:
        connection.executemany(
            "INSERT INTO manifests (digest, name, file_digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            [(digest, file.name, file.digest) for file in files],
        )
