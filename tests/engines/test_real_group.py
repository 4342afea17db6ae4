"""Real engines of two tensor-parallel ranks, each rank on a node of a real Slurm: vLLM and SGLang, on a CPU.

A file of the installed engine is tuned, of which each node has its own copy, as in ``test_real_engines.py``. Both ranks
run through it in every step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_project import WORKLOAD
from tests.engines.real_engines import RealEngine
from tests.support.cli_project import CliProject
from tests.support.slurm_cluster import SlurmCluster, missing
from tests.support.ssh_project import RunningOrch
from tests.support.tiny_host import free_port
from tests.support.waiting import wait_until

WHY_NOT = missing()
pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no Slurm here: {WHY_NOT}"),
]

NODES = ("n1", "n2")
GROUP = "cluster/n1+n2"
RUN_TIMEOUT_S = 1500.0
CONCURRENCY = 4
SHARE_OF_A_STEP = 0.5


class GroupProject(CliProject):
    """The project; ``live`` is the path that every node has, ``live_on`` a node's own file."""

    def __init__(self, folder: Path, engine: RealEngine, cluster: SlurmCluster) -> None:
        super().__init__(folder)
        self.engine, self.cluster = engine, cluster
        self.live = engine.live
        self.pristine = digest_of(self.live)
        self.before = {node: self.identity_on(node) for node in NODES}
        self.begun: list[RunningOrch] = []

    def write(self) -> None:
        """Folders and inventory (JSON is YAML): the host is the cluster, the engine spans both of its nodes."""
        self.folder.mkdir()
        self.scratch.mkdir(mode=0o700)
        slurm = {
            "nodes": 2,
            "nodes_per_engine": 2,
            "options": ["--exclusive"],
            "idle_release_s": 120,
            "queue_timeout_s": 60,
        }
        inventory = {
            "hosts": {"cluster": {"transport": "local", "scratch_dir": str(self.scratch), "slurm": slurm}},
            "engines": {self.engine.name: self.engine.spanning(self.port, free_port())},
            "targets": {"step": {"module": self.engine.module, "files": [str(self.live)]}},
            "workloads": {"short": {**WORKLOAD, "prompts_per_concurrency": 4, "request_timeout_s": 40}},
        }
        self.inventory.write_text(json.dumps(inventory, indent=1))

    def live_on(self, node: str) -> Path:
        """The node's own file, where it lies here."""
        return self.cluster.own(node, self.live)

    def identity_on(self, node: str) -> tuple[object, ...]:
        """All of a node's file that a revert must bring back."""
        found = self.live_on(node).stat()
        return self.live_on(node).read_bytes(), found.st_ino, found.st_mode, found.st_mtime_ns

    def edit(self, name: str, text: str) -> None:
        """Makes a variant by hand, as ``orch variant new`` and an editor do."""
        self.done("variant", "new", name)
        (self.folder / "variants" / "step" / name / self.live.name).write_text(text)

    def begin(self, *words: str) -> RunningOrch:
        """``orch WORDS`` as a process that runs on."""
        running = RunningOrch([sys.executable, "-m", "orchestrator", *words], self.folder)
        self.begun.append(running)
        return running

    def run(self, *words: str) -> dict[str, Any]:
        """``orch run WORDS --json`` to its good end: the analysis."""
        ran = self.begin("run", *words, "--json").end(timeout_s=RUN_TIMEOUT_S)
        assert ran.code == 0, ran.err
        analysis: dict[str, Any] = json.loads(ran.out.splitlines()[-1])["analysis"]
        return analysis

    def titled(self, node: str, word: str) -> list[int]:
        """Pids of the processes on a node that call themselves so."""
        return [pid for pid, title in self.cluster.processes_on(node).items() if word in title]

    def are_restored(self) -> bool:
        """Whether each node has the very file that it had, nothing of orch, no process, no shared memory, no job."""
        self.cluster.run("scancel", "--user=root")
        wait_until(lambda: self.cluster.jobs() == [], timeout_s=60.0)
        for node in NODES:
            assert self.identity_on(node) == self.before[node], node
            assert not any(path.name.startswith(".orch") for path in self.live_on(node).parent.iterdir())
            wait_until(lambda node=node: self.cluster.processes_on(node) == {})  # type: ignore[misc]
            assert self.cluster.on(node, "ls", "-A", "/dev/shm").split() == []
        return True

    def close(self) -> None:
        """Ends everything that was begun; the installed file, which no node has, was never touched."""
        for running in self.begun:
            running.kill()
        super().close()
        assert digest_of(self.live) == self.pristine


def digest_of(path: Path) -> str:
    """Of a file, as orch writes it."""
    return "sha256:" + sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def group(real_engine: RealEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupProject]:
    """A project of each engine on a new cluster."""
    cluster = SlurmCluster(tmp_path / "cluster", NODES, copied=(real_engine.live.parent,))
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as at_end:
        at_end.callback(cluster.stop)
        cluster.start()
        project = GroupProject(tmp_path, real_engine, cluster)
        at_end.callback(project.close)
        project.write()
        yield project


def test_a_whole_experiment_of_one_engine_over_two_nodes(group: GroupProject) -> None:
    """doctor, pull, a start that stays up, an edit that slows every step, run: ``slow`` is SLOWER, every start proved
    on both nodes; both files are the very ones that were there, and nothing runs or stays on either node.
    """
    checked = {one["name"]: one["status"] for one in group.done("doctor", "--json").document["findings"]}
    assert "fail" not in checked.values()
    group.done("pull")
    (load,) = group.done("bench", "--concurrency", str(CONCURRENCY), "--keep-running", "--json").document["loads"]
    for node, processes in zip(NODES, group.engine.rank_processes, strict=True):
        for kind, word in processes.items():
            assert group.titled(node, word), f"no {kind} on {node}: {group.cluster.processes_on(node)}"
    step_s = CONCURRENCY / load["metrics"]["output_tokens_per_s"]
    group.edit("slow", group.engine.slow_text(group.live.read_text(), SHARE_OF_A_STEP * step_s))
    (arm,) = group.run("slow", "--concurrency", str(CONCURRENCY), "--pairs", "4")["arms"]
    print(group.done("report").out, f"load average {os.getloadavg()}")
    assert arm["rows"][0]["verdict"] == "SLOWER"
    starts = group.query("select host, variant, digest, proof from trials where status = 'ok'")
    print(json.dumps(starts[-1], indent=1)[:3000])
    assert {row["host"] for row in starts} == {GROUP}
    group.done("revert")
    assert group.are_restored()


def test_a_rank_that_dies_under_a_load(group: GroupProject) -> None:
    """kill -9 of the second node's worker: no number, a line that names the node, and after a revert both files are
    the very ones that were there and nothing runs on either node."""
    group.done("pull")
    group.edit("same", group.engine.same_text(group.live.read_text()))
    group.done("push", "--variant", "same", "--force")
    running = group.begin("bench", "--concurrency", str(CONCURRENCY))
    wait_until(lambda: bool(group.titled(NODES[0], "/loadgen.py")), timeout_s=300.0)
    (worker,) = group.titled(NODES[1], list(group.engine.rank_processes[1].values())[-1])
    os.kill(worker, signal.SIGKILL)
    ran = running.end(timeout_s=400.0)
    print(ran.out, ran.err)
    assert ran.code != 0 and f"cluster/{NODES[1]}" in ran.error
    assert group.query("select * from loads where status = 'ok'") == []
    group.done("revert")
    assert group.are_restored()
