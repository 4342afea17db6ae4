"""A node that a real Slurm gives: every command works there as on any host.

Whole experiments over both nodes, and nodes that are lost, are in ``tests/engines/test_slurm.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import missing
from tests.support.slurm_project import SlurmProject, slurm_project

WHY_NOT = missing()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no Slurm here: {WHY_NOT}"),
]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[SlurmProject]:
    """A project whose host is a cluster of two nodes, of which it uses one."""
    with slurm_project(tmp_path, n_nodes=1) as made:
        yield made


def test_the_main_job_on_a_node(one: SlurmProject) -> None:
    """push, bench and revert work on a node as on any host: each command finds the node that an earlier one was
    given, the record names it, the other node is never touched, and a cancelled job restores what it holds."""
    other = one.identity_on("n2")
    assert "n1, given by Slurm as job " in one.orch("doctor").out
    one.done("push", "--variant", "slow")
    assert len(one.cluster.jobs()) == 1
    assert "num_stages=3" in one.live_on("n1").read_text()
    benched = one.done("bench", "--concurrency", "1")
    assert "proved on 1 process" in benched.out
    assert one.rows("select host, status, variant from trials") == [
        {"host": "cluster/n1", "status": "ok", "variant": "slow"}
    ]
    assert "flash_mla on cluster/n1 is restored" in one.done("revert").out
    assert one.identity_on("n1") == one.before_on["n1"]
    one.done("push", "--variant", "fast")
    one.cluster.run("scancel", "--user=root")
    assert one.are_restored() and one.identity_on("n2") == other
    status = one.done("status")
    assert "baseline" in status.out, "a node is asked for again, since something of ours may be live there"
