"""Step 6 of the schema: experiments, from the plan to the verdict, and what was watched while they ran.

As every step, it never changes once it is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def create_experiments(database: Database) -> None:
    """Adds the tables of experiments and the view ``experiment_results``."""
    _create_plans(database)
    _create_findings(database)
    _create_watching(database)
    _create_view(database)


def _create_plans(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE experiments (  -- written before the first start
            id INTEGER PRIMARY KEY,
            target TEXT NOT NULL,
            host TEXT NOT NULL,
            workload TEXT NOT NULL,
            status TEXT NOT NULL CHECK (
                status IN ('planned', 'running', 'decided', 'exhausted', 'stopped', 'failed')
            ),
            hypothesis TEXT NOT NULL,
            seed INTEGER NOT NULL,
            metric TEXT NOT NULL,
            primary_concurrency INTEGER NOT NULL,
            margin REAL NOT NULL,
            is_aa INTEGER NOT NULL CHECK (is_aa IN (0, 1)),
            plan TEXT NOT NULL CHECK (json_valid(plan)),  -- whole; the columns above are for queries
            created_at TEXT NOT NULL,
            started_at TEXT,
            ended_at TEXT,
            stop_reason TEXT,
            orch_version TEXT NOT NULL,
            CHECK ((status IN ('planned', 'running')) = (ended_at IS NULL)),
            CHECK (status <> 'running' OR started_at IS NOT NULL)
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE experiment_starts (  -- one planned engine start; a repeat is a further row
            id INTEGER PRIMARY KEY,
            experiment_id INTEGER NOT NULL REFERENCES experiments (id),
            i INTEGER NOT NULL,  -- position in the order of the whole experiment
            block INTEGER NOT NULL,
            position INTEGER NOT NULL,
            arm TEXT NOT NULL,
            digest TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('planned', 'running', 'ok', 'set-aside', 'failed')),
            trial_id INTEGER UNIQUE REFERENCES trials (id),  -- NULL: no engine was started for it
            reasons TEXT NOT NULL CHECK (json_valid(reasons)),
            flags TEXT NOT NULL CHECK (json_valid(flags)),
            UNIQUE (experiment_id, i, attempt),
            CHECK (status <> 'planned' OR trial_id IS NULL),
            CHECK (status NOT IN ('running', 'ok') OR trial_id IS NOT NULL)
        ) STRICT
        """
    )
    database.table("experiments").create_index(["target", "id"])


def _create_findings(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE analyses (  -- one analysis of what an experiment had measured so far
            id INTEGER PRIMARY KEY,
            experiment_id INTEGER NOT NULL REFERENCES experiments (id),
            at TEXT NOT NULL,
            look INTEGER,  -- NULL: between the planned looks, where nothing is decided
            n_blocks INTEGER NOT NULL,
            threshold REAL,
            is_final INTEGER NOT NULL CHECK (is_final IN (0, 1)),
            stop_reason TEXT,
            document TEXT NOT NULL CHECK (json_valid(document))
        ) STRICT
        """
    )
    database.execute(
        """
        CREATE TABLE verdicts (  -- the final analysis: one variant at one concurrency
            experiment_id INTEGER NOT NULL REFERENCES experiments (id),
            arm TEXT NOT NULL,
            digest TEXT NOT NULL,
            concurrency INTEGER NOT NULL,
            is_primary INTEGER NOT NULL CHECK (is_primary IN (0, 1)),
            verdict TEXT CHECK (verdict IN ('FASTER', 'SLOWER', 'EQUIVALENT', 'INCONCLUSIVE')),  -- NULL: none
            ratio REAL,
            low95 REAL,
            high95 REAL,
            p REAL,
            p_adjusted REAL,
            n_pairs INTEGER,
            ships INTEGER CHECK (ships IN (0, 1)),  -- of the variant, the same at each concurrency; NULL: undecided
            why TEXT NOT NULL,
            PRIMARY KEY (experiment_id, arm, concurrency),
            CHECK (verdict IS NULL OR ratio IS NOT NULL AND n_pairs IS NOT NULL)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.table("analyses").create_index(["experiment_id"])
    database.table("verdicts").create_index(["digest"])


def _create_watching(database: Database) -> None:
    database.execute(
        """
        CREATE TABLE telemetry (  -- one look at one GPU during a load; NULL: the driver does not tell
            load_id INTEGER NOT NULL REFERENCES loads (id),
            at_s REAL NOT NULL,  -- since the epoch, by the host's clock
            gpu INTEGER NOT NULL,
            power_w REAL,
            sm_clock_mhz REAL,
            memory_clock_mhz REAL,
            temperature_c REAL,
            memory_used_bytes INTEGER,
            utilization_pct REAL,
            throttle_reasons TEXT NOT NULL CHECK (json_valid(throttle_reasons)),
            foreign_pids TEXT NOT NULL CHECK (json_valid(foreign_pids)),
            PRIMARY KEY (load_id, gpu, at_s)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.execute(
        """
        CREATE TABLE events (  -- what `orch run --json` tells, in its order
            id INTEGER PRIMARY KEY,
            experiment_id INTEGER NOT NULL REFERENCES experiments (id),
            at TEXT NOT NULL,
            kind TEXT NOT NULL,
            text TEXT NOT NULL,
            detail TEXT NOT NULL CHECK (json_valid(detail))
        ) STRICT
        """
    )
    database.table("events").create_index(["experiment_id", "id"])


_SHOWN_METRICS = (
    "output_tokens_per_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "tpot_ms_p99",
    "e2el_ms_p50",
    "e2el_ms_p99",
)
"""Of schema 6; a released view keeps its columns, whatever ``metrics.py`` says later."""


def _create_view(database: Database) -> None:
    # Starts without a load are rows too: what was set aside or never run must not vanish from a person's query.
    values = ",\n".join(
        f"(SELECT value FROM metrics WHERE load_id = loads.id AND name = '{name}') AS {name}" for name in _SHOWN_METRICS
    )
    database.create_view(
        "experiment_results",
        f"""
        SELECT
            starts.experiment_id,
            experiments.target,
            starts.i,
            starts.block,
            starts.position,
            starts.attempt,
            starts.arm,
            starts.digest,
            starts.status AS start_status,
            starts.trial_id,
            loads.concurrency_cap AS concurrency,
            experiments.metric,
            (SELECT value FROM metrics WHERE load_id = loads.id AND name = experiments.metric) AS value,
            {values},
            loads.status AS load_status,
            starts.reasons,
            starts.flags,
            loads.started_at,
            loads.id AS load_id
        FROM experiment_starts AS starts
        JOIN experiments ON experiments.id = starts.experiment_id
        LEFT JOIN loads ON loads.trial_id = starts.trial_id
        """,
    )
