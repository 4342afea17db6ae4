"""Step 5 of the schema: what ``orch check`` found, and the compiled kernels that an engine left on its host.

As every step, it never changes once it is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def create_checks(database: Database) -> None:
    """Adds the tables, links deployments to the check that went before them, and makes the view ``drift`` anew."""
    _create_compiled_kernels(database)
    _create_check_tables(database)
    database.execute("ALTER TABLE deployments ADD COLUMN check_id INTEGER REFERENCES checks (id)")
    database.execute(
        "ALTER TABLE deployments ADD COLUMN is_forced INTEGER NOT NULL DEFAULT 0 CHECK (is_forced IN (0, 1))"
    )
    _replace_drift(database)


def _create_compiled_kernels(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE compiled_kernels (  -- one form of the target's kernel in the Triton cache of one engine start
            id INTEGER PRIMARY KEY,
            trial_id INTEGER NOT NULL REFERENCES trials (id),
            target TEXT NOT NULL,
            digest TEXT NOT NULL,  -- of the target's files that the engine ran
            host TEXT NOT NULL,
            cache_key TEXT NOT NULL,
            name TEXT NOT NULL,
            num_warps INTEGER,
            num_stages INTEGER,
            shared_bytes INTEGER,
            architecture TEXT,  -- 'cuda sm_120'
            triton_version TEXT,
            ttir_digest TEXT NOT NULL REFERENCES artifacts (digest),
            metadata TEXT NOT NULL CHECK (json_valid(metadata)),
            recorded_at TEXT NOT NULL,
            UNIQUE (trial_id, cache_key)
        ) STRICT
        """
    )
    database.table("compiled_kernels").create_index(["target", "digest", "trial_id"])


def _create_check_tables(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE checks (  -- one verdict of `orch check`
            id INTEGER PRIMARY KEY,
            target TEXT NOT NULL,
            variant TEXT NOT NULL,
            digest TEXT NOT NULL,
            base_digest TEXT,
            kind TEXT NOT NULL CHECK (kind IN ('offline', 'remote')),
            status TEXT NOT NULL,
            host TEXT,            -- NULL: no host was asked
            kernel TEXT,
            source TEXT CHECK (source IN ('source', 'host-cache')),  -- NULL: nothing was compiled
            triton_version TEXT,
            checked_at TEXT NOT NULL,
            verdict TEXT NOT NULL CHECK (json_valid(verdict)),       -- the document as `orch check --json` prints it
            CHECK (
                kind = 'offline' AND host IS NULL AND base_digest IS NOT NULL AND kernel IS NOT NULL
                AND status IN ('ok', 'does-not-compile', 'cannot-launch', 'same-binary', 'not-checked')
                OR kind = 'remote' AND host IS NOT NULL AND status IN ('passed', 'failed', 'not-checked')
            )
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE check_configs (  -- one config of the checked kernel on one architecture
            check_id INTEGER NOT NULL REFERENCES checks (id),
            i INTEGER NOT NULL,     -- position in the autotune list
            arch INTEGER NOT NULL,  -- 120
            constants TEXT NOT NULL CHECK (json_valid(constants)),
            num_warps INTEGER NOT NULL,
            num_stages INTEGER NOT NULL,
            num_ctas INTEGER NOT NULL,
            maxnreg INTEGER,
            can_launch INTEGER CHECK (can_launch IN (0, 1)),
            shared_bytes INTEGER,
            shared_limit_bytes INTEGER,
            n_registers INTEGER,
            stack_bytes INTEGER,
            spill_bytes INTEGER,
            blocks_per_sm INTEGER,
            warps_per_sm INTEGER,
            limited_by TEXT CHECK (limited_by IS NULL OR json_valid(limited_by)),
            tensor_cores TEXT CHECK (tensor_cores IS NULL OR json_valid(tensor_cores)),
            n_kv_buffers INTEGER,
            binary_digest TEXT,
            compile_s REAL,
            error TEXT,
            PRIMARY KEY (check_id, i, arch)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.table("checks").create_index(["target", "digest", "kind", "id"])
    database.table("checks").create_index(["target", "base_digest", "triton_version"])


def _replace_drift(database: Database) -> None:
    """The view as before, but a fact that an earlier orch did not ask for has not changed."""
    database.execute("DROP VIEW drift")
    database.create_view(
        "drift",
        """
        WITH consecutive AS (
            SELECT
                id AS trial_id, started_at, host, target, environment_id,
                lag(environment_id) OVER (PARTITION BY host, target ORDER BY id) AS previous_id
            FROM trials WHERE environment_id IS NOT NULL
        ),
        facts AS (
            SELECT environments.id AS environment_id, fact.key AS name, fact.value AS value
            FROM environments, json_each(environments.facts) AS fact
        )
        SELECT
            at, 'file' AS kind, host, target, file AS name, expected_digest AS before, digest AS after, source,
            NULL AS trial_id
        FROM observations WHERE is_unexpected = 1
        UNION ALL
        SELECT
            later_start.started_at, 'environment', later_start.host, later_start.target, later.name,
            earlier.value, later.value, 'bench', later_start.trial_id
        FROM consecutive AS later_start
        JOIN facts AS later ON later.environment_id = later_start.environment_id
        JOIN facts AS earlier ON earlier.environment_id = later_start.previous_id AND earlier.name = later.name
        WHERE later_start.previous_id <> later_start.environment_id AND earlier.value IS NOT later.value
        """,
    )
