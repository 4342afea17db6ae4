"""``orch run``, ``resume`` and ``attach`` before and after the experiment: what is refused, shown and returned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.output import Output
from orchestrator.cli.run import print_event, told
from orchestrator.designs import ExperimentRecord
from orchestrator.errors import RevertError, VariantError
from orchestrator.experiment import check, run
from orchestrator.experiment.run import Outcome
from orchestrator.store import RecordedEvent, Store
from tests.support import experiment_records as make
from tests.support.cli_project import CliProject, cli_project

PLAN = ("V2", "--concurrency", "1,2", "--seed", "3")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with a baseline and V2."""
    with cli_project(tmp_path) as made:
        yield made.with_variant("V2")


@pytest.fixture
def conducted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The experiments that came as far as their first start; no start is made."""
    numbers: list[int] = []

    def conduct(session: Any, number: int, emit: Any, **options: Any) -> run.Outcome:
        numbers.append(number)
        session.store.begin_experiment(number)
        session.store.end_experiment(number, "exhausted", "of nothing")
        return run.Outcome(session.store.experiment(number), None)

    monkeypatch.setattr(run, "conduct", conduct)
    return numbers


# ---- the plan


def test_a_dry_run_stores_and_starts_nothing(project: CliProject, conducted: list[int]) -> None:
    """It shows order, looks and cost, and the seed with which the very same plan runs."""
    before = project.db.read_bytes()
    ran = project.done("run", *PLAN, "--dry-run")
    assert (project.db.read_bytes(), conducted) == (before, [])
    assert "looks    at 6 (p < 0.0114), 8 (p < 0.0217), 10 (p < 0.0345) pairs; 5 % overall" in ran.out
    assert re.search(r"^order    (AB BA|BA AB)( AB BA| BA AB){4}  \(seed 3\)\n +A = baseline, B = V2$", ran.out, re.M)
    assert "--seed 3 instead of --dry-run" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    dry = json.loads(project.done("run", *PLAN, "--dry-run", "--json").out)
    project.done("run", *PLAN)
    with Store.open_read_only(project.db) as store:
        plan = store.experiment(1).plan
    assert [start["arm"] for start in dry["plan"]["starts"]] == [start.arm for start in plan.starts]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--concurrency", "1"], 2, "no variant is named: name variants, or give --aa alone"),
        (["V2", "--aa", "--concurrency", "1"], 2, "--aa compares the baseline with itself"),
        (["V2", "--concurrency", "1,2", "--primary", "4"], 2, "the primary concurrency 4 among 1, 2"),
        (["V2", "--concurrency", "1", "--pairs", "6,x"], 2, "'6,x' is not numbers of pairs such as 6,8,10"),
        (["V2", "--concurrency", "1", "--pairs", "3"], 2, "rising even numbers from 4"),
        (["V2", "--concurrency", "1", "--margin", "60%"], 2, "'60%' is not a margin such as 1%"),
        (["V2", "--concurrency", "1", "--metric", "n_ok"], 2, "cannot be judged"),
        (["V7", "--concurrency", "1"], 2, "has no variant 'V7'"),
    ],
)
def test_what_makes_no_experiment_is_refused(project: CliProject, words: list[str], code: int, complaint: str) -> None:
    """In one line, before the host is asked anything, and nothing is stored."""
    ran = project.orch("run", *words)
    assert (ran.code, ran.out) == (code, "") and complaint in ran.error
    assert "connect" not in ran.err
    assert project.orch("history").out.startswith("no experiment") or project.query("select * from experiments") == []


def test_an_unfinished_experiment_comes_first(project: CliProject, conducted: list[int]) -> None:
    """Refused with what to run; ended with --stop, the next one begins."""
    project.done("run", *PLAN)
    with Store.open(project.db) as store:
        store.create_experiment(store.experiment(1).plan)
    ran = project.orch("run", *PLAN)
    assert ran.code == 1
    assert "`orch resume 2` goes on with it, `orch resume 2 --stop` ends it" in ran.error
    project.done("resume", "2")
    project.done("run", *PLAN)
    assert conducted == [1, 2, 3]


def test_a_host_that_is_not_as_recorded_is_refused_before_the_plan_is_stored(
    project: CliProject, conducted: list[int]
) -> None:
    """A colleague's edit: no experiment is left behind that would have to be ended first."""
    project.live.write_text(project.live.read_text() + "# a colleague was here\n")
    ran = project.orch("run", *PLAN)
    assert ran.code == 1 and "somebody else changed the live file" in ran.error
    assert project.query("select * from experiments") == [] and conducted == []


def test_a_variant_that_cannot_launch_is_refused_unless_forced(
    project: CliProject, conducted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check's verdict comes before any GPU time."""

    class Refused(check.Attempt):
        refusal = VariantError("V2 needs 120 KiB of shared memory, the GPU has 99; nothing was pushed")  # type: ignore[assignment]
        verdict = True  # type: ignore[assignment]

    monkeypatch.setattr(check, "check_if_possible", lambda *_: Refused(None))
    ran = project.orch("run", *PLAN)
    assert ran.code == 4 and "V2 needs 120 KiB" in ran.error
    assert project.query("select * from experiments") == [] and conducted == []
    project.done("run", *PLAN, "--force")
    assert conducted == [1]


# ---- which experiment is meant


def test_there_must_be_one_to_resume_or_watch(project: CliProject) -> None:
    """Without an unfinished one, with a number that is not there, and with the wrong target: one line each."""
    for command in ("resume", "attach"):
        assert "no experiment of flash_mla is unfinished: see `orch history`" in project.orch(command).error
        assert "there is no experiment 9 in the record" in project.orch(command, "9").error


# ---- what is told


def ended(status: Any, reason: str | None = None) -> ExperimentRecord:
    """An experiment that is over."""
    return ExperimentRecord(7, make.plan(), status, "2026-01-01", "2026-01-02", reason, ())


@pytest.mark.parametrize(
    ("status", "ships", "plain", "asked"),
    [
        ("decided", True, 0, 0),
        ("decided", False, 0, 3),
        ("exhausted", None, 0, 3),
        ("stopped", None, 0, 3),
        ("failed", None, 1, 1),
    ],
)
def test_the_exit_code_is_the_verdict_only_when_asked(status: str, ships: Any, plain: int, asked: int) -> None:
    """0, or 1 for one that failed; with --exit-code 3 unless every variant ships."""
    analysis = make.analysis(ships=ships)
    assert told(Output(), Outcome(ended(status), analysis), wants_code=False) == plain
    assert told(Output(), Outcome(ended(status), analysis), wants_code=True) == asked
    assert told(Output(), Outcome(ended("exhausted"), None), wants_code=True) == 3


def test_a_node_that_is_not_proved_restored_ends_it_loudly(capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is printed first, and then the error that makes the exit code 5."""
    trouble = RevertError("not proved to be restored, for it is out of reach: cluster/n2")
    with pytest.raises(RevertError) as caught:
        told(Output(), Outcome(ended("decided"), make.analysis(), trouble), wants_code=False)
    assert caught.value is trouble
    assert "verdict" in capsys.readouterr().out


def test_the_end_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads table, reason and where the report is; a program one line with the result."""
    told(Output(), Outcome(ended("failed", "V2 failed 2 times in a row"), make.analysis()), wants_code=False)
    out = capsys.readouterr().out
    assert "failed: V2 failed 2 times in a row" in out and "`orch report 7 --html report.html`" in out
    told(Output(is_json=True), Outcome(ended("failed", "V2 failed 2 times in a row"), None), wants_code=False)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["event"], found["status"], found["analysis"]) == ("result", "failed", None)


def test_an_event_is_one_line_with_what_proves_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The kind in its column, the text, flags and evidence below; with --json one line, also of a long log."""
    detail = {"flags": ["outlying; kept"], "evidence": ["Traceback", "RuntimeError: no kernel image"]}
    event = RecordedEvent(1, 7, "2026-01-01T00:00:00+00:00", "set-aside", "V2, block 2: died", detail)
    print_event(Output(), event)
    assert capsys.readouterr().out.splitlines() == [
        "set-aside  V2, block 2: died",
        "           outlying; kept",
        "           Traceback",
        "           RuntimeError: no kernel image",
    ]
    print_event(Output(is_json=True), replace(event, detail={"evidence": ["line"] * 500}))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["text"] == "V2, block 2: died"
