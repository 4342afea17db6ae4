"""Several processes share one record: both succeed, a lock that lasts is named, a killed writer harms nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.errors import StoreLockedError
from orchestrator.store import Store
from tests.support import store_records as make

ROOT = Path(__file__).resolve().parents[1]

_WRITER = """
import sys
from pathlib import Path
from tests.support import store_records as make
from orchestrator.store import Store
path, name, n = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with Store.open(path) as store:
    for _ in range(n):
        make.trial(store, make.FASTER, name, loads=(make.load(n_requests=50), make.load(64, n_requests=50)))
"""

_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM baselines")
print("ready", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@contextmanager
def process(script: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Another Python that has said ``ready`` and waits for a line; gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()


def go_on(running: subprocess.Popen[str]) -> None:
    """Lets a waiting process go on."""
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()


@pytest.mark.integration
def test_two_processes_make_and_fill_one_record(tmp_path: Path) -> None:
    """Two processes that start at once on a record that does not exist both record everything."""
    path, n = tmp_path / "results.db", 25
    with process(_WRITER, str(path), "V1", str(n)) as first, process(_WRITER, str(path), "V2", str(n)) as second:
        go_on(first)
        go_on(second)
        assert (first.wait(), second.wait()) == (0, 0)
    with Store.open_read_only(path) as store:
        counts = store.query("select variant, count(*) from results group by variant order by variant")[1]
        assert counts == [("V1", 2 * n), ("V2", 2 * n)]
        assert store.query("select count(*) from requests")[1] == [(2 * 2 * n * 50,)]
        assert store.query("select count(*) from environments")[1] == [(1,)]
        assert store.query("pragma integrity_check")[1] == [("ok",)]


@pytest.mark.integration
def test_a_lock_that_lasts_is_named_and_loses_nothing(tmp_path: Path) -> None:
    """A write that waited in vain names the process that has the file open; once that lets go it succeeds."""
    path = tmp_path / "results.db"
    with Store.open(path, busy_timeout_s=0.3) as store:
        store.set_baseline(make.snapshot())
        with process(_HOLDER, str(path)) as holder:
            with pytest.raises(StoreLockedError) as refused:
                store.set_baseline(make.snapshot(make.FASTER))
            assert "locked by another process for 0.3 s" in str(refused.value)
            if Path("/proc/self/fd").exists():
                assert f"pid {holder.pid} (" in str(refused.value)
                assert f"pid {os.getpid()} " not in str(refused.value)
            assert store.baseline("flash") == make.snapshot(), "reading does not wait for a writer"
            go_on(holder)
            holder.wait()
        assert store.set_baseline(make.snapshot(make.FASTER)) == make.BASE.digest


@pytest.mark.integration
def test_opening_waits_for_a_writer(tmp_path: Path) -> None:
    """A record that another process is writing to can be opened and read."""
    path = tmp_path / "results.db"
    with Store.open(path) as store:
        store.set_baseline(make.snapshot())
    with process(_HOLDER, str(path)), Store.open(path, busy_timeout_s=0.3) as store:
        assert store.baseline("flash") == make.snapshot()
        with Store.open_read_only(path) as reader:
            assert reader.baseline("flash") == make.snapshot()


@pytest.mark.integration
def test_a_writer_killed_in_the_middle_leaves_the_record_whole(tmp_path: Path) -> None:
    """After kill -9 inside a transaction, nothing of it is there and everything before it is."""
    path = tmp_path / "results.db"
    store = Store.open(path)
    store.set_baseline(make.snapshot())
    with process(_HOLDER, str(path)) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert store.baseline("flash") == make.snapshot()
    assert store.set_baseline(make.snapshot(make.FASTER)) == make.BASE.digest
    store.close()
    with Store.open_read_only(path) as reader:
        assert reader.query("pragma integrity_check")[1] == [("ok",)]
