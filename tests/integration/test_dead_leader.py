"""An engine whose first process was killed: what is left of it holds the variant in memory, and serves on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_project import CliProject
from tests.support.tiny_host import is_alive, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose engine is a worker, started by a leader that waits for it."""
    made = CliProject(tmp_path)
    made.make()
    before = f'command: ["{sys.executable}", '
    text = made.inventory.read_text()
    assert before in text
    leader = """command: [/bin/sh, -c, '"$0" "$@" & wait', """
    made.inventory.write_text(text.replace(before, f'{leader}"{sys.executable}", '))
    yield made
    made.close()


def test_revert_ends_the_workers_of_a_dead_leader(project: CliProject) -> None:
    """It says that the engine was stopped, and nothing of it is left."""
    project.with_variant("V1").done("push", "--variant", "V1")
    project.done("bench", "--concurrency", "1", "--keep-running")
    (leader,) = (row["pid"] for row in project.query("select pid from trials"))
    os.kill(leader, signal.SIGKILL)
    until(lambda: not is_alive(leader), "the leader has ended")
    engine = f"--port\0{project.port}\0".encode()
    assert [pid for pid in project._pids() if engine in Path(f"/proc/{pid}/cmdline").read_bytes()]
    ran = project.done("revert", "--json")
    assert ran.document["engine"] == "stopped"
    assert project._pids() == []
