"""A target whose files hold no Triton kernel: a scheduler, a launcher, any Python that an engine runs.

``kernel:`` is left out. Variants are edited by hand and everything they change is named; nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_project import CliProject

SCHEDULER = '''\
"""Which requests run next."""


def next_batch(waiting, limit):
    batch = waiting[:limit]
    return batch
'''


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with such a target."""
    made = CliProject(tmp_path)
    made.make()
    made.live.write_text(SCHEDULER)
    made.inventory.write_text(made.inventory.read_text().replace("    kernel: flash_mla_decode_kernel\n", ""))
    assert "kernel: flash" not in made.inventory.read_text()
    yield made
    made.close()


def edited(project: CliProject, name: str = "V1") -> CliProject:
    """Itself, with a variant that returns the batch at once."""
    project.pulled().done("variant", "new", name)
    (project.variants / name / "flash_mla.py").write_text(
        SCHEDULER.replace("    batch = waiting[:limit]\n    return batch\n", "    return waiting[:limit]\n")
    )
    return project


def test_a_variant_is_edited_by_hand_and_says_what_it_changes(project: CliProject) -> None:
    """The function that differs is named, in words and in JSON."""
    edited(project)
    assert "not isolated: it changes next_batch (body)" in project.done("variant", "show", "V1").out
    document = project.done("variant", "show", "V1", "--json").document
    assert (document["edited_functions"], document["is_isolated"]) == (["next_batch"], False)


def test_knobs_cannot_be_set(project: CliProject) -> None:
    """One line says why and what to do; no folder is left behind."""
    ran = project.pulled().orch("variant", "new", "V1", "--set", "num_warps=4")
    assert (ran.code, ran.error) == (
        4,
        "orch: there are no knobs to set in flash_mla.py: its target names no kernel: leave --set out and edit the copy"
        " with `orch variant edit`, or add kernel: in inventory.yaml",
    )
    assert not (project.variants / "V1").exists()


def test_there_is_nothing_to_compile(project: CliProject) -> None:
    """``orch check`` says so, and what can be tried instead."""
    ran = edited(project).orch("check", "--variant", "V1")
    assert (ran.code, ran.error) == (
        2,
        "orch: target flash_mla names no kernel, so there is nothing to compile: `orch check --variant NAME --remote`"
        " imports a variant on the host, as the engine would",
    )


@pytest.mark.integration
@pytest.mark.slow
def test_it_is_pushed_measured_and_reverted(project: CliProject) -> None:
    """The whole way: no compiled form is on record, for none was looked for."""
    before = project.live.read_bytes()
    pushed = edited(project).done("push", "--variant", "V1")
    assert "not checked before the push: target flash_mla names no kernel" in pushed.err
    found = project.done("bench", "--concurrency", "1", "--json").document
    assert (found["arm"], found["status"]) == ("V1", "ok")
    assert project.query("select triton_kernels, autotune_winners from trials") == [
        {"triton_kernels": None, "autotune_winners": None}
    ]
    project.done("revert")
    assert project.live.read_bytes() == before


def test_status_and_doctor_say_that_there_is_none(project: CliProject) -> None:
    """It is no fault."""
    assert "target     flash_mla on here, no kernel, 1 file" in project.done("status").out
    assert project.done("status", "--json").document["kernel"] is None
    findings = {one["name"]: one for one in project.orch("doctor", "--json").document["findings"]}
    assert findings["kernel"]["status"] == "ok"
    assert findings["kernel"]["text"].startswith("none is named: variants of flash_mla.py are edited by hand")


def test_what_check_is_told_of_a_kernel_needs_one(project: CliProject) -> None:
    """Arguments of no kernel are a mistake, told with file and line; a reference command is none."""
    text = project.inventory.read_text()
    place = text.index("workloads:")
    lines = {"arguments: {n: i32}": True, "arch: sm_120": True, "reference: /bin/true {file}": False}
    for line, is_wrong in lines.items():
        project.inventory.write_text(f"{text[:place]}    check:\n      {line}\n{text[place:]}")
        ran = project.orch("status", "--offline")
        assert (ran.code == 0) is not is_wrong
        if is_wrong:
            key = line.partition(":")[0]
            why = "is about a kernel, and this target names none: add kernel:"
            assert ran.error.endswith(f"targets.flash_mla.check.{key}: {why}")
