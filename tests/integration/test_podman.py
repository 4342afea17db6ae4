"""Engines in containers of the real podman, over a real sshd: namespaces and control groups are as it makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import real_podman
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
from tests.support.real_podman import PodmanError, RealPodman
from tests.support.ssh_project import SshProject
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def why_not(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Why podman makes no container on this machine."""
    return real_podman.why_not(tmp_path_factory.mktemp("podman-trial"))


@pytest.fixture
def podman(project: SshProject, tmp_path: Path, why_not: str | None) -> Iterator[RealPodman]:
    """A host with podman."""
    if why_not is not None:
        pytest.skip(why_not)
    made = RealPodman(tmp_path / "podman")
    on_path(project, made.bin)
    yield made
    made.close()


@pytest.mark.parametrize("network", ["the host's", "its own"])
def test_podman_restarts_the_container_for_each_start(project: SshProject, podman: RealPodman, network: str) -> None:
    """The whole job: its engine is pid 1 of a pid namespace, and is proved by what lies inside its mount namespace."""
    inner = 8000 if network == "its own" else project.port
    argv = [str(inner) if word == str(project.port) else word for word in engine_argv(project)]
    argv += ["--host", "0.0.0.0"] if network == "its own" else []
    published = (project.port, inner) if network == "its own" else None
    try:
        podman.create("sglang", argv, mounts=mounts(project), env=MOUNTED_ENV, cwd="/srv/site", published=published)
        before, first = project.identity(), podman.start("sglang")
    except PodmanError as exc:
        if network == "its own":
            pytest.skip(f"podman makes no network of its own here: {exc}")
        raise
    managed(project, container(runtime="podman"))
    wait_until(project.is_serving)
    assert "kernels.fast is /srv/site/kernels/fast.py" in findings(project)["module"]
    whole_job(project)
    assert podman.pid("sglang") == 0, "nothing serves a variant after its bench"
    proof = json.loads(project.query("select proof from trials where variant = 'V1'")[0]["proof"])
    assert proof["files"][0]["resolved_path"] == "/srv/site/kernels/fast.py"
    assert project.done("revert", "--json").document["engine"] == "restarted"
    assert (project.identity(), project.traces) == (before, [])
    assert podman.pid("sglang") not in (0, first)
    assert runs_on(project, "baseline")
    assert podman.calls("stop")[0] == "stop -t 3 sglang"


def test_podman_starts_an_engine_inside_a_container_that_runs_on(project: SshProject, podman: RealPodman) -> None:
    """The whole job by exec: found by its mark across the pid namespace, ended by signals; the container stays."""
    podman.create("sglang", ["sleep", "600"], mounts=mounts(project), env=MOUNTED_ENV, cwd="/")
    before, first = project.identity(), podman.start("sglang")
    env = {"SECRET_OF_ENGINE": "not on a command line"}
    launcher = container(runtime="podman", mode="exec")
    managed(project, launcher, command=engine_argv(project), cwd="/srv/site", env=env)
    whole_job(project)
    assert not project.is_serving()
    assert not any("not on a command line" in words for words in podman.calls("exec"))
    assert project.done("revert", "--json").document["engine"] == "none"
    assert (project.identity(), project.traces) == (before, [])
    assert podman.pid("sglang") == first
    assert podman.calls("stop") == []
