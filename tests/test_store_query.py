"""A query of a person can read everything and change nothing."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.errors import StoreError
from orchestrator.store import Store
from tests.support import store_records as make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A record with one trial of one load."""
    with Store.open(tmp_path / "results.db") as opened:
        opened.set_baseline(make.snapshot())
        make.trial(opened, loads=(make.load(8, 100.0),))
        yield opened


@pytest.mark.parametrize(
    ("sql", "params", "expected"),
    [
        ("select concurrency, output_tokens_per_s from results", (), [(8, 100.0)]),
        ("select count(*) as n from trials where variant = ?", ("baseline",), [(1,)]),
        ("select count(*) from trials where variant = :name", {"name": "V2"}, [(0,)]),
        (
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 3) select max(i) from n",
            (),
            [(3,)],
        ),
        ("values (1, null)", (), [(1, None)]),
        ("select value from trials, json_each(trials.workload) where key = 'seed'", (), [(7,)]),
        ("select content from artifacts", (), [(make.BASE.content,)]),
        ("select name from pragma_table_info('metrics') where pk", (), [("load_id",), ("name",)]),
        ("-- why not\nselect 1;", (), [(1,)]),
    ],
)
def test_reading_is_allowed(store: Store, sql: str, params: object, expected: list[object]) -> None:
    """Joins, recursion, JSON, parameters by place and by name, and a look at the schema all work."""
    assert store.query(sql, params)[1] == expected  # type: ignore[arg-type]


def test_columns_are_named_without_rows(store: Store) -> None:
    """The names of the columns come even when no row does."""
    assert store.query("select target, digest as d from trials where 0") == (("target", "d"), [])


@pytest.mark.parametrize(
    "sql",
    [
        "update sqlite_master set sql = ''",
        "insert into artifacts values ('a', 1, x'00')",
        "update trials set status = 'ok'",
        "delete from loads",
        "delete from loads returning id",
        "with x as (select 1) delete from loads",
        "replace into artifacts values ('a', 1, x'00')",
        "drop table loads",
        "create table mine (x)",
        "create temp table mine (x)",
        "alter table loads add column x",
        "create view v as select 1",
        "attach '{folder}/new.db' as other",
        "vacuum",
        "vacuum into '{folder}/new.db'",
        "pragma query_only = off",
        "pragma journal_mode = delete",
        "pragma writable_schema = on",
        "pragma user_version = 7",
        "pragma wal_checkpoint(truncate)",
        "begin immediate",
        "savepoint x",
        "reindex",
        "analyze",
        "select load_extension('{folder}/x.so')",
    ],
)
def test_whatever_is_not_reading_is_refused(store: Store, tmp_path: Path, sql: str) -> None:
    """What would change the record, a setting or another file is refused; file and folder stay as they are."""
    before = _fingerprint(tmp_path)
    with pytest.raises(StoreError):
        store.query(sql.format(folder=tmp_path))
    assert _fingerprint(tmp_path) == before


def _fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if not path.name.endswith("-shm")  # the lock table of readers too
    }


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("delete from loads", "only read; this one would delete from loads"),
        ("attach 'x.db' as x", "attach or write another file"),
        ("pragma query_only = off", "set the pragma query_only"),
        ("drop view results", "change"),
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("select 1; select 2", "more than one statement"),
        ("selec 1", 'near "selec"'),
        ("select nowhere from trials", "no such column: nowhere"),
        ("select * from requets", "there are: drift, experiment_results, results, analyses"),
        ("select ?", "not understood"),
    ],
)
def test_a_refusal_says_what_and_why(store: Store, sql: str, words: str) -> None:
    """The refusal names the act, or what SQLite did not understand with the tables that there are."""
    with pytest.raises(StoreError) as refused:
        store.query(sql)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_query_sees_what_was_recorded_a_moment_ago(store: Store) -> None:
    """A query reads past what another connection is just recording."""
    make.trial(store)
    assert store.query("select count(*) from trials")[1] == [(2,)]


def test_ctrl_c_ends_a_query_that_never_ends(store: Store) -> None:
    """Ctrl-C reaches a query while SQLite is busy."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.query("with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert store.query("select 1")[1] == [(1,)]


def test_results_of_an_untrustworthy_start_are_not_ok(tmp_path: Path) -> None:
    """A good load of a start that failed or was contaminated does not show up under status 'ok'."""
    with Store.open(tmp_path / "results.db") as store:
        for status in ("contaminated", "failed"):
            make.trial(store, loads=(make.load(8, 100.0),), status=status)
        columns, rows = store.query("select status, load_status, trial_status from results order by trial_id")
    assert columns == ("status", "load_status", "trial_status")
    assert rows == [("contaminated", "ok", "contaminated"), ("failed", "ok", "failed")]
