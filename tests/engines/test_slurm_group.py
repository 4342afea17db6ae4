"""Experiments with one engine over two nodes of a real Slurm: a verdict, groups side by side, nodes that are lost.

What single commands do with such an engine is in ``tests/integration/test_slurm_group.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurm_cluster import missing
from tests.support.slurm_project import SlurmProject, slurm_project
from tests.support.waiting import wait_until

WHY_NOT = missing()
pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no Slurm here: {WHY_NOT}"),
]

PLAN = ("slow", "--concurrency", "1", "--pairs", "4", "--seed", "3")
GROUP = "cluster/n1+n2"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SlurmProject]:
    """A project whose engine spans both nodes of a cluster."""
    with slurm_project(tmp_path, n_nodes=2, n_per_engine=2) as made:
        yield made


def verdict(told: list[dict[str, Any]]) -> str:
    """Of the one variant, at the end of a run."""
    (arm,) = told[-1]["analysis"]["arms"]
    return str(arm["rows"][0]["verdict"])


def hosts(project: SlurmProject) -> set[str]:
    """Where the starts that counted were made."""
    rows = project.rows(
        "select host from experiment_starts join trials on trials.id = trial_id where experiment_starts.status = 'ok'"
    )
    return {row["host"] for row in rows}


def await_variant_under_load(project: SlurmProject) -> None:
    """Returns once the first variant is live on every node, and loaded."""

    def is_live() -> bool:
        return all("num_stages=3" in project.live_on(node).read_text() for node in project.cluster.names)

    wait_until(lambda: is_live() and bool(project.loads()), timeout_s=90.0)


def test_an_experiment_on_a_group(group: SlurmProject) -> None:
    """The true slow-down is found, every start on the group; both files restored, both nodes given back."""
    told = group.run("run", *PLAN)
    assert verdict(told) == "SLOWER"
    assert hosts(group) == {GROUP}
    assert {event["host"] for event in group.events("restored")} == {GROUP}
    assert group.are_restored()


def test_groups_side_by_side(tmp_path: Path) -> None:
    """Four nodes are two engines at a time; each block stays on one group, and the groups have the same conditions
    though another node leads each."""
    with slurm_project(tmp_path, n_nodes=4, n_per_engine=2) as four:
        told = four.run("run", *PLAN)
        assert verdict(told) == "SLOWER"
        assert hosts(four) == {"cluster/n1+n2", "cluster/n3+n4"}
        assert four.events("set-aside") == []
        assert four.are_restored()


def test_a_node_that_goes_down_fails_the_start(group: SlurmProject) -> None:
    """Rank 1's node is switched off in mid-load with the variant live: the pair is set aside, the head's node is
    restored, and exit code 5 says which node is not proved. Booted again, a revert finds and proves it, and the
    experiment goes on to its verdict."""
    group.hold(2, "wait")
    running = group.begin("run", *PLAN, "--json")
    await_variant_under_load(group)
    group.cluster.power_off("n2")
    ran = running.end(400.0)
    group.let_go()
    assert ran.code == 5, ran.err
    assert "not proved to be restored" in ran.error and "orch resume" in ran.error
    assert [event["host"] for event in group.events("node-lost")] == [GROUP]
    (aside,) = group.events("set-aside")
    assert "cluster/n2" in json.dumps(aside)
    assert group.identity_on("n1") == group.before_on["n1"], "the other node is restored all the same"
    assert "num_stages=3" in group.live_on("n2").read_text(), "nobody was there to restore it"
    assert group.loads() == [] and group.ranks() == []
    group.cluster.boot("n2")
    assert f"flash_mla on {GROUP} is restored" in group.done("revert").out
    assert verdict(group.run("resume")) == "SLOWER"
    assert group.are_restored()


def test_a_revert_does_not_wait_for_a_node_that_is_down(group: SlurmProject) -> None:
    """What is left of the group is restored at once; then the other node is waited for, and its absence told."""
    group.done("push", "--variant", "slow")
    group.cluster.power_off("n2")
    reverted = group.orch("revert")  # Slurm may not know yet
    assert reverted.code != 0 and "flash_mla on cluster/n2" not in reverted.out
    assert "flash_mla on cluster/n1 is restored" in reverted.out
    assert group.identity_on("n1") == group.before_on["n1"]
    group.cluster.boot("n2")
    assert f"flash_mla on {GROUP} is restored" in group.done("revert").out
    group.cluster.run("scancel", "--user=root")
    assert group.are_restored()


def test_a_killed_orch_goes_on_with_the_group(group: SlurmProject) -> None:
    """kill -9 in mid-load, then resume: the group is found again, each start counts once, both files are restored."""
    group.hold(2, "wait")
    running = group.begin("run", *PLAN)
    await_variant_under_load(group)
    running.kill()
    group.let_go()
    assert verdict(group.run("resume")) == "SLOWER"
    assert group.rows("select count(*) as n from experiment_starts where status = 'ok'") == [{"n": 8}]
    assert hosts(group) == {GROUP}
    assert group.are_restored()
