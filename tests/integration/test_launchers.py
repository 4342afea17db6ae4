"""Engines under systemd, in a container, and restarted by a command of the user's, over a real sshd.

systemd and docker are stand-ins on the host's PATH that start and stop real processes, the container's in a real mount
namespace and the unit's in a real control group where this machine lets them be made.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_docker
from tests.support.fake_docker import FakeDocker
from tests.support.fake_systemd import FakeSystemd
from tests.support.launched import (
    MOUNTED_ENV,
    container,
    engine_argv,
    findings,
    managed,
    mounts,
    on_path,
    runs_on,
    whole_job,
)
from tests.support.ssh_project import CHECKOUT, SUPPORT, SshProject
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

UNIT = "sglang.service"


# ---- systemd


@pytest.fixture
def systemd(project: SshProject, tmp_path: Path) -> Iterator[FakeSystemd]:
    """The engine as a unit, on a host with systemd."""
    made = FakeSystemd(tmp_path / "systemd")
    made.install(UNIT, engine_argv(project), cwd=project.site, env={"PYTHONPATH": str(SUPPORT)})
    on_path(project, made.bin)
    managed(project, {"kind": "systemd", "unit": UNIT})
    yield made
    made.close()


def test_a_unit_that_ran_before_runs_again_on_the_baseline(project: SshProject, systemd: FakeSystemd) -> None:
    """The whole job under systemd: the user's own start makes way, each is proved, and the unit is up at the end."""
    before, first = project.identity(), systemd.start(UNIT)
    wait_until(project.is_serving)
    assert f"held by the engine that its launcher keeps, pid {first}" in findings(project)["engine port"]
    whole_job(project)
    assert systemd.main_pid(UNIT) == 0, "nothing serves a variant after its bench"
    reverted = project.done("revert", "--json").document
    assert reverted["engine"] == "restarted"
    assert (project.identity(), project.traces) == (before, [])
    assert systemd.main_pid(UNIT) not in (0, first)
    assert runs_on(project, "baseline")
    assert project.status()["engine"]["is_older_than_file"] is False
    assert [words[:3] for words in systemd.calls("start")] == [["systemctl", "start", "--no-block"]] * 3
    assert systemd.calls("stop")[0] == ["systemctl", "stop", UNIT]


# ---- containers


@pytest.fixture
def docker(project: SshProject, tmp_path: Path) -> Iterator[FakeDocker]:
    """A host with docker, whose containers see the kernel's package under another path."""
    if not fake_docker.can_run():
        pytest.skip("no mount namespace can be made here")
    made = FakeDocker(tmp_path / "docker")
    on_path(project, made.bin)
    yield made
    made.close()


def test_a_container_is_restarted_for_each_start(project: SshProject, docker: FakeDocker) -> None:
    """The whole job with the engine as its container: proved by what lies under its own path in its own namespace."""
    docker.create("sglang", engine_argv(project), mounts=mounts(project), env=MOUNTED_ENV, cwd="/srv/site")
    before, first = project.identity(), docker.start("sglang")
    managed(project, container())
    wait_until(project.is_serving)
    assert "kernels.fast is /srv/site/kernels/fast.py" in findings(project)["module"]
    whole_job(project)
    assert docker.pid("sglang") == 0
    proof = json.loads(project.query("select proof from trials where variant = 'V1'")[0]["proof"])
    assert proof["files"][0]["resolved_path"] == "/srv/site/kernels/fast.py"
    assert project.done("revert", "--json").document["engine"] == "restarted"
    assert (project.identity(), project.traces) == (before, [])
    assert docker.pid("sglang") not in (0, first)
    assert runs_on(project, "baseline")
    assert docker.calls("stop")[0] == ["stop", "-t", "3", "sglang"]


def test_an_engine_is_started_inside_a_container_that_runs_on(project: SshProject, docker: FakeDocker) -> None:
    """The whole job by exec: the engine has orch's environment, ends by signals, and the container never stops."""
    docker.create("sglang", ["sleep", "600"], mounts=mounts(project), env=MOUNTED_ENV, cwd="/")
    before, first = project.identity(), docker.start("sglang")
    env = {"SECRET_OF_ENGINE": "not on a command line"}
    managed(project, container(mode="exec"), command=engine_argv(project), cwd="/srv/site", env=env)
    whole_job(project)
    assert not project.is_serving()
    started, _ = (words for words in docker.calls("exec") if "-d" in words)
    assert not any("not on a command line" in word for words in docker.calls("exec") for word in words)
    assert "SECRET_OF_ENGINE" in started
    assert project.done("revert", "--json").document["engine"] == "none"
    assert (project.identity(), project.traces) == (before, [])
    assert docker.pid("sglang") == first
    assert docker.calls("stop") == []


# ---- restarted by the user


RESTART = """
pid=$(cat "$0/pid" 2>/dev/null) && kill "$pid" && while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
cd "$0"
PYTHONPATH=$1 "$2" -m serving_engine --port "$3" --module kernels.fast &
echo $! >"$0/pid"
"""


def restart_command(project: SshProject) -> list[str]:
    """A user's own script: ends the engine, starts another, and does not wait for it."""
    words = [str(project.site), str(SUPPORT), sys.executable, str(project.port)]
    return ["/bin/sh", "-c", RESTART, *words]


def restart(project: SshProject) -> None:
    """The user runs it in a session of their own; in the tests' one every other Python would be of its group."""
    null = subprocess.DEVNULL
    subprocess.run(restart_command(project), check=True, stdout=null, stderr=null, start_new_session=True)


def test_a_restart_command_is_all_that_orch_needs(project: SshProject) -> None:
    """The whole job on an engine that only its user can start: restarted, proved, and at last on the baseline again."""
    restart(project)
    wait_until(project.is_serving)
    before, first = project.identity(), project.get("/config")["pid"]
    managed(project, {"kind": "manual", "restart_command": restart_command(project)})
    whole_job(project)
    assert runs_on(project, "V1"), "it cannot be stopped without being started"
    assert project.done("revert", "--json").document["engine"] == "restarted"
    assert (project.identity(), project.traces) == (before, [])
    assert runs_on(project, "baseline")
    assert project.get("/config")["pid"] != first


def test_without_a_terminal_nothing_is_pushed(project: SshProject) -> None:
    """A user who restarts by hand has to be there: refused before the push, with the key that would do without."""
    managed(project, {"kind": "manual"})
    project.with_variants()
    before = project.identity()
    for words in (["push", "--variant", "V1"], ["bench", "--concurrency", "1"], ["run", "V1", "--concurrency", "1"]):
        ran = project.orch(*words)
        assert ran.code == 1
        assert "there is no terminal to ask at: set engines.serving.launcher.restart_command" in ran.err
    assert (project.identity(), project.traces) == (before, [])
    assert project.query("select * from trials") == []


def test_a_user_at_a_terminal_is_asked_to_restart_it(project: SshProject) -> None:
    """Asked once a start; the new listener is noticed without a word; a revert without the user says what is left."""
    restart(project)
    wait_until(project.is_serving)
    managed(project, {"kind": "manual"})
    project.with_variants()
    with at_terminal(project, "push", "--variant", "V1") as typed:
        assert typed.wait(timeout=60) == 0
    with at_terminal(project, "bench", "--concurrency", "1") as typed:
        asked = read_until(typed, "restart engine serving on gpu-a now")
        restart(project)
        rest = typed.stderr.read() if typed.stderr else ""
        assert typed.wait(timeout=60) == 0, asked + rest
    assert [row["loaded_digest"] for row in project.query("select loaded_digest from trials")] == [
        project.digest_of("V1")
    ]
    ran = project.orch("revert")
    assert ran.code == 1
    assert "fast is restored, but engine serving began before that and holds other bytes in memory" in ran.err
    assert project.digest == project.digest_of("baseline")
    assert project.status()["engine"]["is_older_than_file"] is True


@contextlib.contextmanager
def at_terminal(project: SshProject, *words: str) -> Iterator[subprocess.Popen[str]]:
    """``orch WORDS`` whose standard input is a terminal."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "orchestrator", "--inventory", str(project.inventory), *words]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        argv, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        yield running
        running.kill()
    os.close(ours)
    os.close(theirs)


def read_until(running: subprocess.Popen[str], text: str) -> str:
    """Reads its standard error up to a line; fails when it ends before."""
    assert running.stderr is not None
    seen = ""
    for line in running.stderr:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"ended without {text!r}: {seen}")
