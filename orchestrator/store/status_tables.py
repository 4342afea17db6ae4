"""Step 8 of the schema: an experiment may end ``hopeless``.

As every step, it never changes once it is released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def allow_hopeless(database: Database) -> None:
    """Makes the table ``experiments`` anew with one more status, for a CHECK cannot be changed; its rows stay."""
    names = ("experiments", "idx_experiments_target_id", "experiment_results")
    table, index, view = (
        database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0] for name in names
    )
    database.execute("DROP VIEW experiment_results")
    made_anew = table.replace("CREATE TABLE experiments (", "CREATE TABLE experiments_anew (")
    database.execute(made_anew.replace("'decided', 'exhausted'", "'decided', 'hopeless', 'exhausted'"))
    database.execute("INSERT INTO experiments_anew SELECT * FROM experiments")
    database.execute("DROP TABLE experiments")
    database.execute("ALTER TABLE experiments_anew RENAME TO experiments")
    database.execute(
        "UPDATE experiments SET status = 'hopeless' WHERE status = 'exhausted' AND stop_reason LIKE 'hopeless %'"
    )
    database.execute(index)
    database.execute(view)
