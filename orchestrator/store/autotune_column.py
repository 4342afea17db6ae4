"""Step 10 of the schema: what Triton's autotuner chose in an engine start.

As every step, it never changes once it is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def add_autotune_winners(database: Database) -> None:
    """Adds the column to ``trials``; NULL in rows of before, and where the engine's log told nothing."""
    database.execute(
        "ALTER TABLE trials ADD COLUMN autotune_winners TEXT"
        " CHECK (autotune_winners IS NULL OR json_valid(autotune_winners))"
    )
