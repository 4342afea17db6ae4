"""Whole experiments on an engine whose truth is known: what is found, what is told, attaching, the lease."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_project import RunProject, run_project
from tests.support.ssh_project import RunningOrch
from tests.support.waiting import wait_until
from tests.test_cli_output import disagreements, documented, event_disagreements

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[RunProject]:
    """A project with every variant."""
    with run_project(tmp_path) as made:
        yield made


def lines(running: RunningOrch) -> list[dict[str, Any]]:
    """What it printed so far; every line must be JSON."""
    return [json.loads(line) for line in running.text("stdout").splitlines()]


def test_planted_effects_are_found(project: RunProject) -> None:
    """3 % slower, 3 % faster and not at all, in one experiment with shared blocks; another orch watches it from begin
    to end and tells the same; a second one may neither run nor resume meanwhile."""
    plan = ("slow", "fast", "same", "--concurrency", "2,1", "--pairs", "4", "--seed", "3")
    dry = project.run("run", *plan, "--dry-run")
    assert [line["event"] for line in dry] == ["result"] and not project.events()
    running = project.begin("run", *plan, "--json", "--exit-code")
    project.await_event("start")
    watching = project.begin("attach", "--json")
    for words in (["run", "fast", "--concurrency", "1"], ["resume"]):
        refused = project.orch(*words)
        assert refused.code == 1 and "is at work on flash_mla" in refused.error
    ran = running.end()
    assert ran.code == 3, ran.err  # not every variant ships
    told = lines(running)
    assert told[0]["plan"] == dry[0]["plan"], "the plan that was shown is the plan that ran"
    starts = [(line["arm"], line["block"]) for line in told if line["event"] == "start"]
    assert starts == [(start["arm"], start["block"]) for start in dry[0]["plan"]["starts"]]
    found = {arm["arm"]: arm for arm in told[-1]["analysis"]["arms"]}
    words = {name: [row["verdict"] for row in arm["rows"]] for name, arm in found.items()}
    assert words == {"slow": ["SLOWER"] * 2, "fast": ["FASTER"] * 2, "same": ["EQUIVALENT"] * 2}
    assert {name: arm["ships"] for name, arm in found.items()} == {"slow": False, "fast": True, "same": False}
    assert found["slow"]["rows"][0]["estimate"]["ratio"] == pytest.approx(1 / 1.03, abs=0.005)
    watched = watching.end()
    assert watched.code == 0, watched.err
    assert lines(watching) == told, "attach tells every event once, and the same result"
    assert project.is_restored(n_engines=1)
    assert event_disagreements(told) == []
    dry_example = {**documented()["orch run --dry-run"], "plan": documented()["orch report"]["plan"]}
    assert disagreements(dry[0], dry_example) == []
    assert disagreements(project.done("plan", "--json").document, documented()["orch plan"]) == []
    assert disagreements(project.done("report", "--json").document, documented()["orch report"]) == []
    again = project.orch("resume", "1")
    assert again.code == 1 and "experiment 1 has ended: it is decided" in again.error
    assert lines(project_attach(project)) == told, "attaching to one that has ended tells all of it too"


def project_attach(project: RunProject) -> RunningOrch:
    """``orch attach 1 --json``, ended."""
    running = project.begin("attach", "1", "--json")
    assert running.end().code == 0
    return running


def test_the_baseline_against_itself_does_not_differ(project: RunProject) -> None:
    """An A/A experiment of a quiet host: EQUIVALENT, and nothing but the baseline was ever started."""
    told = project.run("run", "--aa", "--concurrency", "1", "--pairs", "4", "--seed", "11")
    (arm,) = told[-1]["analysis"]["arms"]
    assert (arm["arm"], arm["rows"][0]["verdict"]) == ("baseline-again", "EQUIVALENT")
    assert project.rows("select distinct variant from trials") == [{"variant": "baseline"}]
    assert project.is_restored(n_engines=1)


def test_the_lease_is_held_from_the_first_start_to_the_last(project: RunProject, tmp_path: Path) -> None:
    """Between any two starts somebody else's push is refused, and nobody but the foreign project notices."""
    elsewhere = RunProject(tmp_path / "elsewhere")
    elsewhere.folder.mkdir(parents=True)
    project.write_inventory(project_folder=elsewhere.folder)
    elsewhere.done("pull")
    elsewhere.done("variant", "new", "V9", "--set", "num_stages=9")
    running = project.begin("run", "same", "--concurrency", "1", "--pairs", "4", "--seed", "3", "--json")
    project.await_event("start")
    project.await_event("counted")
    gaps = []

    def has_looked() -> bool:
        if not (project.state_dir / "lease").exists():
            gaps.append(project.events()[-1]["kind"])
        return bool(project.events("look"))

    for _ in range(3):
        refused = elsewhere.orch("push", "--variant", "V9")
        assert refused.code == 1 and "holds flash_mla" in refused.error
    wait_until(has_looked, timeout_s=60.0)
    ran = running.end()
    assert ran.code == 0, ran.err
    assert set(gaps) <= {"look"}, "it was given back with the host, after the last look"
    assert not project.events("set-aside")
    assert project.is_restored(n_engines=1)
