"""One engine over the two nodes of a real Slurm: pushed, started, proved, loaded and put back on both, or on none.

What the engine is, is ``tests/support/rank_engine.py``: rank 1 tells the head which bytes it has loaded. Whole
experiments, and a node that goes down, are in ``tests/engines/test_slurm_group.py``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_smi import FakeSmi
from tests.support.slurm_cluster import missing
from tests.support.slurm_project import SlurmProject, slurm_project
from tests.support.ssh_project import command_of
from tests.support.waiting import wait_until

WHY_NOT = missing()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no Slurm here: {WHY_NOT}"),
]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SlurmProject]:
    """A project whose engine spans both nodes of a cluster."""
    with slurm_project(tmp_path, n_nodes=2, n_per_engine=2) as made:
        yield made


def both_have(project: SlurmProject, text: str) -> bool:
    """Whether the live file of each node has a text."""
    return all(text in project.live_on(node).read_text() for node in project.cluster.names)


def are_as_before(project: SlurmProject) -> bool:
    """Whether both files are those that were there, with inode and time."""
    return all(project.identity_on(node) == project.before_on[node] for node in project.cluster.names)


def rank_one(project: SlurmProject) -> list[int]:
    """Pids of what was started as rank 1, its worker included."""
    return [pid for pid in project.ranks() if b"--rank\x001\x00" in command_of(pid)]


@contextlib.contextmanager
def module_elsewhere(project: SlurmProject, node: str, text: str) -> Iterator[None]:
    """Meanwhile a package of the module's name stands before it on one node, with this text."""
    package = project.live_on(node).with_suffix("")
    package.mkdir()
    (package / "__init__.py").write_text(text)
    try:
        yield
    finally:
        shutil.rmtree(package)


def test_the_main_job_on_a_group(group: SlurmProject) -> None:
    """push, bench, status and revert reach both nodes: the file is live and leased on each, the processes of every
    rank are proved, and both files come back with inode and time."""
    doctor = group.orch("doctor").out
    assert "n1+n2, given by Slurm as jobs " in doctor
    assert "has the same file as n1, and knows it as 10." in doctor
    assert "cluster/n1+n2" in group.done("push", "--variant", "slow").out
    assert both_have(group, "num_stages=3")
    benched = group.done("bench", "--concurrency", "1", "--keep-running")
    assert "proved on 4 processes of 2 nodes (cluster/n1, cluster/n2)" in benched.out, (
        "head and stub, rank 1 and worker"
    )
    status = group.done("status", "--json").document["now"]
    assert [one["node"] for one in status["nodes"]] == ["n1", "n2"]
    assert all(one["pid"] and one["differs"] is None for one in status["nodes"])
    assert len(rank_one(group)) == 2
    reverted = group.done("revert").out
    assert "flash_mla on cluster/n1+n2 is restored" in reverted
    assert group.ranks() == [] and are_as_before(group)
    rows = group.rows(
        "select host, status, variant, facts from trials join environments on environments.id = environment_id"
    )
    assert [(row["host"], row["status"], row["variant"]) for row in rows] == [("cluster/n1+n2", "ok", "slow")]
    assert "--rank 0 --nodes 2 --head {head_node}:" in rows[0]["facts"], "which nodes Slurm gave is no fact of it"
    group.cluster.run("scancel", "--user=root")
    assert group.are_restored()


def test_a_rank_that_loads_other_bytes_is_not_admitted(group: SlurmProject) -> None:
    """On one node the module comes from elsewhere, though with the same bytes: nothing is measured, and the error names
    that node."""
    group.done("push", "--variant", "slow")
    with module_elsewhere(group, "n2", group.live_on("n2").read_text()):
        refused = group.orch("bench", "--concurrency", "1")
    assert refused.code == 1
    assert "cluster/n2: module kernels.flash_mla comes from" in refused.error
    assert "cluster/n1" not in refused.error
    assert group.rows("select status from trials") == [{"status": "failed"}] and group.rows("select * from loads") == []
    assert group.ranks() == []
    assert "proved on 4 processes" in group.done("bench", "--concurrency", "1").out
    group.done("revert")
    assert are_as_before(group)


def test_a_push_that_fails_on_one_node_is_undone_on_the_other(group: SlurmProject) -> None:
    """The second node cannot be written: the first is put back at once. And an edit on one node stops a push before
    anything is written; drift and status name the node."""
    edited = group.live_on("n2")
    mode, before = edited.stat(), edited.read_bytes()
    edited.write_bytes(before + b"# a colleague was here\n")
    refused = group.orch("push", "--variant", "slow")
    assert refused.code == 1 and "cluster/n2: somebody else changed the live file" in refused.error
    assert "+# a colleague was here" in refused.evidence
    assert "cluster/n2, flash_mla: DRIFTED" in group.done("drift").out
    assert "NOT THE SAME on every node" in group.done("status").out
    assert group.live_on("n1").read_bytes() == before
    edited.write_bytes(before)
    os.utime(edited, ns=(mode.st_atime_ns, mode.st_mtime_ns))
    with group.read_only_on("n2"):
        failed = group.orch("push", "--variant", "slow")
    assert failed.code != 0 and "cluster/n2" in failed.error
    assert "cluster/n1: as before orch, proved by digest" in failed.evidence
    assert are_as_before(group)
    group.done("push", "--variant", "slow")
    assert both_have(group, "num_stages=3")
    group.done("revert")


def test_every_node_restores_itself(group: SlurmProject) -> None:
    """With nobody there, the watcher of each node restores its own file when the lease ends."""
    group.done("push", "--variant", "slow", "--ttl", "4")
    assert both_have(group, "num_stages=3")
    wait_until(lambda: are_as_before(group), timeout_s=60.0)
    assert "baseline" in group.done("status").out


def test_a_rank_that_dies_fails_the_start(group: SlurmProject) -> None:
    """Rank 1 ends while the head waits for it, or dies under load while the head goes on: the start fails, and the
    error names its node; nothing is left running."""
    with module_elsewhere(group, "n2", "def broken(:"):
        broken = group.orch("bench", "--concurrency", "1")
    assert broken.code == 1 and "orch: cluster/n2: engine stub" in broken.err and "SyntaxError" in broken.err
    assert "ended before the whole of it was ready" in broken.err
    assert group.ranks() == []
    group.hold(2, "wait")
    running = group.begin("bench", "--concurrency", "1")
    wait_until(lambda: bool(group.loads()) and len(rank_one(group)) == 2, timeout_s=60.0)
    for pid in rank_one(group):
        os.kill(pid, signal.SIGKILL)
    group.let_go()
    ran = running.end()
    assert ran.code == 1 and "cluster/n2: stub" in ran.error and "died under load" in ran.error
    assert group.ranks() == [] and are_as_before(group)


def test_ctrl_c_leaves_nothing_on_either_node(group: SlurmProject) -> None:
    """In mid-load on the baseline: load and ranks are stopped, and no lease is left on a node."""
    group.hold(2, "wait")
    running = group.begin("bench", "--concurrency", "1")
    wait_until(lambda: bool(group.loads()) and len(rank_one(group)) == 2, timeout_s=60.0)
    running.signal(signal.SIGINT)
    ran = running.end()
    assert ran.code == 130 and "the host is as it was" in ran.error
    assert group.loads() == [] and group.ranks() == [] and are_as_before(group)
    group.let_go()
    group.cluster.run("scancel", "--user=root")
    assert group.are_restored()


def test_the_gpus_of_every_node_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an nvidia-smi on both nodes, samples of each are on record under its name; nothing of it stays there."""
    FakeSmi(tmp_path / "smi")  # not its context: the pids that it notes are those of a node
    monkeypatch.setenv("PATH", f"{tmp_path / 'smi'}:{os.environ['PATH']}")
    with slurm_project(tmp_path, n_nodes=2, n_per_engine=2, prompts_per_concurrency=30) as group:
        group.done("bench", "--concurrency", "1")
        seen = group.rows("select node, gpu, count(*) as n, max(power_w) as watts from telemetry group by node, gpu")
        assert [(row["node"], row["gpu"], row["watts"]) for row in seen] == [("n1", 0, 74.81), ("n2", 0, 74.81)]
        assert all(row["n"] >= 2 for row in seen)
        left = [path.name for path in group.scratch.rglob("*") if path.name in ("telemetry", "samples")]
        assert left == []
        group.cluster.run("scancel", "--user=root")
        assert group.are_restored()


def test_a_file_that_both_nodes_share_is_refused(tmp_path: Path) -> None:
    """On a shared disk a push on one node would be live on the other: refused before anything is written."""
    with slurm_project(tmp_path, n_nodes=2, is_shared=True, n_per_engine=2) as project:
        before = project.identity()
        for words in (("push", "--variant", "slow"), ("bench", "--concurrency", "1")):
            refused = project.orch(*words)
            assert refused.code == 1 and "flash_mla is one and the same file on n1 and n2" in refused.error
            assert "each node's own disk" in refused.error
        assert project.identity() == before
        assert [path.name for path in project.live.parent.glob(".orch*")] == []
