"""Shared memory that engines leave in ``/dev/shm``: removed where it is provably the engine's, and only there.

The engine here is a small process that makes such files with ``multiprocessing.shared_memory`` or by itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import provenance, serve
from orchestrator.errors import EngineDiedError
from orchestrator.host import process_table, shared_memory
from orchestrator.host.process_table import Process
from orchestrator.records import Engine, EngineProcess
from tests.support.tiny_host import TinyHost, is_alive, until

FOLDER = Path(shared_memory.FOLDER)

pytestmark = pytest.mark.skipif(not (Path("/proc/self/maps").exists() and os.access(FOLDER, os.W_OK)), reason="Linux")

HOLDER = """
import mmap, os, sys
path, how = sys.argv[1:3]
descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(descriptor, 4096)
mapped = mmap.mmap(descriptor, 4096)
if how == "mapped":
    os.close(descriptor)
    # a descriptor of its own stays with Python's mmap, so the file is held by both
else:
    mapped.close()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a file of shared memory will be."""
    made = FOLDER / f"orch-test-{secrets.token_hex(6)}"
    yield made
    made.unlink(missing_ok=True)


@contextlib.contextmanager
def holding(path: Path, how: str = "mapped") -> Iterator[Process]:
    """A process that makes the file, unless it is there, and has it until it is killed at the end."""
    argv = [sys.executable, "-c", HOLDER, str(path), how]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        found = process_table.process(running.pid)
        assert found is not None
        yield found
        running.send_signal(signal.SIGKILL)


def names(answer: dict[str, list[dict[str, str]]], key: str) -> list[str]:
    """Of what was removed or left."""
    return [one["name"] for one in answer[key]]


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_what_a_killed_engine_had_is_removed(tmp_path: Path, path: Path, how: str) -> None:
    """A file that came after the start and that only the engine had goes, its size is told; a second sweep is idle."""
    shared_memory.begin(str(tmp_path))
    with holding(path, how) as engine:
        shared_memory.note(str(tmp_path), [engine])
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [{"name": path.name, "size_bytes": 4096}], "left": []}
    assert not path.exists()
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": []}


def test_a_semaphore_is_known_by_its_inode(tmp_path: Path, path: Path) -> None:
    """C libraries make one under another name first, and that name is what the process has mapped."""
    shared_memory.begin(str(tmp_path))
    first = path.with_name(path.name + "-first")
    with holding(first) as engine:
        os.link(first, path)
        first.unlink()
        shared_memory.note(str(tmp_path), [engine])
    assert names(shared_memory.sweep(str(tmp_path)), "removed") == [path.name]


def test_what_nobody_saw_with_the_engine_stays(tmp_path: Path, path: Path) -> None:
    """A new file that no process of the engine had is somebody else's, whatever it is called; it is not even named."""
    shared_memory.begin(str(tmp_path))
    psm = path.with_name("psm_" + secrets.token_hex(4))
    try:
        with holding(path) as engine, holding(psm):
            shared_memory.note(str(tmp_path), [engine])
        assert names(shared_memory.sweep(str(tmp_path)), "removed") == [path.name]
        assert psm.exists()
    finally:
        psm.unlink()


def test_what_was_there_before_the_start_stays(tmp_path: Path, path: Path) -> None:
    """An engine that maps somebody's file does not own it."""
    path.write_bytes(bytes(4096))
    shared_memory.begin(str(tmp_path))
    with holding(path) as engine:
        shared_memory.note(str(tmp_path), [engine])
    why = "it was there before the engine started"
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": [{"name": path.name, "why": why}]}
    assert path.exists()


def test_what_another_process_has_stays(tmp_path: Path, path: Path) -> None:
    """While somebody has it, it is in use; when that one has gone too, it is still not provably the engine's."""
    shared_memory.begin(str(tmp_path))
    with holding(path) as other:
        with holding(path) as engine:
            shared_memory.note(str(tmp_path), [engine])
        why = f"pid {other.pid} has it"
        assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": [{"name": path.name, "why": why}]}
    why = "another process had it too"
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": [{"name": path.name, "why": why}]}
    assert path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_another_users_file_stays(tmp_path: Path, path: Path) -> None:
    """Though the engine had it."""
    shared_memory.begin(str(tmp_path))
    with holding(path) as engine:
        os.chown(path, 65534, 65534)
        shared_memory.note(str(tmp_path), [engine])
    why = "it belongs to another user"
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": [{"name": path.name, "why": why}]}


def test_another_file_of_that_name_stays(tmp_path: Path, path: Path) -> None:
    """What took the place of the engine's file was never seen with the engine."""
    shared_memory.begin(str(tmp_path))
    with holding(path) as engine:
        shared_memory.note(str(tmp_path), [engine])
        path.unlink()
        path.write_bytes(b"mine")
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": []}
    assert path.read_bytes() == b"mine"


def test_without_a_start_nothing_is_removed(tmp_path: Path, path: Path) -> None:
    """An engine that orch did not start has no record of what was there before."""
    with holding(path) as engine:
        shared_memory.note(str(tmp_path), [engine])
    assert shared_memory.sweep(str(tmp_path)) == {"removed": [], "left": []}
    assert path.exists()


def test_the_next_start_sweeps_what_was_forgotten(tmp_path: Path, path: Path) -> None:
    """An engine that died, and that nobody stopped, leaves no more than one start's memory behind."""
    shared_memory.begin(str(tmp_path))
    with holding(path) as engine:
        shared_memory.note(str(tmp_path), [engine])
    shared_memory.begin(str(tmp_path))
    assert not path.exists()


# ---- through a start and a stop of an engine

LEAKS = """
import mmap, os
VALUE = 1
descriptor = os.open({path!r}, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(descriptor, 1 << 20)
mapped = mmap.mmap(descriptor, 1 << 20)
"""


@pytest.fixture
def here(tmp_path: Path, path: Path) -> Iterator[TinyHost]:
    """A host whose engine imports a module that makes shared memory and leaves it."""
    host = TinyHost(tmp_path)
    host.deploy(LEAKS.format(path=str(path)))
    yield host
    host.close()


def started(here: TinyHost) -> tuple[Engine, EngineProcess]:
    """A started engine that answers."""
    engine = here.engine()
    process = serve.start(here.remote, engine, deployed_digest=here.digest)
    serve.wait_ready(here.remote, engine, process)
    return engine, process


@pytest.mark.slow
def test_stop_removes_it_and_says_so(here: TinyHost, path: Path) -> None:
    """One line, with size and name."""
    engine, _ = started(here)
    told: list[str] = []
    assert serve.stop(here.remote, engine, told=told.append)
    assert told == [f"removed 1 MiB of shared memory that the engine left in /dev/shm: {path.name}"]
    assert not path.exists()


@pytest.mark.slow
def test_stop_names_what_it_leaves(here: TinyHost, path: Path) -> None:
    """Shared memory that another program has too is not the engine's alone."""
    engine, _ = started(here)
    told: list[str] = []
    with holding(path) as other:
        serve.stop(here.remote, engine, told=told.append)
        assert told == [f"left in /dev/shm, not provably the engine's own: {path.name} (pid {other.pid} has it)"]
    assert path.exists()


@pytest.mark.slow
def test_what_a_dead_engine_had_is_known_from_its_proof(here: TinyHost, path: Path) -> None:
    """An engine that died under load was seen when it was proved what it loaded."""
    engine, process = started(here)
    assert provenance.prove_loaded(here.remote, engine, here.target, process, {"fast.py": here.digest}).problems == ()
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not is_alive(process.pid), "the engine has ended")
    told: list[str] = []
    assert not serve.stop(here.remote, engine, told=told.append)
    assert told[0].startswith("removed 1 MiB")
    assert not path.exists()


@pytest.mark.slow
def test_what_an_engine_had_that_died_while_it_started(here: TinyHost, path: Path) -> None:
    """It is looked at while it is awaited, every two seconds."""
    gate = here.folder / "gate"
    wait = f"import time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.02)\nraise SystemExit(1)\n"
    here.deploy(LEAKS.format(path=str(path)) + wait)
    engine = here.engine()
    process = serve.start(here.remote, engine, deployed_digest=here.digest)
    until(path.exists, "the engine made its shared memory")
    with pytest.raises(EngineDiedError):
        serve.wait_ready(here.remote, engine, process, on_wait=lambda _: gate.touch())
    told: list[str] = []
    serve.stop(here.remote, engine, told=told.append)
    assert told[0].startswith("removed 1 MiB")
    assert not path.exists()


@pytest.mark.slow
def test_the_watcher_removes_it_too(here: TinyHost, path: Path) -> None:
    """Without a controller the script that the host runs after a restore does the same."""
    engine, _ = started(here)
    script = serve.restore_script(engine, here.remote.scratch_dir())
    subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True, timeout=60)
    assert here.own_pids() == []
    assert not path.exists()
