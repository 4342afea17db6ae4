"""orch is killed or interrupted in the middle of an experiment: the host is restored, and the experiment goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import pytest

from tests.support.run_project import RunProject, run_project
from tests.support.ssh_project import RunningOrch
from tests.support.waiting import wait_until
from tests.test_cli_output import event_disagreements

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PLAN = ("slow", "--concurrency", "1", "--pairs", "4", "--seed", "3")
N_KILLS = int(os.environ.get("ORCH_TEST_KILLS", "6"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[RunProject]:
    """A project with every variant."""
    with run_project(tmp_path) as made:
        yield made


def table(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict table that a run ended with."""
    found: list[dict[str, Any]] = told[-1]["analysis"]["arms"]
    return found


def await_news(project: RunProject, running: RunningOrch) -> None:
    """Returns when another event is on record, or it has ended."""
    n_before = len(project.events())
    wait_until(lambda: len(project.events()) > n_before or running.process.poll() is not None)


def killed_at_random(project: RunProject, n_kills: int, seed: int) -> tuple[int, list[str]]:
    """Kills ``run`` and then ``resume`` at random moments, until it was killed so often or has come to its end.

    Returns:
        How often it was killed, and the last event before each.
    """
    dice, words, moments = random.Random(seed), ["run", *PLAN], []
    while len(moments) < n_kills:
        running = project.begin(*words)
        await_news(project, running)
        with suppress(TimeoutExpired):
            running.process.wait(dice.uniform(0.0, 2.5))
        if running.process.poll() is not None:
            break
        running.kill()
        moments.append(project.events()[-1]["kind"])
        words = ["resume"]
    return len(moments), moments


def test_an_experiment_that_has_ended_owes_the_host_no_engine(project: RunProject) -> None:
    """kill -9 between the proof of restoration and the engine's new start: it is open still, and resume ends it."""
    running = project.begin("run", *PLAN)
    project.await_event("restored")
    running.kill()
    if project.rows("select status from experiments") == [{"status": "running"}]:
        project.run("resume")
    assert project.rows("select status from experiments") == [{"status": "decided"}]
    assert project.is_restored(n_engines=1)


def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(project: RunProject) -> None:
    """kill -9 at seeded moments: the very same verdict table, every start of the plan counted once, nothing left."""
    undisturbed = table(project.run("run", *PLAN))
    n_kills, moments = killed_at_random(project, N_KILLS, seed=5)
    if project.rows("select status from experiments where id = 2") == [{"status": "running"}]:
        resumed = project.begin("resume")
        project.await_event("look", 2)
        resumed.kill()  # while it puts the host back
        project.begin("resume").end()
    assert n_kills >= min(N_KILLS, 5), moments
    assert table(project.run("attach", "2")) == undisturbed, moments
    counted = project.rows("select i, arm from experiment_starts where experiment_id = 2 and status = 'ok' order by i")
    assert counted == project.rows("select i, arm from experiment_starts where experiment_id = 1 order by i")
    assert project.events("set-aside") == [], "a kill costs no block"
    assert project.is_restored(n_engines=1)
    assert project.rows("select * from trials where status = 'running'") == []
    assert project.rows("select * from deployments where ended_at is null") == []


def test_what_nobody_takes_up_is_restored_by_the_host(project: RunProject) -> None:
    """Killed in mid-load with the variant live. attach says what to run; when the lease is over (the test turns the
    clock on) the host is as before, without anybody; and the experiment still goes on."""
    project.hold()
    running = project.begin("run", *PLAN)
    project.await_held("slow")
    watching = project.begin("attach")
    watching.await_text("slow", name="stdout")
    running.kill()
    watched = watching.end()
    assert watched.code == 1 and "no orch is at work on experiment 1 any more: `orch resume 1` goes on" in watched.error
    refused = project.orch("run", *PLAN)
    assert refused.code == 1 and "`orch resume 1` goes on with it, `orch resume 1 --stop` ends it" in refused.error
    assert project.engines() and project.loads() and project.live.read_text() != project.before[0]
    os.utime(project.state_dir / "lease", (time.time(), time.time()))
    wait_until(lambda: project.live.read_bytes() == project.before[0] and not project.engines(), timeout_s=30.0)
    assert project.is_restored(n_engines=0)
    project.let_go()
    resumed = project.begin("resume")
    resumed.await_text("recovered", name="stdout")
    project.await_event("counted", 2)
    resumed.signal(signal.SIGTERM)
    assert resumed.end().code == 130
    assert project.is_restored(n_engines=0)


def test_an_interruption_reverts_and_the_experiment_goes_on(project: RunProject) -> None:
    """Ctrl-C in mid-load without a terminal stops at once; an edited variant is not taken up; --stop after a kill
    restores, keeps what was measured, and ends it."""
    project.hold()
    running = project.begin("run", *PLAN, "--json")
    project.await_held("slow")
    running.signal(signal.SIGINT)
    ran = running.end()
    assert ran.code == 130 and "experiment 1 is stopped, the host is as it was before: `orch resume 1`" in ran.error
    assert project.events()[-1]["kind"] == "left" and project.is_restored(n_engines=0)
    path = project.variants / "slow" / "flash_mla.py"
    planned = path.read_text()
    path.write_text(planned.replace("scale", "scales"))
    refused = project.orch("resume")
    assert refused.code == 1 and "slow was edited since experiment 1 was drawn" in refused.error
    path.write_text(planned)
    project.let_go()
    resumed = project.begin("resume")
    project.await_event("counted", 3)
    project.hold()
    project.await_held("slow")
    resumed.kill()
    project.let_go()
    stopped = project.run("resume", "--stop")
    assert (stopped[-1]["status"], stopped[-1]["reason"]) == ("stopped", "stopped by its user")
    assert stopped[-1]["analysis"]["n_blocks"] == 1
    assert project.is_restored(n_engines=1)
    assert project.orch("resume").error.startswith("orch: no experiment of flash_mla is unfinished")


def test_at_a_terminal_ctrl_c_asks(project: RunProject) -> None:
    """``f``: the start under way is finished and counts, then the host is put back. ``s``: at once. Nothing that is
    shown is wider than the terminal but the lines that tell what happened."""
    running = project.at_keyboard("run", *PLAN)
    project.await_event("start", 2)
    running.type("\x03")
    running.await_text("or stop now [s]?")
    running.type("f\n")
    assert running.end().code == 130
    assert len(project.events("counted")) == len(project.events("start"))
    assert project.is_restored(n_engines=0)
    n_counted = len(project.events("counted"))
    project.hold()
    running = project.at_keyboard("resume")
    project.await_held()
    running.type("\x03")
    running.await_text("or stop now [s]?")
    running.type("s\n")
    ran = running.end()
    assert ran.code == 130 and "experiment 1 is stopped, the host is as it was before" in ran.err
    assert len(project.events("counted")) == n_counted
    assert project.is_restored(n_engines=0)


# ---- what runs on


TWO = ("slow", "--concurrency", "1,2", "--primary", "1", "--pairs", "4", "--seed", "3")


def killed_in_mid_load(project: RunProject, request: int, *plan: str) -> dict[str, Any]:
    """Kills orch while a load of the variant stands still in a request; its trial."""
    project.hold(request, "wait")
    running = project.begin("run", *plan)
    project.await_held("slow")
    running.kill()
    assert project.engines() and project.loads(), "engine and load live on without orch"
    (trial,) = project.rows("select id, pid, start_ticks from trials where status = 'running'")
    return trial


@pytest.mark.parametrize(("concurrencies", "request_"), [("1,2", 2), ("2,1", 20)])
def test_a_load_under_way_is_taken_over(project: RunProject, concurrencies: str, request_: int) -> None:
    """kill -9 in the first or in the last load of a start: ``resume`` waits for that very load, makes the ones that
    are missing in the same engine, and the start counts, flagged. The verdict table is that of a quiet run."""
    plan = (*TWO[:2], concurrencies, *TWO[3:])
    undisturbed = table(project.run("run", *plan))
    trial = killed_in_mid_load(project, request_, *plan)
    project.done("status")
    resumed = project.begin("resume", "--json")
    project.await_event("recovered")
    project.let_go()
    ran = resumed.end()
    assert ran.code == 0, ran.err
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert event_disagreements(told) == []
    assert table(told) == undisturbed
    assert told[0]["text"].endswith("the start under way is taken over")
    (start,) = project.rows(f"select status, attempt, flags from experiment_starts where trial_id = {trial['id']}")
    assert (start["status"], start["attempt"]) == ("ok", 0)
    assert "another one took it over" in start["flags"]
    assert ("after the load before it had ended" in start["flags"]) == (request_ == 2)
    assert project.rows(
        f"select status, pid, start_ticks, digest_after = digest as is_same, proof from trials where id = {trial['id']}"
    )[0] | {"proof": ""} == {
        "status": "ok",
        "pid": trial["pid"],
        "start_ticks": trial["start_ticks"],
        "is_same": 1,
        "proof": "",
    }
    counts = project.rows(
        "select concurrency_cap as cap, count(*) as n from loads join experiment_starts using (trial_id)"
        " where experiment_id = 2 group by cap"
    )
    assert counts == [{"cap": 1, "n": 8}, {"cap": 2, "n": 8}], "no load was made twice"
    assert project.is_restored(n_engines=1)
    assert project.rows("select * from deployments where ended_at is null") == []


def test_an_edit_while_nobody_looked_is_found(project: RunProject) -> None:
    """A colleague edits the live file and takes the edit back before ``resume`` comes: the same bytes, the same
    engine. The proof after the load sees that the file is younger than the engine: the start does not count."""
    trial = killed_in_mid_load(project, 2, *PLAN)
    ours = project.live.read_text()
    project.live.write_text(ours + "# a colleague was here\n")
    project.live.write_text(ours)
    resumed = project.begin("resume")
    project.await_event("recovered")
    project.let_go()
    resumed.end()
    (start,) = project.rows(f"select status, reasons from experiment_starts where trial_id = {trial['id']}")
    assert start["status"] == "set-aside" and "changed" in start["reasons"]
    assert project.rows(f"select status from trials where id = {trial['id']}") == [{"status": "contaminated"}]


def edit_workload(project: RunProject) -> None:
    """The next load would be another one."""
    project.write_inventory(output_tokens=5)


def other_client(project: RunProject) -> None:
    """What runs there is not the client of this orch."""
    (client,) = project.scratch.glob("runs/*/loadgen.py")
    client.write_bytes(client.read_bytes() + b"# another version\n")


@pytest.mark.parametrize(
    ("disturb", "why"),
    [
        (RunProject.kill_engine, "its engine is gone"),
        (edit_workload, "workload short was changed since"),
        (other_client, "its load is not the one that this orch would make"),
    ],
)
def test_what_is_not_the_same_any_more_is_made_again(project: RunProject, disturb: Any, why: str) -> None:
    """Told why; the start is made again, and the one under way never counts."""
    trial = killed_in_mid_load(project, 2, *PLAN)
    disturb(project)
    project.let_go()
    resumed = project.begin("resume")
    project.await_event("recovered")
    project.await_event("start", 2)
    resumed.kill()
    (event,) = project.events("recovered")
    assert event["text"].endswith(f"the start under way is made again, {why}")
    (start,) = project.rows(f"select status from experiment_starts where trial_id = {trial['id']}")
    assert start == {"status": "failed"}
    assert project.rows(f"select status from trials where id = {trial['id']}") == [{"status": "failed"}]
    project.done("resume", "--stop")
    assert project.is_restored(n_engines=1)
