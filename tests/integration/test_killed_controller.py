"""kill -9 of orch at every kind of moment: status tells what is there, revert mends it, and else the host does."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.ssh_project import SshProject, pids
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

goes_on = pytest.mark.parametrize("host_goes_on", [True, False], ids=["host-goes-on", "host-stops-too"])


def kill_at(project: SshProject, step: str, *words: str, host_goes_on: bool) -> None:
    """Starts ``orch WORDS``, kills it -9 while the host's agent stands at a step, then lets the agent finish or die."""
    project.host.set_fault("STOP", step)
    running = project.begin(*words)
    agent = project.host.await_stopped_agent()
    running.kill()
    if host_goes_on:
        project.host.let_go()
    else:
        project.host.end_stopped()
    wait_until(lambda: agent not in pids())


def is_told(project: SshProject) -> dict[str, object]:
    """``orch status`` names what really is live and whose lease there is."""
    names = {project.digest_of(name): name for name in ("baseline", "V1", "V2")}
    now = project.status()
    assert now["digest"] == project.digest
    assert now["name"] == names[project.digest]
    has_lease = (project.state_dir / "lease").exists()
    assert (now["lease"] is not None) == has_lease
    assert not has_lease or now["lease"]["is_ours"], "the project's own lease, though its controller is gone"
    return now


def is_mended(project: SshProject, before: tuple[object, ...]) -> None:
    """The host is as at the start and nothing of it runs; no row is open; the next push and revert work."""
    wait_until(lambda: project.host_pids() == [])
    assert (project.identity(), project.traces) == (before, [])
    assert project.query("select * from deployments where ended_at is null") == []
    assert project.query("select * from trials where status = 'running' or ended_at is null") == []
    project.done("push", "--variant", "V2")
    assert project.digest == project.digest_of("V2")
    project.done("revert")
    assert (project.identity(), project.traces) == (before, [])


# ---- push and revert


@goes_on
@pytest.mark.parametrize("step", ["transfer", "journal", "rename"])
def test_a_push_killed_with_its_orch_is_told_and_reverted(project: SshProject, step: str, host_goes_on: bool) -> None:
    """After the transfer, the journal entry, the rename: the host finishes the push by itself, or dies as well."""
    before = project.identity()
    project.with_variants()
    kill_at(project, step, "push", "--variant", "V1", host_goes_on=host_goes_on)
    arrived = host_goes_on or step == "rename"
    assert project.digest == project.digest_of("V1" if arrived else "baseline")
    is_told(project)
    (deployment,) = project.query("select status from deployments")
    assert (deployment["status"] == "pushed") == arrived
    project.done("revert")
    is_mended(project, before)


@goes_on
@pytest.mark.parametrize("step", ["restore-link", "restore-verify"])
def test_a_revert_killed_with_its_orch_is_told_and_repeated(project: SshProject, step: str, host_goes_on: bool) -> None:
    """Before and after the file is put back: the next revert finishes it."""
    before = project.identity()
    project.pushed("V1")
    kill_at(project, step, "revert", host_goes_on=host_goes_on)
    is_told(project)
    project.done("revert")
    is_mended(project, before)


def test_a_killed_push_can_be_pushed_again_without_a_revert(project: SshProject) -> None:
    """The lease that it left is the project's own: another variant goes over it, and revert restores."""
    before = project.identity()
    project.with_variants()
    kill_at(project, "journal", "push", "--variant", "V1", host_goes_on=False)
    project.done("push", "--variant", "V2")
    assert project.digest == project.digest_of("V2")
    assert is_told(project)["name"] == "V2"
    project.done("revert")
    is_mended(project, before)


def test_a_second_push_killed_at_its_journal_leaves_the_first_live(project: SshProject) -> None:
    """V1 is live and V2 never arrived: status says so, V1 can be measured, V2 pushed again, all reverted."""
    before = project.identity()
    project.pushed("V1")
    kill_at(project, "journal", "push", "--variant", "V2", host_goes_on=False)
    assert is_told(project)["name"] == "V1"
    assert [row["status"] for row in project.query("select status from deployments")] == ["pushed", "failed"]
    assert not project.done("drift", "--json").document["now"]["is_unexpected"]
    measured = project.done("bench", "--concurrency", "1", "--json").document
    assert (measured["arm"], measured["loaded_digest"]) == ("V1", project.digest_of("V1"))
    project.done("push", "--variant", "V2")
    assert project.digest == project.digest_of("V2")
    project.done("revert")
    is_mended(project, before)


# ---- load


def killed_in_the_load(project: SshProject, variant: str | None) -> None:
    """Pushes the variant, if any, starts a bench, and kills it -9 while the engine holds back a request."""
    project.write_inventory("--hold-file", str(project.hold_file))
    project.with_variants()
    if variant is not None:
        project.done("push", "--variant", variant)
    project.hold_file.touch()
    bench = project.begin("bench", "--concurrency", "2")
    project.await_held_load()
    bench.kill()
    assert project.named_pids(b"loadgen.py") and project.named_pids(b"serving_engine")


@pytest.mark.parametrize("variant", [None, "V1"])
def test_a_bench_killed_in_its_load_is_told_and_reverted(project: SshProject, variant: str | None) -> None:
    """Engine and load live on: status names them, revert ends both, and the trial is no good one."""
    before = project.identity()
    killed_in_the_load(project, variant)
    now = is_told(project)
    assert now["name"] == (variant or "baseline")
    assert now["engine"]["pid"] == project.get("/config")["pid"]
    assert not now["engine"]["is_older_than_file"]
    assert [row["status"] for row in project.query("select status from trials")] == ["failed"]
    assert "was stopped" in project.done("revert").out
    is_mended(project, before)
    assert project.query("select * from results where status = 'ok'") == []


@pytest.mark.parametrize("variant", [None, "V1"])
def test_a_killed_bench_can_be_repeated_at_once(project: SshProject, variant: str | None) -> None:
    """What it left running is ended first, and cannot disturb the new numbers."""
    before = project.identity()
    killed_in_the_load(project, variant)
    left = project.get("/config")["pid"]
    project.hold_file.unlink()
    measured = project.done("bench", "--concurrency", "1", "--json").document
    assert (measured["arm"], measured["status"]) == (variant or "baseline", "ok")
    assert left not in pids()
    trials = project.query("select status from trials order by id")
    assert [row["status"] for row in trials] == ["failed", "ok"]
    project.done("revert")
    is_mended(project, before)


# ---- nobody comes back


def is_restored_by_the_host(project: SshProject, before: tuple[object, ...]) -> None:
    """Without any command: the file, the engine and every trace; then status finishes the record."""
    wait_until(lambda: project.traces == [] and project.host_pids() == [], timeout_s=30.0)
    assert project.identity() == before
    now = project.status()
    assert (now["name"], now["is_clean"], now["lease"], now["engine"]) == ("baseline", True, None, None)
    assert project.query("select * from deployments where ended_at is null") == []
    refused = project.orch("compare", "V1")
    assert refused.code == 1


@pytest.mark.slow
def test_a_push_that_nobody_renews_is_undone_by_the_host(project: SshProject) -> None:
    """The time to live is over: the host restores the file and stops the engine, which holds other bytes by then."""
    before = project.identity()
    project.with_variants()
    project.done("bench", "--concurrency", "1", "--keep-running")
    push = project.begin("push", "--variant", "V1", "--ttl", "2")
    assert push.end().code == 0
    assert project.digest == project.digest_of("V1") and project.is_serving()
    is_restored_by_the_host(project, before)


@pytest.mark.slow
def test_a_killed_bench_that_nobody_looks_after_is_undone_by_the_host(project: SshProject) -> None:
    """Its lease is over (the test turns the clock on): file, engine and load client are dealt with by the host."""
    before = project.identity()
    killed_in_the_load(project, "V1")
    now_s = time.time()
    os.utime(project.state_dir / "lease", (now_s, now_s))
    is_restored_by_the_host(project, before)
    (trial,) = project.query("select status, reasons from trials")
    assert trial["status"] == "failed" and "gone before the end" in trial["reasons"]
