"""``orch plan`` and the planned half of ``orch compare``: what is read back from the analyses on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.designs import Arm
from orchestrator.records import digest_of
from orchestrator.report.document import analysis_document
from orchestrator.store import Store
from tests.support import experiment_records as design
from tests.support.cli_project import KERNEL, CliProject, cli_project
from tests.test_cli_output import disagreements, documented

BASE = digest_of(KERNEL.encode())


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with a baseline on record."""
    with cli_project(tmp_path) as made:
        yield made.pulled()


def record(
    project: CliProject,
    digest: str = "sha256:2",
    *,
    sigma_d: float = 0.005,
    others: Mapping[str, str] | None = None,
    **changes: object,
) -> int:
    """One experiment with its final analysis: six pairs, σ_d 0.5 % at concurrency 64."""
    arms = (Arm("baseline", BASE), Arm("V2", digest, "deeper pipeline"))
    arms += tuple(Arm(name, other) for name, other in (others or {}).items())
    plan = design.plan(target="flash_mla", host="here", arms=arms, **changes)
    found = design.analysis()
    rows = tuple(
        replace(row, estimate=row.estimate and replace(row.estimate, sigma_d=sigma_d)) for row in found.arms[0].rows
    )
    found = replace(found, arms=tuple(replace(arm, digest=digest, rows=rows) for arm in found.arms))
    with Store.open(project.db) as store:
        number = store.create_experiment(plan)
        store.begin_experiment(number)
        store.record_analysis(number, found, analysis_document(found))
        store.end_experiment(number, "decided", "decided at look 1")
    return number


def test_without_an_experiment_it_says_how_to_measure_the_noise(project: CliProject) -> None:
    """No guess: the noise is not known, and the command that measures it is named."""
    out = project.done("plan").out
    assert out.startswith("no experiment has shown the noise yet\nnext: `orch run --aa ")
    assert project.done("plan", "--json").document["noises"] == []


def test_the_noise_on_record_gives_pairs_and_effects(project: CliProject) -> None:
    """σ_d 0.5 % at 6 pairs: 1.54 σ_d are seen, as the method says; concurrencies without pairs are left out."""
    record(project)
    found = project.done("plan", "--effect", "2%", "--json").document
    assert disagreements(found, documented()["orch plan"]) == []
    (noise,) = found["noises"]
    assert (noise["concurrency"], noise["df"], noise["n_pairs"]) == (64, 4, 6)
    assert noise["sigma_d"] == pytest.approx(0.005)
    assert noise["detectable"]["6"] == pytest.approx(1.54 * 0.005, rel=0.02)
    assert noise["pairs_needed"][0] == 4
    assert found["pair_s"] is None
    table = project.done("plan").out
    assert "0.50 %" in table and "noise from experiment 1;" in table


def test_noise_is_pooled_over_experiments_of_the_same_kind(project: CliProject) -> None:
    """Two experiments give twice the degrees of freedom; another metric's noise is not mixed in."""
    record(project)
    record(project)
    record(project, metric="ttft_ms_p50")
    (noise,) = project.done("plan", "--json").document["noises"]
    assert (noise["df"], noise["n_pairs"]) == (8, 12)
    assert noise["sigma_d"] == pytest.approx(0.005)


@pytest.mark.parametrize("effect", ["0", "-1%", "60%", "two"])
def test_an_effect_that_is_none_is_refused(project: CliProject, effect: str) -> None:
    """One line, exit code 2."""
    ran = project.orch("plan", f"--effect={effect}")
    assert ran.code == 2
    assert "is not a margin such as 1%" in ran.error


@pytest.mark.parametrize(
    ("sigma_d", "shown", "needed"),
    [(3.0, "300 %", "more than 1,000"), (0.12, "12 %", " to more than 1,000"), (2e-7, "0.000020 %", "4")],
)
def test_numbers_that_say_nothing_are_not_shown(project: CliProject, sigma_d: float, shown: str, needed: str) -> None:
    """A noise has two digits that matter, however small; nobody makes 845,298 pairs. JSON has the numbers."""
    record(project, sigma_d=sigma_d)
    (row,) = [line for line in project.done("plan").out.splitlines() if line.split()[:1] == ["64"]]
    assert shown in row and row.endswith(needed)
    (noise,) = project.done("plan", "--json").document["noises"]
    assert noise["sigma_d"] == pytest.approx(sigma_d)
    assert ("more" in needed) == (noise["pairs_needed"][1] > 1000)


def test_two_variants_of_one_experiment_have_their_verdicts_there(project: CliProject) -> None:
    """Between them there is no verdict; where those against the baseline are is said, not that it was done by hand."""
    digests = {}
    for name, stages in (("V2", 3), ("V3", 4)):
        project.with_variant(name, f"num_stages={stages}")
        digests[name] = project.done("variant", "show", name, "--json").document["digest"]
        project.record_start(name, digests[name], {64: 100.0}, at="2026-01-01T00:00:00+00:00")
    assert "each with the baseline" not in project.done("compare", "V3", "--to", "V2").out
    number = record(project, digests["V2"], others={"V3": digests["V3"]})
    shown = project.done("compare", "V3", "--to", "V2").out
    assert f"why: experiment {number} compared V3 and V2 each with the baseline, not with each other" in shown
    assert f"next: `orch report {number}` has the verdicts of both against the baseline" in shown


def test_compare_shows_the_verdict_of_the_newest_experiment(project: CliProject) -> None:
    """The variant's present bytes were compared in a planned experiment: its verdict, not a ratio by hand."""
    project.with_variant("V2", "num_stages=3")
    digest = project.done("variant", "show", "V2", "--json").document["digest"]
    record(project, "sha256:other")
    number = record(project, digest)
    ran = project.done("compare", "V2")
    assert ran.out.startswith(f"experiment {number}, decided: ")
    assert "FASTER" in ran.out and "1.020" in ran.out
    document = project.done("compare", "V2", "--json").document
    assert (document["experiment"], document["status"]) == (number, "decided")
    assert document["analysis"]["arms"][0]["rows"][1]["verdict"] == "FASTER"
