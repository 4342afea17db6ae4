"""Step 11 of the schema: a sample of telemetry names its node, and what nobody could tell.

As every step, it never changes once it is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

_KEPT = (
    "load_id, at_s, gpu, power_w, sm_clock_mhz, memory_clock_mhz, temperature_c, memory_used_bytes, utilization_pct,"
    " throttle_reasons, foreign_pids"
)


def add_telemetry_columns(database: Database) -> None:
    """Makes the table ``telemetry`` anew, for two nodes of an engine both have a GPU 0; its rows stay."""
    database.execute(
        """
        CREATE TABLE telemetry_anew (  -- one look at one GPU during a load; NULL: the driver does not tell
            load_id INTEGER NOT NULL REFERENCES loads (id),
            node TEXT NOT NULL DEFAULT '',  -- of an engine that spans several; else empty
            at_s REAL NOT NULL,  -- since the epoch, by the node's clock
            gpu INTEGER NOT NULL,
            power_w REAL,
            sm_clock_mhz REAL,
            memory_clock_mhz REAL,
            temperature_c REAL,
            memory_used_bytes INTEGER,
            utilization_pct REAL,
            throttle_reasons TEXT NOT NULL CHECK (json_valid(throttle_reasons)),
            foreign_pids TEXT NOT NULL CHECK (json_valid(foreign_pids)),
            unknown TEXT CHECK (unknown IS NULL OR json_valid(unknown)),  -- which of the two; NULL: of before schema 11
            PRIMARY KEY (load_id, node, gpu, at_s)
        ) STRICT, WITHOUT ROWID
        """
    )
    database.execute(f"INSERT INTO telemetry_anew ({_KEPT}) SELECT {_KEPT} FROM telemetry")
    database.execute("DROP TABLE telemetry")
    database.execute("ALTER TABLE telemetry_anew RENAME TO telemetry")
