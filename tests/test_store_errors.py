"""Bad luck with results.db ends in one line that says what to do, and loses nothing that was recorded."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import StoreError, StoreTooNewError
from orchestrator.store import SCHEMA_VERSION, Store
from orchestrator.version import VERSION
from tests.support import store_records as make

OPENERS = [Store.open, Store.open_read_only]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed record that holds a baseline."""
    with Store.open(tmp_path / "results.db") as store:
        store.set_baseline(make.snapshot())
    return tmp_path / "results.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def one_line(error: StoreError) -> str:
    """The text of an error, which has to be one line."""
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize("open_store", OPENERS)
def test_a_folder_is_refused(tmp_path: Path, open_store: Callable[[Path], Store]) -> None:
    """A results.db that is a folder is named as such."""
    (tmp_path / "results.db").mkdir()
    with pytest.raises(StoreError, match="is a folder") as refused:
        open_store(tmp_path / "results.db")
    one_line(refused.value)


@pytest.mark.parametrize("open_store", OPENERS)
def test_a_missing_folder_is_named(tmp_path: Path, open_store: Callable[[Path], Store]) -> None:
    """The missing folder is named, with the command that makes it; nothing is made behind the user's back."""
    with pytest.raises(StoreError, match=r"no folder .*/none: make it"):
        open_store(tmp_path / "none" / "results.db")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("open_store", [lambda p: Store.open(p, create=False), Store.open_read_only])
def test_a_missing_file_is_not_made_by_reading(tmp_path: Path, open_store: Callable[[Path], Store]) -> None:
    """Without leave to create, a missing record says that nothing was recorded, and stays missing."""
    with pytest.raises(StoreError, match="nothing has been recorded here yet: run `orch pull`"):
        open_store(tmp_path / "results.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("open_store", OPENERS)
@pytest.mark.parametrize("content", [b"not a database\n" * 100, b"x", b"\0" * 4096])
def test_what_is_no_database_is_left_alone(tmp_path: Path, open_store: Callable[[Path], Store], content: bytes) -> None:
    """A file that is no SQLite database is refused and keeps its bytes."""
    (tmp_path / "results.db").write_bytes(content)
    with pytest.raises(StoreError, match="not an SQLite database"):
        open_store(tmp_path / "results.db")
    assert (tmp_path / "results.db").read_bytes() == content


@pytest.mark.parametrize("open_store", OPENERS)
def test_another_programs_database_is_left_alone(tmp_path: Path, open_store: Callable[[Path], Store]) -> None:
    """An SQLite database that orch did not make is refused and keeps its bytes."""
    path = tmp_path / "results.db"
    other = sqlite3.connect(path)
    other.execute("create table theirs (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of orch"):
        open_store(path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_record(tmp_path: Path) -> None:
    """An empty file (as ``touch`` makes it) is filled; reading one says that nothing was recorded."""
    path = tmp_path / "results.db"
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        Store.open_read_only(path)
    with Store.open(path) as store:
        assert store.trials() == []


@pytest.mark.parametrize("open_store", OPENERS)
def test_a_newer_schema_names_both_versions(path: Path, open_store: Callable[[Path], Store]) -> None:
    """A record of a newer orch is refused, names that version and this one, and is left as it is."""
    newer = sqlite3.connect(path)
    newer.execute("insert into migrations values (99, 'x', '2030-01-01', '9.8.7')")
    newer.execute("pragma user_version = 99")
    newer.commit()
    newer.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNewError) as refused:
        open_store(path)
    text = one_line(refused.value)
    assert all(word in text for word in ("schema 99", "9.8.7", VERSION, f"up to {SCHEMA_VERSION}", "upgrade"))
    assert path.read_bytes() == before


def test_a_damaged_record_says_so(path: Path) -> None:
    """Overwritten pages end in a line that says how to save what is left."""
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged: copy it") as found, Store.open(path) as store:
        store.set_baseline(make.snapshot(make.FASTER))
    one_line(found.value)


def test_content_changed_behind_the_record_is_noticed(path: Path) -> None:
    """Stored bytes that no longer have their digest are never handed out."""
    vandal = sqlite3.connect(path)
    vandal.execute("update artifacts set content = x'00'")
    vandal.commit()
    vandal.close()
    with Store.open_read_only(path) as store, pytest.raises(StoreError, match="damaged"):
        store.baseline("flash")


@pytest.mark.integration
def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    """A load that does not fit is refused in one line; everything before it stays, and recording goes on with space."""
    ballast = small_disk / "ballast"
    with Store.open(small_disk / "results.db") as store:
        store.set_baseline(make.snapshot())
        trial_id = make.trial(store)
        ballast.write_bytes(b"\0" * (os.statvfs(small_disk).f_bavail * 4096 - 300_000))
        huge = replace(make.load(), raw=os.urandom(1_000_000))
        with pytest.raises(StoreError, match="disk is full; nothing of this record was kept") as refused:
            store.record_load(trial_id, huge)
        one_line(refused.value)
        assert store.load_ids(trial_id) == ()
        assert store.baseline("flash") == make.snapshot()
        ballast.unlink()
        assert store.load(store.record_load(trial_id, make.load())) == make.load()
    assert _integrity(small_disk / "results.db") == "ok"


@pytest.mark.integration
def test_a_full_disk_from_the_start(small_disk: Path) -> None:
    """Where not even an empty record fits, that is said; with space the same call works."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (os.statvfs(small_disk).f_bavail * 4096 - 8192))
    with pytest.raises(StoreError) as refused:
        Store.open(small_disk / "results.db")
    assert "disk" in one_line(refused.value)
    ballast.unlink()
    with Store.open(small_disk / "results.db") as store:
        assert store.trials() == []


@pytest.mark.integration
def test_a_read_only_disk_can_be_read(small_disk: Path, path: Path) -> None:
    """On a read-only file system recording is refused when the store is opened, and reading works."""
    shutil.copy(path, small_disk / "results.db")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="cannot be written"):
        Store.open(small_disk / "results.db")
    with Store.open_read_only(small_disk / "results.db") as store:
        assert store.baseline("flash") == make.snapshot()
        assert store.query("select count(*) from baselines")[1] == [(1,)]


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["file", "folder"])
def test_a_file_that_we_may_not_write(path: Path, mode: str) -> None:
    """Without permission to write, opening says which place is read-only; reading works."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to drop privileges")
    for folder in path.parents:  # pytest's own folders are closed to other users
        folder.chmod(folder.stat().st_mode | 0o055)
        if folder.name.startswith("pytest-of-"):
            break
    path.parent.chmod(0o777 if mode == "file" else 0o755)
    path.chmod(0o644 if mode == "file" else 0o666)
    script = f"""
from orchestrator.errors import StoreError
from orchestrator.store import Store
try:
    Store.open({str(path)!r})
except StoreError as refused:
    print(refused)
with Store.open_read_only({str(path)!r}) as store:
    print(store.baseline("flash").digest)
"""
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode and not done.stdout and "StoreError" not in done.stderr:
        pytest.skip(f"another user cannot run this Python: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    refused, digest = done.stdout.splitlines()
    place = path if mode == "file" else path.parent
    assert f"{place} is read-only for this user" in refused
    assert digest == make.BASE.digest


def _integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("pragma integrity_check").fetchone()[0])
    finally:
        connection.close()
