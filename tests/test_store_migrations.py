"""Every released schema becomes today's, step by step, with what was recorded in it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlite_utils import Database

from orchestrator.designs import EngineCounters, TelemetrySample
from orchestrator.errors import StoreError
from orchestrator.store import SCHEMA_VERSION, Store
from orchestrator.store.migrations import APPLICATION_ID, MIGRATIONS, Migration, migrate
from tests.support import store_records as make


def at_schema(path: Path, number: int) -> sqlite3.Connection:
    """A record as the orch of that schema made it, with a file in it."""
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, MIGRATIONS[:number])
    connection.execute(
        "INSERT INTO artifacts VALUES (?, ?, ?)", (make.BASE.digest, len(make.BASE.content), make.BASE.content)
    )
    return connection


def schema_of(path: Path) -> set[tuple[str, str, str]]:
    """Type, name and text of everything in a schema."""
    connection = sqlite3.connect(path)
    try:
        return set(connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master"))
    finally:
        connection.close()


def test_numbers_have_no_gaps() -> None:
    """Steps are numbered from 1 in the order in which they are applied."""
    assert [m.number for m in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))
    assert MIGRATIONS[-1].number == SCHEMA_VERSION


@pytest.mark.parametrize("number", range(1, SCHEMA_VERSION + 1))
def test_every_earlier_schema_is_upgraded(tmp_path: Path, number: int) -> None:
    """A record of any earlier schema becomes the same as a new one, and keeps its content."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    at_schema(old, number).close()
    Store.open(new).close()
    with Store.open(old) as store:
        assert store.artifact_content(make.BASE.digest) == make.BASE.content
        make.trial(store, loads=(make.load(),))
        assert len(store.query("select * from results")[1]) == 1
    assert schema_of(old) == schema_of(new)


def test_deployments_of_an_older_schema_were_not_checked(tmp_path: Path) -> None:
    """A push that was recorded before checks existed has no check and was not forced."""
    path = tmp_path / "old.db"
    connection = at_schema(path, 4)
    connection.execute(
        "INSERT INTO deployments (host, target, variant, digest, previous_digest, status, nonce, holder, started_at)"
        " VALUES ('gpu-a', 'flash', 'V2', 'sha256:1', 'sha256:0', 'pushed', 'n', 'me', '2026-01-01T00:00:00+00:00')"
    )
    connection.close()
    with Store.open(path) as store:
        assert store.query("select variant, check_id, is_forced from deployments")[1] == [("V2", None, 0)]


def test_starts_of_an_older_schema_belong_to_no_experiment(tmp_path: Path) -> None:
    """What was benched before experiments existed is in none, and still tells the baseline's speed over time."""
    path = tmp_path / "old.db"
    connection = at_schema(path, 5)
    connection.executescript(
        """
        INSERT INTO baselines VALUES (1, 'flash', 'gpu-a', 'sha256:1', '2026-01-01T00:00:00+00:00', '[]', '[]');
        INSERT INTO trials
            (id, host, target, variant, digest, status, started_at, workload_name, loaded_digest, reasons, workload)
        VALUES (7, 'gpu-a', 'flash', 'baseline', 'sha256:1', 'ok', '2026-01-02T00:00:00+00:00', 'short', 'sha256:1',
            '[]', '{}');
        INSERT INTO loads VALUES (3, 7, 64, 'ok', 'loadgen', '1', '', '', '[]', '[]');
        INSERT INTO metrics VALUES (3, 'output_tokens_per_s', 100.0);
        """
    )
    connection.close()
    with Store.open(path) as store:
        assert store.experiments() == store.history() == []
        assert store.query("select * from experiment_results")[1] == []
        (found,) = store.baseline_values("gpu-a", "flash", "output_tokens_per_s")
        assert (found.trial_id, found.concurrency, found.value, found.environment_id) == (7, 64, 100.0, None)


def test_hopeless_experiments_of_an_older_schema_are_called_so(tmp_path: Path) -> None:
    """Those that had ended for hopelessness get the new word, everything else stays, references included."""
    path = tmp_path / "old.db"
    connection = at_schema(path, 6)
    connection.execute("PRAGMA foreign_keys = ON")
    reasons = {1: "hopeless at look 1 of 2, after 4 blocks", 2: "look 2 of 2, after 8 blocks, is the last one"}
    for number, reason in reasons.items():
        connection.execute(
            "INSERT INTO experiments VALUES (?, 'flash', 'gpu-a', 'short', 'exhausted', '', 1, 'output_tokens_per_s',"
            " 64, 0.01, 0, '{}', '2026-01-01', '2026-01-01', '2026-01-02', ?, '1')",
            (number, reason),
        )
    connection.execute("INSERT INTO events VALUES (1, 2, '2026-01-02', 'end', 'over', '{}')")
    connection.close()
    with Store.open(path) as store:
        rows = store.query("select id, status, stop_reason from experiments order by id")[1]
        assert rows == [(1, "hopeless", reasons[1]), (2, "exhausted", reasons[2])]
        assert store.query("select experiment_id, text from events")[1] == [(2, "over")]
        with pytest.raises(StoreError, match="FOREIGN KEY"):
            store.record_event(3, "end", "of nothing")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_telemetry_of_an_older_schema_stays(tmp_path: Path) -> None:
    """Samples of before the nodes had names are those of the one host; whether something was unknown is not known."""
    path = tmp_path / "old.db"
    connection = at_schema(path, 10)
    connection.executescript(
        """
        INSERT INTO trials
            (id, host, target, variant, digest, status, started_at, workload_name, loaded_digest, reasons, workload)
        VALUES (7, 'gpu-a', 'flash', 'baseline', 'sha256:1', 'ok', '2026-01-02T00:00:00+00:00', 'short', 'sha256:1',
            '[]', '{}');
        INSERT INTO loads VALUES (3, 7, 64, 'ok', 'loadgen', '1', '', '', '[]', '[]');
        INSERT INTO telemetry VALUES (3, 5.5, 1, 600.0, NULL, NULL, NULL, NULL, NULL, '["hw_thermal"]', '[9]');
        """
    )
    connection.close()
    with Store.open(path) as store:
        assert store.telemetry(3) == (
            TelemetrySample(5.5, 1, 600.0, None, None, None, None, None, ("hw_thermal",), (9,)),
        )
        assert store.query("select node, unknown from telemetry")[1] == [("", None)]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_who_applied_which_step_is_kept(tmp_path: Path) -> None:
    """The table ``migrations`` lists each step once, and opening again adds none."""
    for _ in range(2):
        with Store.open(tmp_path / "results.db") as store:
            rows = store.query("select number, name from migrations order by number")[1]
    assert rows == [(m.number, m.name) for m in MIGRATIONS]


def test_a_failed_step_leaves_nothing_and_keeps_the_steps_before(tmp_path: Path) -> None:
    """A step that fails half-way is undone whole, the steps before it stay, and the next open goes on from there."""

    def fail_half_way(database: Database) -> None:
        database.execute("CREATE TABLE half (x)")
        database.execute("INSERT INTO nowhere VALUES (1)")

    path = tmp_path / "results.db"
    connection = at_schema(path, 1)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(connection, [MIGRATIONS[0], MIGRATIONS[1], Migration(3, "broken", fail_half_way)])
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "observations" in names
    assert "half" not in names
    connection.close()
    with Store.open(path) as store:
        assert store.artifact_content(make.BASE.digest) == make.BASE.content


def test_reading_an_older_schema_does_not_upgrade_it(tmp_path: Path) -> None:
    """Reading never writes: an older record is refused with what upgrades it, and stays as it is."""
    path = tmp_path / "results.db"
    at_schema(path, 1).close()
    before = schema_of(path)
    with pytest.raises(StoreError, match=r"schema 1 of an older orch.*it upgrades the file"):
        Store.open_read_only(path)
    assert schema_of(path) == before


def test_tables_are_strict_and_linked(tmp_path: Path) -> None:
    """Every table refuses values of another type, foreign keys are held, and the log is written ahead."""
    Store.open(tmp_path / "results.db").close()
    connection = sqlite3.connect(tmp_path / "results.db")
    loose = connection.execute(
        "SELECT name FROM pragma_table_list WHERE type = 'table' AND NOT strict AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    assert loose == []
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()
    with (
        Store.open(tmp_path / "results.db") as store,
        pytest.raises(StoreError, match="FOREIGN KEY"),
    ):
        store.begin_trial(
            host="gpu-a", target="flash", variant="V2", digest="sha256:0", workload=make.WORKLOAD, deployment_id=99
        )


def test_counters_of_an_older_schema_know_no_prefix_cache(tmp_path: Path) -> None:
    """What was counted before stays, and what nobody asked for then is unknown."""
    path = tmp_path / "old.db"
    connection = at_schema(path, 8)
    connection.execute(
        "INSERT INTO trials (id, host, target, variant, digest, status, started_at, workload_name, reasons, workload)"
        " VALUES (7, 'gpu-a', 'flash', 'baseline', 'sha256:1', 'failed', '2026-01-02', 'short', '[]', '{}')"
    )
    connection.execute("INSERT INTO engine_counters VALUES (7, 8, 'before', 3, 900)")
    connection.close()
    with Store.open(path) as store:
        assert store.engine_counters(7) == {8: {"before": EngineCounters(3, 900, None, None, None)}}
