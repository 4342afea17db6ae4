"""What goes wrong inside an experiment: a dead engine, a stalled request, a colleague's edit, a bad variant."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.run_project import RunProject, run_project
from tests.support.waiting import wait_until
from tests.test_cli_output import event_disagreements

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EDIT = "# a colleague was here\n"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[RunProject]:
    """A project whose client gives a request up after four seconds."""
    with run_project(tmp_path, request_timeout_s=4.0) as made:
        yield made


def reasons(project: RunProject) -> list[str]:
    """Why starts were set aside, each with the arm, in their order."""
    return [f"{event['arm']}: {'; '.join(event['reasons'])}" for event in project.events("set-aside")]


def test_bad_starts_are_made_again_and_the_verdict_is_the_same(project: RunProject) -> None:
    """A request that stalls, an engine that is killed in mid-load, an edit that is taken back: three blocks are made
    again, visibly, and what is found is what there is."""
    plan = ("slow", "--concurrency", "1", "--pairs", "4", "--seed", "3")
    project.hold()
    running = project.begin("run", *plan, "--json")
    project.await_event("set-aside", 1)
    project.await_held()
    project.kill_engine()
    project.await_event("set-aside", 2)
    project.await_held("slow")
    ours = project.live.read_text()
    project.live.write_text(ours + EDIT)
    project.let_go()
    project.await_event("set-aside", 3)
    ran = running.end()
    assert ran.code == 1 and "somebody else changed the live file" in ran.error
    assert f"+{EDIT.strip()}" in "\n".join(ran.evidence)
    assert "`orch resume 1` goes on with the experiment, with --stop it ends it" in ran.error
    assert project.live.read_text() == ours + EDIT, "it is not overwritten, not even to put the host back"
    (left,) = project.events("left")
    assert not left["is_restored"] and (project.engines(), project.loads()) == ([], [])
    project.live.write_text(ours)
    told = project.run("resume")
    assert event_disagreements([json.loads(line) for line in ran.out.splitlines()] + told) == []
    stalled, killed, edited = reasons(project)
    assert "1 of 8 requests failed" in stalled
    assert "died under load" in killed
    assert "the live file changed under load" in edited and edited.startswith("slow")
    (arm,) = told[-1]["analysis"]["arms"]
    assert arm["rows"][0]["verdict"] == "SLOWER"
    lost = project.rows("select status, reasons from experiment_starts where status in ('set-aside', 'failed')")
    assert len(lost) >= 3 and all(row["reasons"] != "[]" for row in lost)
    n_ok = project.rows("select count(*) as n from experiment_starts where status = 'ok'")
    assert n_ok == [{"n": 8}] and project.is_restored(n_engines=1)


def test_a_load_that_outlives_the_lease_never_counts(project: RunProject) -> None:
    """orch is away in mid-load for longer than the lease (the test turns the clock on): the host restores the file
    under the running load and stops the engine. Back again, orch sees it: the start is set aside, and made again."""
    project.hold(fault="wait")
    running = project.begin("run", "slow", "--concurrency", "1", "--pairs", "4", "--seed", "3", "--json")
    project.await_held("slow")
    running.signal(signal.SIGSTOP)
    os.utime(project.state_dir / "lease", (time.time(), time.time()))
    wait_until(lambda: project.live.read_bytes() == project.before[0] and not project.engines(), timeout_s=30.0)
    project.let_go()
    running.signal(signal.SIGCONT)
    ran = running.end()
    assert ran.code == 0, ran.err
    (lost,) = reasons(project)
    assert lost.startswith("slow") and "lease" in lost
    assert [row["status"] for row in project.rows("select status from trials where variant = 'slow' order by id")] == [
        "failed",
        *(["ok"] * 4),
    ]
    assert project.rows("select count(*) as n from experiment_starts where status = 'ok'") == [{"n": 8}]
    (arm,) = json.loads(ran.out.splitlines()[-1])["analysis"]["arms"]
    assert arm["rows"][0]["verdict"] == "SLOWER"
    assert project.is_restored(n_engines=1)


def test_an_edit_of_the_baseline_ends_it_and_frees_the_host(project: RunProject) -> None:
    """Somebody edits the file while the baseline is measured: their edit stays, nobody holds the host any more, and
    the experiment can be ended or, once the edit is gone, go on."""
    project.hold()
    running = project.begin("run", "--aa", "--concurrency", "1", "--pairs", "4", "--seed", "3")
    project.await_held()
    project.live.write_text(project.live.read_text() + EDIT)
    project.let_go()
    ran = running.end()
    assert ran.code == 1 and "somebody else changed the live file" in ran.error
    assert project.live.read_text().endswith(EDIT)
    assert not project.state_dir.exists() and project.engines() == []
    ended = project.orch("resume", "--stop")
    assert ended.code == 1 and "somebody else's edit, left alone" in ended.error
    project.live.write_text(project.live.read_text().removesuffix(EDIT))
    stopped = project.done("resume", "--stop")
    assert "experiment 1 is stopped by its user" in stopped.out and "no block was completed" in stopped.out


def test_a_broken_and_an_odd_variant_end_it(project: RunProject) -> None:
    """One whose engine does not start costs two starts, one that computes other words is found out once the baseline
    was seen twice: both end the experiment as failed, with the reason, exit code 1, and a restored host."""
    ran = project.begin("run", "broken", "--concurrency", "1", "--pairs", "4", "--seed", "3").end()
    assert ran.code == 1 and "failed: broken failed 2 times in a row" in ran.out
    assert "no kernel image is available" in ran.out, "the end of the engine's log is shown"
    assert project.is_restored(n_engines=1)
    ran = project.begin("run", "odd", "--concurrency", "1", "--pairs", "4", "--seed", "3").end()
    assert ran.code == 1 and "failed: odd gives other texts than the baseline: its output is wrong" in ran.out
    assert project.rows("select count(*) as n from trials where variant = 'odd'")[0]["n"] <= 3
    assert project.is_restored(n_engines=1)
    statuses = project.rows("select status, stop_reason from experiments order by id")
    assert [row["status"] for row in statuses] == ["failed", "failed"]
