"""One SQL statement from a person, which can read everything and change nothing.

Three walls: the file is opened read-only, ``query_only`` is on, and an authorizer refuses every act but reading, so
that neither another file can be attached nor a setting changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from orchestrator.errors import StoreError
from orchestrator.store.database import connect_read_only, translated

Value = str | int | float | bytes | None
Params = Sequence[object] | Mapping[str, object]

_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

_READING_PRAGMAS = (
    *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"),
    *("database_list", "function_list", "compile_options", "quick_check", "integrity_check"),
)

# The first use of json_each or a table of pragmas asks for this, to declare itself; SQLite itself refuses a real one.
_ALSO_ALLOWED = {
    (sqlite3.SQLITE_UPDATE, "sqlite_master"),
    *((sqlite3.SQLITE_PRAGMA, name) for name in _READING_PRAGMAS),
}

_ACTS = {
    sqlite3.SQLITE_INSERT: "insert into",
    sqlite3.SQLITE_UPDATE: "update",
    sqlite3.SQLITE_DELETE: "delete from",
    sqlite3.SQLITE_ATTACH: "attach or write another file",
    sqlite3.SQLITE_DETACH: "detach",
    sqlite3.SQLITE_PRAGMA: "set the pragma",
    sqlite3.SQLITE_TRANSACTION: "control a transaction:",
    sqlite3.SQLITE_SAVEPOINT: "control a savepoint:",
}

_STEPS_BETWEEN_LOOKS = 100_000
"""SQLite's instructions between two chances for Ctrl-C: about a millisecond."""


class _Guard:
    """The authorizer; remembers what it refused, because SQLite says only "not authorized"."""

    def __init__(self) -> None:
        self.refused: str | None = None

    def __call__(self, act: int, name: str | None, second: str | None, _database: str | None, _: str | None) -> int:
        if act in _READING or (act, name) in _ALSO_ALLOWED:
            return sqlite3.SQLITE_OK
        if self.refused is None:
            verb = _ACTS.get(act, "change the schema:" if name else "change something")
            self.refused = " ".join(part for part in (verb, name) if part)
        return sqlite3.SQLITE_DENY


def run_query(path: Path, sql: str, params: Params = ()) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
    """Names of the columns and all rows of one statement that only reads. Ctrl-C ends it.

    Raises:
        StoreError: it would change something, is no single statement, or SQLite does not understand it.
    """
    guard = _Guard()
    with closing(connect_read_only(path)) as connection:
        tables = [name for (name,) in connection.execute(_TABLES)]
        connection.set_authorizer(guard)
        connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_LOOKS)
        try:
            with translated(path):
                return _fetch(connection, sql, params)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, sqlite3.OperationalError) and str(cause) == "interrupted":
                raise KeyboardInterrupt from None  # it was raised inside the progress handler, where Python drops it
            if guard.refused:
                raise StoreError(
                    f"a query may only read; this one would {guard.refused}", next_step="nothing was changed"
                ) from cause
            raise _explained(error, tables) from cause


_TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY type DESC, name"


def _fetch(connection: sqlite3.Connection, sql: str, params: Params) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
    cursor = connection.execute(sql, params)
    if cursor.description is None:
        raise StoreError("there is no statement in the query", next_step='try `orch query "select * from results"`')
    return tuple(column[0] for column in cursor.description), cursor.fetchall()


def _explained(error: StoreError, tables: Sequence[str]) -> StoreError:
    """SQLite's complaint about the statement itself, with what there is to ask about."""
    text = str(error.__cause__ or "").rstrip(".")
    if "one statement at a time" in text:
        return StoreError("the query has more than one statement", next_step="ask one at a time")
    if isinstance(error.__cause__, (sqlite3.OperationalError, sqlite3.ProgrammingError)) and error.next_step is None:
        return StoreError(f"the query is not understood: {text}", next_step=f"there are: {', '.join(tables)}")
    return error
