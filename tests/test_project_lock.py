"""One orch of a project at a time works on a target: the lock, and what a killed orch leaves of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import project as project_file
from orchestrator.errors import LeaseHeldError
from orchestrator.project import Project
from orchestrator.records import Target
from tests.support.cli_project import CliProject, cli_project

HOLDER = """
import os, sys
from orchestrator.project import Project
project = Project.open(sys.argv[1])
with project.lock(project.inventory.targets["flash_mla"], is_required=True):
    if os.fork() == 0:
        os.read(0, 1)  # the heir lives until the test closes this
        os._exit(0)
    print(flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose target has one file."""
    with cli_project(tmp_path) as made:
        yield made


def open_project(project: CliProject) -> tuple[Project, Target]:
    """The project and its target, as a command opens them."""
    opened = Project.open(project.inventory)
    return opened, opened.inventory.targets["flash_mla"]


@contextmanager
def orphaned(project: CliProject) -> Iterator[subprocess.Popen[bytes]]:
    """An orch was killed while a child still shared its lock; the child ends once ``stdin`` is closed."""
    pipe = subprocess.PIPE
    argv = [sys.executable, "-c", HOLDER, str(project.inventory)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.wait()
        yield process


def test_the_lock_that_a_killed_orch_left_to_a_child_is_waited_for(project: CliProject) -> None:
    """A child that shared the lock delays the next orch, and does not refuse it."""
    opened, target = open_project(project)
    held: list[bool] = []

    def take() -> None:
        with opened.lock(target, is_required=True) as is_held:
            held.append(is_held)

    with orphaned(project) as heir:
        taker = threading.Thread(target=take)
        taker.start()
        assert heir.stdin is not None
        heir.stdin.close()
        taker.join()
    assert held == [True]


def test_a_child_that_keeps_the_lock_is_refused_in_the_end(
    project: CliProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait has an end; a read-only look goes on without the lock."""
    monkeypatch.setattr(project_file, "ORPHANED_LOCK_PATIENCE_S", 0.05)
    opened, target = open_project(project)
    with orphaned(project):
        with opened.lock(target, is_required=False) as is_held:
            assert not is_held
        with pytest.raises(LeaseHeldError, match=r"another orch of this project \(.* pid \d+\) is at work"):
            opened.lock(target, is_required=True).__enter__()


def test_a_living_holder_is_refused_at_once(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an orch that is at work."""
    monkeypatch.setattr(project_file, "ORPHANED_LOCK_PATIENCE_S", float("inf"))
    opened, target = open_project(project)
    with opened.lock(target, is_required=True), pytest.raises(LeaseHeldError, match="is at work"):
        opened.lock(target, is_required=True).__enter__()
