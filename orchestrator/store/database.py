"""Opening results.db, its transactions, and the translation of SQLite's errors into one clear line.

Must not know what is recorded: tables belong to ``migrations`` and the modules beside this one.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import StoreError, StoreLockedError, StoreTooNewError
from orchestrator.store.migrations import APPLICATION_ID, SCHEMA_VERSION, migrate
from orchestrator.version import VERSION

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process before it gives up."""

_RETRY_S = 0.25
"""SQLite's own waiting cannot be interrupted by Ctrl-C, so it is cut into slices of this length."""

_NEEDS_LOG_INDEX = re.compile("unable to open|readonly")
"""What SQLite says when it cannot make the write-ahead log's index."""

_HEADER = b"SQLite format 3\0"

_OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables

_FIRST_STEP = "run `orch pull` first"

OpenedT = TypeVar("OpenedT", bound="Database")
ResultT = TypeVar("ResultT")


def utc_now() -> str:
    """The time now, ISO 8601 UTC with microseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


class Database:
    """One connection to results.db.

    Attributes:
        path: of the file. is_read_only: whether recording is refused.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, is_read_only: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self.path = path
        self.is_read_only = is_read_only
        self._connection = connection
        self._busy_timeout_s = busy_timeout_s

    @classmethod
    def open(
        cls: type[OpenedT], path: str | Path, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> OpenedT:
        """Opens for reading and recording; a file of an older orch is upgraded, step by step.

        Args:
            path: of results.db. create: make it when it is not there.
            busy_timeout_s: how long a write waits for another process.

        Raises:
            StoreTooNewError: a newer orch wrote it.
            StoreLockedError: another process held it for ``busy_timeout_s``.
            StoreError: missing (unless ``create``), not a database, not one of orch, or not writable.
        """
        path = _checked_path(path, must_exist=not create)
        _check_writable(path)
        with translated(path):
            connection = _connect(path, "rwc" if create else "rw")
            try:
                _set_up(path, connection, busy_timeout_s)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection, is_read_only=False, busy_timeout_s=busy_timeout_s)

    @classmethod
    def open_read_only(cls: type[OpenedT], path: str | Path) -> OpenedT:
        """Opens for reading; writes nothing, so it also works on a read-only disk.

        Raises:
            StoreTooNewError: a newer orch wrote it.
            StoreError: missing, not a database, not one of orch, or of an older schema.
        """
        path = _checked_path(path, must_exist=True)
        return cls(path, connect_read_only(path), is_read_only=True)

    def close(self) -> None:
        """Ends the connection. May be called twice."""
        self._connection.close()

    def __enter__(self: OpenedT) -> OpenedT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self._connection.execute(sql, params).fetchall()

    def _row(self, sql: str, params: Sequence[object] = ()) -> tuple[Any, ...] | None:
        rows = self._rows(sql, params)
        return rows[0] if rows else None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write, kept whole or not at all. Waits for another writer, then takes its turn."""
        if self.is_read_only:
            raise StoreError(f"{self.path} was opened for reading only, so nothing can be recorded in it")
        connection = self._connection
        with translated(self.path):
            wait_while_locked(self.path, self._busy_timeout_s, lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise


def insert_row(connection: sqlite3.Connection, table: str, values: Mapping[str, object]) -> int:
    """Inserts one row, its values by column; table and columns are names of this program, never a user's.

    Returns:
        The row's id.
    """
    marks = ", ".join(f":{column}" for column in values)
    return int(
        connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", dict(values)).lastrowid or 0
    )


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, to a database of this orch's schema.

    Raises:
        StoreTooNewError, StoreError: as ``Database.open_read_only``.
    """
    with translated(path):
        connection = _connect(path, "ro")
        try:
            try:
                version = _schema_version(path, connection)
            except sqlite3.OperationalError as error:
                if not _NEEDS_LOG_INDEX.search(str(error)) or os.access(path.parent, os.W_OK):
                    raise
                # The write-ahead log's index cannot be made in a folder that we may not write; without a log there
                # is nothing in it, and the file alone is the truth.
                connection.close()
                connection = _connect(path, "ro&immutable=1")
                version = _schema_version(path, connection)
            connection.execute("PRAGMA query_only = ON")
            if version == 0:
                raise StoreError(f"{path} is empty: nothing has been recorded in it yet", next_step=_FIRST_STEP)
            if version < SCHEMA_VERSION:
                raise StoreError(
                    f"{path} has schema {version} of an older orch, this one reads schema {SCHEMA_VERSION}",
                    next_step="run any command that records (`orch pull`, `orch status`): it upgrades the file",
                )
        except BaseException:
            connection.close()
            raise
    return connection


def wait_while_locked(path: Path, timeout_s: float, act: Callable[[], ResultT]) -> ResultT:
    """Does ``act`` again while another process holds the database.

    Raises:
        StoreLockedError: still locked after ``timeout_s``; names the processes that have the file open.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not _is_lock(error):
                raise
            if time.monotonic() >= deadline:
                raise _locked_error(path, f" for {timeout_s:g} s") from error
            time.sleep(0.005)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns what SQLite raises into the ``StoreError`` that says what to do; the cause is kept."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:  # Python 3.10 calls a second statement a warning
        raise _translation(path, error) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise StoreError(f"{path}: a value cannot be stored, nothing of this record was kept: {error}") from error


# ---- opening


def _checked_path(path: str | Path, *, must_exist: bool) -> Path:
    path = Path(path)
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a results database", next_step="give the path of a file")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}", next_step=f"make it: `mkdir -p {path.parent}`")
    if path.exists():
        _check_header(path)
    elif must_exist:
        raise StoreError(f"there is no {path}: nothing has been recorded here yet", next_step=_FIRST_STEP)
    return path


def _check_header(path: Path) -> None:
    """Refuses any file that has content and is no SQLite database; SQLite would overwrite a very short one."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_HEADER))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", next_step=f"look at `ls -l {path}`") from error
    if start not in (b"", _HEADER):
        raise StoreError(
            f"{path} is not an SQLite database; it was left as it is",
            next_step="move it away, or give the path of a results.db",
        )


def _check_writable(path: Path) -> None:
    """Refuses now, not after an hour of measuring. SQLite writes files beside the database as well."""
    for place in (path, path.parent):
        if place.exists() and not os.access(place, os.W_OK):
            raise StoreError(
                f"{path} cannot be written: {place} is read-only for this user",
                next_step=f"look at `ls -ld {place}`, or work in a folder that you may write",
            )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"this Python has SQLite {sqlite3.sqlite_version}, orch needs {'.'.join(map(str, _OLDEST_SQLITE))}",
            next_step="use a Python that was built with a newer SQLite",
        )
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_RETRY_S, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _set_up(path: Path, connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Checks whose file it is, and brings it to write-ahead logging and this schema."""
    connection.execute("PRAGMA synchronous = FULL")  # an intent must outlive a power cut: it says what to revert

    def bring_up_to_date() -> None:
        version = _schema_version(path, connection)
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            # Where the file system cannot do it (some network disks) SQLite keeps the rollback journal: slower, safe.
            connection.execute("PRAGMA journal_mode = WAL")
        if version < SCHEMA_VERSION:
            migrate(connection)

    wait_while_locked(path, busy_timeout_s, bring_up_to_date)


def _schema_version(path: Path, connection: sqlite3.Connection) -> int:
    """The schema's number; 0 for a file without any table. Refuses what is not orch's or is too new."""
    version, application_id, n_tables = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchone()
    if application_id != APPLICATION_ID and (n_tables or version):
        raise StoreError(
            f"{path} is an SQLite database, but not one of orch; it was left as it is",
            next_step="move it away, or work in another folder",
        )
    if version > SCHEMA_VERSION:
        raise StoreTooNewError(
            f"{path} has schema {version}, written by orch {_newest_writer(connection)};"
            f" this is orch {VERSION}, which knows schemas up to {SCHEMA_VERSION}",
            next_step="upgrade orch (`pip install --upgrade orch-kernels`)",
        )
    return int(version)


def _newest_writer(connection: sqlite3.Connection) -> str:
    try:
        row = connection.execute("SELECT orch_version FROM migrations ORDER BY number DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError:  # a future schema may keep it elsewhere
        row = None
    return str(row[0]) if row else "of a later version"


# ---- what SQLite's errors mean (by text: their codes are known to Python only since 3.11)

_MEANINGS: tuple[tuple[str, str, str], ...] = (
    (
        "file is not a database",
        "is not an SQLite database; it was left as it is",
        "move it away, or give the path of a results.db",
    ),
    (
        "malformed",
        "is damaged",
        "copy it and its -wal file away first, then try `sqlite3 COPY .recover | sqlite3 results.db`",
    ),
    (
        "is full",
        "could not grow: the disk is full; nothing of this record was kept, all earlier ones are intact",
        "free some space and run this again",
    ),
    (
        "readonly database",
        "cannot be written: the file, its folder or the disk is read-only",
        "look at `ls -l` of the folder and at `mount`",
    ),
    (
        "unable to open database file",
        "could not be opened: no permission, or the disk is read-only or full",
        "look at `ls -l` and `df` of its folder",
    ),
    (
        "disk I/O error",
        "could not be read or written: the disk answered with an error; earlier records are intact if it recovers",
        "look at `df` and `dmesg`, and keep results.db on a local disk",
    ),
)


def _translation(path: Path, error: Exception) -> StoreError:
    text = str(error)
    if _is_lock(error):
        return _locked_error(path, "")
    for words, meaning, next_step in _MEANINGS:
        if words in text:
            return StoreError(f"{path} {meaning}", next_step=next_step, evidence=(f"SQLite: {text}",))
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{path} refused a record that breaks its rules, nothing of it was kept: {text}")
    return StoreError(f"{path}: {text}")


def _is_lock(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _locked_error(path: Path, duration: str) -> StoreLockedError:
    holders = _processes_with(path)
    if not holders:
        return StoreLockedError(
            f"{path} has been locked by another process{duration}",
            next_step=f"look for it with `lsof {path}`, let it end, then run this again",
        )
    return StoreLockedError(
        f"{path} has been locked by another process{duration}; open in {', '.join(holders)}",
        next_step="let it end (or end it), then run this again",
    )


def _processes_with(path: Path) -> list[str]:
    """``pid N (its command line)`` of the other processes that have the file open, where /proc shows them."""
    try:
        wanted = path.stat()
        processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    found = []
    for process in processes:
        if int(process.name) == os.getpid():
            continue
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if any(_is_same_file(opened, wanted) for opened in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(f"pid {process.name} ({command[:80]})")
    return found


def _is_same_file(opened: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(opened.stat(), wanted)
    except OSError:  # closed meanwhile
        return False
