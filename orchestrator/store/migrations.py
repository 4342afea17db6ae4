"""The schema of results.db as numbered steps, each in a transaction of its own.

A step, once released, never changes: a later schema is a further step at the end of ``MIGRATIONS``. (To change a
column, ``database["table"].transform(...)`` of sqlite-utils does what SQLite's own ALTER TABLE cannot.) The number of
the last step is kept in the file as ``user_version``, and ``application_id`` says that the file is orch's. The table
``migrations`` keeps who applied which step, so that an older orch can say which newer one wrote the file.

Words of the columns are those of ``records`` and ``metrics``; the unit comes last; NULL is "not measured". Columns of
JSON hold lists and records that nobody filters by; what is filtered by is a column.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from orchestrator.store.autotune_column import add_autotune_winners
from orchestrator.store.check_tables import create_checks
from orchestrator.store.counter_tables import add_prefix_counters, create_engine_counters
from orchestrator.store.experiment_tables import create_experiments
from orchestrator.store.status_tables import allow_hopeless
from orchestrator.store.telemetry_columns import add_telemetry_columns
from orchestrator.version import VERSION

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x6F726368
"""``orch`` in ASCII."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its number (from 1, without gaps), what it adds, and the act. The act must not commit."""

    number: int
    name: str
    apply: Callable[[Database], None]


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Applies, in order, the steps that the file does not have yet.

    Two processes may do this at once: each step is looked at again inside its own transaction.

    Args:
        connection: in autocommit mode (``isolation_level=None``). migrations: all known steps.

    Raises:
        sqlite3.Error: a step failed; it left nothing, and the steps before it stay.
    """
    from sqlite_utils import Database  # 180 ms, needed only when there is something to migrate

    database = Database(connection, recursive_triggers=False, execute_plugins=False)
    (enforces,) = connection.execute("PRAGMA foreign_keys").fetchone()
    connection.execute("PRAGMA foreign_keys = OFF")  # a table that is made anew is gone for a moment
    try:
        for migration in MIGRATIONS if migrations is None else migrations:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if connection.execute("PRAGMA user_version").fetchone()[0] < migration.number:
                    _apply(database, migration)
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
    finally:
        connection.execute(f"PRAGMA foreign_keys = {enforces:d}")


def _apply(database: Database, migration: Migration) -> None:
    migration.apply(database)
    applied_at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    database.execute(
        "INSERT INTO migrations (number, name, applied_at, orch_version) VALUES (?, ?, ?, ?)",
        (migration.number, migration.name, applied_at, VERSION),
    )
    database.execute(f"PRAGMA user_version = {migration.number:d}")


# ---- 1


def _create_files(database: Database) -> None:
    database.execute(f"PRAGMA application_id = {APPLICATION_ID:d}")
    database.execute(
        """
        CREATE TABLE migrations (
            number INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            applied_at TEXT NOT NULL,
            orch_version TEXT NOT NULL
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE artifacts (
            digest TEXT PRIMARY KEY,
            size_bytes INTEGER NOT NULL,
            content BLOB NOT NULL
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE manifests (  -- the digest of a target of several files, and which files it names
            digest TEXT NOT NULL,
            name TEXT NOT NULL,
            file_digest TEXT NOT NULL REFERENCES artifacts (digest),
            PRIMARY KEY (digest, name)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.execute(
        """
        CREATE TABLE baselines (  -- one row a pull; the newest is the baseline
            id INTEGER PRIMARY KEY,
            target TEXT NOT NULL,
            host TEXT NOT NULL,
            digest TEXT NOT NULL,
            pulled_at TEXT NOT NULL,
            files TEXT NOT NULL CHECK (json_valid(files)),   -- [[name, digest], …] in the target's order
            states TEXT NOT NULL CHECK (json_valid(states))  -- what the host said of each file
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE variants (  -- a variant that was edited later is a new row
            id INTEGER PRIMARY KEY,
            target TEXT NOT NULL,
            name TEXT NOT NULL,
            digest TEXT NOT NULL,
            base_digest TEXT NOT NULL,
            message TEXT NOT NULL,
            is_isolated INTEGER NOT NULL CHECK (is_isolated IN (0, 1)),
            created_at TEXT NOT NULL,
            files TEXT NOT NULL CHECK (json_valid(files)),
            changes TEXT NOT NULL CHECK (json_valid(changes)),
            edited_functions TEXT NOT NULL CHECK (json_valid(edited_functions))
        ) STRICT
        """
    )
    database.table("baselines").create_index(["target", "id"])
    database.table("variants").create_index(["target", "name", "id"])


# ---- 2


def _create_host_log(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE observations (  -- every look at a file on its host
            id INTEGER PRIMARY KEY,
            at TEXT NOT NULL,
            host TEXT NOT NULL,
            target TEXT NOT NULL,
            file TEXT NOT NULL,
            path TEXT NOT NULL,
            real_path TEXT NOT NULL,
            source TEXT NOT NULL CHECK (
                source IN ('pull', 'push', 'bench-before', 'bench-after', 'status', 'revert', 'drift')
            ),
            digest TEXT,          -- NULL: there was no file
            expected_digest TEXT, -- NULL: nothing was expected
            is_unexpected INTEGER CHECK (is_unexpected IN (0, 1)),
            phase TEXT NOT NULL CHECK (phase IN ('clean', 'pushing', 'pushed')),
            base_digest TEXT,
            pushed_digest TEXT,
            size_bytes INTEGER,
            mode TEXT,
            owner TEXT,
            inode TEXT,  -- some file systems use all 64 bits, SQLite has 63
            n_links INTEGER,
            mtime_s INTEGER,
            ctime_s REAL,
            lease_holder TEXT,
            lease_expires_at TEXT
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE deployments (  -- written before the push as 'intent', its outcome after
            id INTEGER PRIMARY KEY,
            host TEXT NOT NULL,
            target TEXT NOT NULL,
            variant TEXT NOT NULL,
            digest TEXT NOT NULL,
            previous_digest TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('intent', 'pushed', 'unknown', 'failed', 'reverted', 'replaced')),
            nonce TEXT NOT NULL,
            holder TEXT NOT NULL,
            mtime_s INTEGER,
            error TEXT,
            started_at TEXT NOT NULL,
            pushed_at TEXT,
            ended_at TEXT
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE deployment_files (
            deployment_id INTEGER NOT NULL REFERENCES deployments (id),
            path TEXT NOT NULL,
            real_path TEXT NOT NULL,
            digest TEXT NOT NULL,
            previous_digest TEXT NOT NULL,
            mtime_s INTEGER NOT NULL,
            was_already_there INTEGER NOT NULL CHECK (was_already_there IN (0, 1)),
            PRIMARY KEY (deployment_id, path)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.table("observations").create_index(["host", "real_path", "mtime_s"])
    database.table("observations").create_index(["is_unexpected"])
    database.table("deployments").create_index(["target", "ended_at"])
    database.table("deployment_files").create_index(["real_path"])


# ---- 3


def _create_measurements(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE environments (
            id INTEGER PRIMARY KEY,
            digest TEXT NOT NULL UNIQUE,
            recorded_at TEXT NOT NULL,
            facts TEXT NOT NULL CHECK (json_valid(facts))
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE trials (  -- one start of the engine
            id INTEGER PRIMARY KEY,
            host TEXT NOT NULL,
            target TEXT NOT NULL,
            variant TEXT NOT NULL,
            digest TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('running', 'ok', 'contaminated', 'failed')),
            started_at TEXT NOT NULL,
            ended_at TEXT,
            workload_name TEXT NOT NULL,
            deployment_id INTEGER REFERENCES deployments (id),
            environment_id INTEGER REFERENCES environments (id),
            loaded_digest TEXT,
            digest_before TEXT,
            digest_after TEXT,
            engine TEXT,
            engine_started_at TEXT,
            pid INTEGER,
            start_ticks INTEGER,
            ready_after_s REAL,
            base_url TEXT,
            log_path TEXT,
            reasons TEXT NOT NULL CHECK (json_valid(reasons)),
            workload TEXT NOT NULL CHECK (json_valid(workload)),
            triton_kernels TEXT CHECK (triton_kernels IS NULL OR json_valid(triton_kernels)),
            proof TEXT CHECK (proof IS NULL OR json_valid(proof)),
            CHECK (status <> 'ok' OR loaded_digest IS digest)
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE loads (  -- one concurrency inside one trial
            id INTEGER PRIMARY KEY,
            trial_id INTEGER NOT NULL REFERENCES trials (id),
            concurrency_cap INTEGER NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('ok', 'invalid', 'failed')),
            client TEXT NOT NULL,
            client_version TEXT NOT NULL,
            started_at TEXT NOT NULL,
            ended_at TEXT NOT NULL,
            reasons TEXT NOT NULL CHECK (json_valid(reasons)),
            argv TEXT NOT NULL CHECK (json_valid(argv))
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE raw_results (  -- the client's own result file; not in loads, so that a scan of those is short
            load_id INTEGER PRIMARY KEY REFERENCES loads (id),
            size_bytes INTEGER NOT NULL,
            content_zlib BLOB NOT NULL
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE requests (
            load_id INTEGER NOT NULL REFERENCES loads (id),
            i INTEGER NOT NULL,
            sent_s REAL,  -- NULL: the load ended before it was sent
            first_chunk_s REAL,
            last_chunk_s REAL,
            n_input_tokens INTEGER,
            n_output_tokens INTEGER,
            n_chunks INTEGER NOT NULL,
            itl_ms BLOB NOT NULL,  -- little-endian float64, one a gap
            error TEXT,
            text_digest TEXT,
            PRIMARY KEY (load_id, i)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.execute(
        """
        CREATE TABLE metrics (
            load_id INTEGER NOT NULL REFERENCES loads (id),
            name TEXT NOT NULL,
            value REAL,  -- NULL: not measured
            PRIMARY KEY (load_id, name)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.table("trials").create_index(["target", "digest"])
    database.table("trials").create_index(["host", "target", "id"])
    database.table("loads").create_index(["trial_id"])


# ---- 4

_SHOWN_METRICS = (
    "output_tokens_per_s",
    "requests_per_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p99",
    "itl_ms_p50",
    "itl_ms_p99",
    "e2el_ms_p50",
    "e2el_ms_p99",
    "n_ok",
    "n_failed",
)
"""Of schema 4; a released view keeps its columns, whatever ``metrics.py`` says later."""


def _create_views(database: Database) -> None:
    # One look into the primary key of metrics a value: 40,000 loads in 0.35 s, where GROUP BY took 0.8 s.
    values = ",\n".join(
        f"(SELECT value FROM metrics WHERE load_id = loads.id AND name = '{name}') AS {name}" for name in _SHOWN_METRICS
    )
    database.create_view(
        "results",
        f"""
        SELECT
            trials.target,
            trials.variant,
            trials.digest,
            substr(trials.digest, length('sha256:') + 1, 12) AS short_digest,
            trials.host,
            loads.concurrency_cap AS concurrency,
            -- a good load of a start that cannot be trusted is not a good result
            CASE trials.status WHEN 'ok' THEN loads.status ELSE trials.status END AS status,
            {values},
            loads.started_at,
            loads.trial_id,
            trials.workload_name AS workload,
            loads.client,
            trials.status = 'contaminated' AS is_contaminated,
            loads.status AS load_status,
            trials.status AS trial_status,
            loads.id AS load_id
        FROM loads JOIN trials ON trials.id = loads.trial_id
        """,
    )
    # Consecutive trials of a target on a host: two targets that take turns there, each with its own engine, would
    # otherwise show a change of engine at every turn.
    database.create_view(
        "drift",
        """
        WITH consecutive AS (
            SELECT
                id AS trial_id, started_at, host, target, environment_id,
                lag(environment_id) OVER (PARTITION BY host, target ORDER BY id) AS previous_id
            FROM trials WHERE environment_id IS NOT NULL
        ),
        changed AS (SELECT * FROM consecutive WHERE previous_id <> environment_id),
        facts AS (
            SELECT environments.id AS environment_id, fact.key AS name, fact.value AS value
            FROM environments, json_each(environments.facts) AS fact
        ),
        named AS (
            SELECT DISTINCT changed.*, facts.name
            FROM changed JOIN facts ON facts.environment_id IN (changed.environment_id, changed.previous_id)
        )
        SELECT
            at, 'file' AS kind, host, target, file AS name, expected_digest AS before, digest AS after, source,
            NULL AS trial_id
        FROM observations WHERE is_unexpected = 1
        UNION ALL
        SELECT
            named.started_at, 'environment', named.host, named.target, named.name, earlier.value, later.value, 'bench',
            named.trial_id
        FROM named
        LEFT JOIN facts AS earlier ON earlier.environment_id = named.previous_id AND earlier.name = named.name
        LEFT JOIN facts AS later ON later.environment_id = named.environment_id AND later.name = named.name
        WHERE earlier.value IS NOT later.value
        """,
    )


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "files: artifacts, manifests, baselines, variants", _create_files),
    Migration(2, "host log: observations, deployments", _create_host_log),
    Migration(3, "measurements: environments, trials, loads, requests, metrics", _create_measurements),
    Migration(4, "views: results, drift", _create_views),
    Migration(5, "checks: compiled kernels, checks, their configs; deployments name their check", create_checks),
    Migration(6, "experiments: plans, starts, analyses, verdicts, telemetry, events", create_experiments),
    Migration(7, "engine counters: preemptions and KV pool around each load", create_engine_counters),
    Migration(8, "experiments may end hopeless", allow_hopeless),
    Migration(9, "engine counters: KV pool in tokens, prefix cache", add_prefix_counters),
    Migration(10, "trials: what the autotuner chose", add_autotune_winners),
    Migration(11, "telemetry: the node, and what nobody could tell", add_telemetry_columns),
)

SCHEMA_VERSION = MIGRATIONS[-1].number
