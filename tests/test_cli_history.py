"""``orch history`` and the speed in ``orch drift``: what the record shows of experiments and of the baseline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.designs import Arm
from orchestrator.records import digest_of
from orchestrator.store import Store
from tests.support import experiment_records as design
from tests.support.cli_project import KERNEL, CliProject, cli_project
from tests.support.store_records import environment
from tests.test_cli_output import disagreements, documented

BASE = digest_of(KERNEL.encode())


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with a baseline on record."""
    with cli_project(tmp_path) as made:
        yield made.pulled()


def record_experiments(project: CliProject) -> None:
    """One with a variant that ships and one that was rejected, then one that was stopped before any analysis."""
    v3 = Arm("V3", "sha256:3", "smaller tiles")
    plan = design.plan(target="flash_mla", host="here", arms=(design.BASELINE, design.V2, v3))
    with Store.open(project.db) as store:
        whole = store.create_experiment(plan)
        store.begin_experiment(whole)
        shipped = design.analysis()
        rejected = design.analysis("SLOWER", ships=False, why="slower at 64 by 3.0 %", arm=v3, ratio=0.97)
        both = replace(shipped, arms=(*shipped.arms, *rejected.arms))
        store.record_analysis(whole, both, {})
        store.end_experiment(whole, "decided", "decided at look 1")
        stopped = store.create_experiment(design.plan(target="flash_mla", host="here", is_aa=True, hypothesis=""))
        store.end_start(store.experiment(stopped).starts[0].id, "failed", ["died"])
        store.end_experiment(stopped, "stopped", "Ctrl-C")


def test_history_without_experiments_says_what_to_run(project: CliProject) -> None:
    """Nothing yet is an answer, with the command that makes something; an unknown target is named."""
    out = project.done("history").out
    assert out.startswith("no experiment is on record\nnext: ") and "`orch run " in out
    assert "no experiment on flash_mla is on record" in project.done("history", "flash_mla").out
    assert project.done("history", "--json").document == {"experiments": []}
    ran = project.orch("history", "flash")
    assert ran.code == 2 and "flash_mla" in ran.error


def test_history_shows_what_did_not_work_as_well(project: CliProject) -> None:
    """Each variant has its verdict, effect with interval and n, decision, and why; newest experiment first."""
    record_experiments(project)
    lines = [line.strip() for line in project.done("history").out.splitlines()]
    heads = [line for line in lines if line.startswith("experiment ")]
    assert [re.sub(r", 20\S+,", ",", head) for head in heads] == [
        "experiment 2, flash_mla on here: stopped",
        "experiment 1, flash_mla on here: decided",
    ]
    whole = lines[lines.index(heads[1]) :]
    assert whole[1:8] == [
        "output_tokens_per_s at concurrency 64, higher is better; 0 good starts",
        "hypothesis: “more warps” hide latency",
        "V2: FASTER, ratio 1.0200 [1.0150, 1.0250], 6 pairs, ships",
        "hypothesis: more warps hide latency",
        "why: faster at 64, not worse anywhere",
        "V3: SLOWER, ratio 0.9700 [0.9650, 0.9750], 6 pairs, rejected",
        "hypothesis: smaller tiles",
    ]
    assert whole[8] == "why: slower at 64 by 3.0 %"
    stopped = lines[: lines.index(heads[1])]
    assert "output_tokens_per_s at concurrency 64, higher is better; 0 good starts, 1 set aside or failed" in stopped
    assert "V2: no verdict, the baseline against itself" in stopped and "why: Ctrl-C" in stopped


def test_history_in_json_has_the_documented_keys(project: CliProject) -> None:
    """The document is as docs/json.md says, and holds what the text shows; what there is not is null."""
    record_experiments(project)
    document = project.done("history", "--json").document
    assert disagreements(document, documented()["orch history"]) == []
    stopped, whole = document["experiments"]
    assert [(one["arm"], one["verdict"], one["ships"], one["n_pairs"]) for one in whole["variants"]] == [
        ("V2", "FASTER", True, 6),
        ("V3", "SLOWER", False, 6),
    ]
    assert (stopped["status"], stopped["stop_reason"], stopped["hypothesis"]) == ("stopped", "Ctrl-C", None)
    assert (stopped["variants"][0]["verdict"], stopped["variants"][0]["ratio"]) == (None, None)


# ---- drift of speed


def record_days(project: CliProject, levels: list[float], **facts: str) -> None:
    """A good start of the baseline a day, at two concurrencies; from the first other level on with these facts."""
    for day, level in enumerate(levels):
        known = environment(**facts) if level != levels[0] else None
        values = {1: level + day * 0.001, 64: 1000.0 + (day * 7) % 10}
        project.record_start("baseline", BASE, values, at=f"2026-01-{day + 1:02d}T12:00:00+00:00", facts=known)


def speed_of(project: CliProject) -> Any:
    """What the record says of the baseline's speed."""
    document = project.done("drift", "--offline", "--json").document
    assert disagreements(document["speed"], documented()["orch drift"]["speed"]) == []
    return document["speed"]


def test_drift_shows_where_the_baseline_became_slower(project: CliProject) -> None:
    """The change is marked at its day and concurrency, with both levels, and that the driver changed with it."""
    record_days(project, [100.0] * 8 + [90.0] * 8, driver_version="560.01")
    out = project.done("drift", "--offline").out
    assert "speed of the baseline: 1 change of output_tokens_per_s [tok/s]" in out
    (row,) = [line for line in out.splitlines() if line.startswith("2026-01-09T12:00") and "8+8" in line]
    assert re.split(r"\s{2,}", row)[1:] == ["short", "1", "100.0", "90.0", "0.900", "0.900–0.900", "8+8", "changed too"]
    shifted, calm = speed_of(project)["series"]
    assert (shifted["concurrency"], shifted["n_starts"], calm["concurrency"], calm["changes"]) == (1, 16, 64, [])
    (change,) = shifted["changes"]
    assert (change["at"], change["n_before"], change["is_environment_changed"]) == (
        "2026-01-09T12:00:00+00:00",
        8,
        True,
    )
    assert change["ratio"] == pytest.approx(0.9, abs=1e-3)


def test_drift_of_a_steady_baseline(project: CliProject) -> None:
    """Calm is said with the number of starts it rests on."""
    record_days(project, [100.0, 101.0] * 8)
    out = project.done("drift", "--offline").out
    assert "speed of the baseline: no change in 16 starts" in out
    assert all(one["changes"] == [] for one in speed_of(project)["series"])


def test_drift_says_when_it_cannot_tell(project: CliProject) -> None:
    """Without starts, and with too few of them, silence is not taken for calm."""
    assert "speed: no good start of the baseline on record yet" in project.done("drift").out
    assert speed_of(project)["series"] == []
    record_days(project, [100.0, 50.0])
    out = project.done("drift", "--offline").out
    assert "too few starts under equal conditions to tell at concurrency 1, 64 (at most 2, 10 are needed)" in out
    assert json.dumps(speed_of(project)["series"][0]["changes"]) == "[]"
