"""Experiments on the nodes that a real Slurm gives: spread over them, with nodes that go down, and a killed orch.

Two nodes on this machine, each with processes, a network and a disk of its own (``slurm_cluster``).
"""

from __future__ import annotations

import json
import signal
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


@pytest.fixture
def two(tmp_path: Path) -> Iterator[SlurmProject]:
    """A project whose host is a cluster of two nodes; ``orch run`` spreads over both."""
    with slurm_project(tmp_path, n_nodes=2) as made:
        yield made


def table(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict table that a run ended with."""
    found: list[dict[str, Any]] = told[-1]["analysis"]["arms"]
    return found


def blocks(project: SlurmProject) -> dict[int, set[str]]:
    """On which nodes the counted starts of each block were made."""
    rows = project.rows(
        "select block, host from experiment_starts join trials on trials.id = trial_id"
        " where experiment_starts.status = 'ok'"
    )
    found: dict[int, set[str]] = {}
    for row in rows:
        found.setdefault(row["block"], set()).add(row["host"])
    return found


def test_nodes_that_share_the_file_are_refused(tmp_path: Path) -> None:
    """On a shared disk one node's variant would be live on the other: nothing is planned, nothing is left."""
    with slurm_project(tmp_path, n_nodes=2, is_shared=True) as project:
        before = project.identity()
        ran = project.orch("run", *PLAN)
        assert ran.code == 1
        assert "flash_mla is one and the same file on n1 and n2" in ran.error and "nodes: 1" in ran.error
        assert project.rows("select * from experiments") == []
        assert project.identity() == before
        assert [path.name for path in project.live.parent.glob(".orch*")] == []


def test_an_experiment_spreads_over_both_nodes(two: SlurmProject) -> None:
    """Every block whole on one node, both nodes at work, the true slow-down found; both files restored, both nodes
    given back."""
    told = two.run("run", *PLAN)
    (arm,) = table(told)
    assert arm["rows"][0]["verdict"] == "SLOWER", arm
    assert all(len(hosts) == 1 for hosts in blocks(two).values()), blocks(two)
    assert set.union(*blocks(two).values()) == {"cluster/n1", "cluster/n2"}
    assert two.rows("select count(*) as n from experiment_starts where status = 'ok'") == [{"n": 8}]
    assert two.are_restored()


def with_the_variant_live(project: SlurmProject) -> str:
    """The node on which the first variant is under load, once it is."""

    def found() -> list[str]:
        return [node for node in project.cluster.names if "num_stages=3" in project.live_on(node).read_text()]

    wait_until(lambda: bool(found()) and bool(project.loads()), timeout_s=60.0)
    return found()[0]


def test_a_node_that_goes_down_costs_its_block(two: SlurmProject) -> None:
    """Switched off in mid-load with the variant live: its block is made again on the other node, and there is a
    verdict. The dead node cannot be proved restored, which is said with exit code 5; booted again, a revert finds it
    there and proves it."""
    two.hold(2, "wait")
    running = two.begin("run", *PLAN, "--json")
    down = with_the_variant_live(two)
    two.cluster.power_off(down)
    two.let_go()
    ran = running.end(400.0)
    assert ran.code == 5, ran.err
    assert "not proved to be restored" in ran.error and "orch revert" in ran.error
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert table(told)[0]["rows"][0]["verdict"] == "SLOWER"
    assert [event["host"] for event in two.events("node-lost")] == [f"cluster/{down}"]
    assert "num_stages=3" in two.live_on(down).read_text(), "nobody was there to restore it"
    two.cluster.boot(down)
    assert f"flash_mla on cluster/{down} is restored" in two.done("revert").out
    two.cluster.run("scancel", "--user=root")
    assert two.are_restored()


def test_a_job_that_is_cancelled_costs_its_block(two: SlurmProject) -> None:
    """scancel in mid-load with the variant live: the node restores itself before it is gone, the block is made again,
    and at the end the node is asked for once more and proved to be restored."""
    two.hold(2, "wait")
    running = two.begin("run", *PLAN, "--json")
    lost = with_the_variant_live(two)
    (job,) = [line.split()[0] for line in two.cluster.jobs() if line.endswith(lost)]
    two.cluster.run("scancel", job)
    wait_until(lambda: two.identity_on(lost) == two.before_on[lost])
    two.let_go()
    ran = running.end(400.0)
    assert ran.code == 0, ran.err
    assert [event["host"] for event in two.events("node-lost")] == [f"cluster/{lost}"]
    assert {event["host"] for event in two.events("restored")} == {"cluster/n1", "cluster/n2"}
    assert two.are_restored()


def test_a_killed_orch_goes_on_with_both_nodes(two: SlurmProject) -> None:
    """kill -9 in mid-load, then resume: the nodes are found again, each start counts once, both files are restored."""
    two.hold(2, "wait")
    running = two.begin("run", *PLAN)
    with_the_variant_live(two)
    running.kill()
    assert len(two.cluster.jobs()) == 2, "the nodes are kept, with all that runs there"
    two.let_go()
    told = two.run("resume")
    assert table(told)[0]["rows"][0]["verdict"] == "SLOWER"
    assert two.rows("select count(*) as n from experiment_starts where status = 'ok'") == [{"n": 8}]
    assert all(len(hosts) == 1 for hosts in blocks(two).values()), blocks(two)
    assert two.are_restored()


def test_ctrl_c_puts_both_nodes_back(two: SlurmProject) -> None:
    """In mid-load on both: loads and engines are stopped and both files restored; ``--stop`` then ends the experiment
    and gives the nodes back."""
    two.hold(2, "wait")
    running = two.begin("run", *PLAN)
    with_the_variant_live(two)
    wait_until(lambda: len(two.loads()) >= 2)
    running.signal(signal.SIGINT)
    ran = running.end()
    assert ran.code == 130 and "experiment 1 is stopped, the host is as it was before" in ran.error
    assert {event["host"] for event in two.events("restored")} == {"cluster/n1", "cluster/n2"}
    assert all(two.identity_on(node) == two.before_on[node] for node in two.cluster.names)
    assert two.loads() == [] and two.engines() == []
    two.let_go()
    assert two.run("resume", "--stop")[-1]["status"] == "stopped"
    assert two.are_restored()
