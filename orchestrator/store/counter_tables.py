"""Steps 7 and 9 of the schema: what an engine told of itself around each load.

As every step, they never change once they are released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def create_engine_counters(database: Database) -> None:
    """Adds the table ``engine_counters``."""
    database.execute(
        """
        CREATE TABLE engine_counters (  -- the engine's own, just before and just after a load; NULL: it does not tell
            trial_id INTEGER NOT NULL REFERENCES trials (id),
            concurrency_cap INTEGER NOT NULL,
            moment TEXT NOT NULL CHECK (moment IN ('before', 'after')),
            n_preemptions INTEGER,  -- since the engine started
            kv_pool INTEGER,  -- in the engine's own unit: pages, blocks or tokens
            PRIMARY KEY (trial_id, concurrency_cap, moment)
        ) STRICT, WITHOUT ROWID
        """
    )


def add_prefix_counters(database: Database) -> None:
    """Adds the KV pool in tokens and the prefix cache; NULL in rows of before."""
    for column in ("kv_pool_tokens", "n_prefix_hits", "n_prefix_queries"):
        database.execute(f"ALTER TABLE engine_counters ADD COLUMN {column} INTEGER")
