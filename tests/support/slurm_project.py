"""A user's project whose host is a cluster: the nodes of ``slurm_cluster``, each with its own copy of the kernel.

The engine is ``stub_engine.py`` and the variants are those of ``run_project``, but all times are real: ``slow`` is
40 % slower. This machine is the login host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.run_project import RunProject
from tests.support.slurm_cluster import SlurmCluster
from tests.support.ssh_project import RunningOrch, command_of
from tests.support.tiny_host import free_port
from tests.support.waiting import wait_until

RANK_ENGINE = Path(__file__).with_name("rank_engine.py")


class SlurmProject(RunProject):
    """The project. ``live`` is the path that every node has; ``live_on`` is where a node's own file lies here."""

    def __init__(
        self, folder: Path, cluster: SlurmCluster, *, n_nodes: int, is_shared: bool = False, n_per_engine: int = 1
    ) -> None:
        super().__init__(folder)
        self.cluster, self.n_nodes, self.n_per_engine = cluster, n_nodes, n_per_engine
        self.site = folder / "shared" / "site" if is_shared else cluster.local / "site"
        self.live = self.site / "kernels" / "flash_mla.py"
        self.second = self.site / "kernels" / "sizes.py"

    def make(self, *, n_files: int = 1, **workload: Any) -> None:
        """Writes nodes and project, with a baseline and every variant."""
        super().make(n_files=n_files, **workload)
        self.before_on = {node: self.identity_on(node) for node in self.cluster.names}

    def write_inventory(self, *, project_folder: Path | None = None, **workload: Any) -> None:
        """The inventory of ``run_project``, with a cluster for a host; and the kernel on each node's disk."""
        super().write_inventory(project_folder=project_folder, **workload)
        path = (project_folder or self.folder) / "inventory.yaml"
        inventory = json.loads(path.read_text())
        command = inventory["engines"]["stub"]["command"]
        paces = {"1": "10", "0.5": "20", "num_stages=3=1.03": "num_stages=3=1.4"}
        inventory["engines"]["stub"]["command"] = [paces.get(word, word) for word in command]
        if self.n_per_engine > 1:
            self._span(inventory["engines"]["stub"])
        slurm: dict[str, Any] = {
            "nodes": self.n_nodes,
            "options": ["--exclusive"],
            "idle_release_s": 60,
            "queue_timeout_s": 60,
        }
        if self.n_per_engine > 1:
            slurm["nodes_per_engine"] = self.n_per_engine
        inventory["hosts"] = {"cluster": {"transport": "local", "scratch_dir": str(self.scratch), "slurm": slurm}}
        path.write_text(json.dumps(inventory, indent=1))
        for node in self.cluster.names:
            disk = self.cluster.disk_of(node) / "site"
            if not disk.exists():
                shutil.copytree(self.site, disk)

    def _span(self, engine: dict[str, Any]) -> None:
        """Makes it ``rank_engine.py``: one engine over several nodes, whose head is asked what rank 1 has loaded."""
        head = f"{{head_node}}:{free_port()}"
        ranks = ["--rank", "{node_rank}", "--nodes", "{n_nodes}", "--head", head, "--module", "kernels.flash_mla", "--"]
        engine["command"] = [sys.executable, str(RANK_ENGINE), *ranks, *engine["command"][2:]]
        engine["loaded_path"] = "/loaded"

    def ranks(self) -> list[int]:
        """Pids of everything that runs of an engine over several nodes."""
        return [pid for pid in self._pids() if os.fsencode(RANK_ENGINE) in command_of(pid)]

    def begin(self, *words: str) -> RunningOrch:
        """``orch WORDS`` as a process that runs on."""
        running = RunningOrch([sys.executable, "-m", "orchestrator", *words], self.folder)
        self.begun.append(running)
        return running

    def live_on(self, node: str) -> Path:
        """The node's own file."""
        return self.cluster.disk_of(node) / "site" / "kernels" / "flash_mla.py"

    def identity_on(self, node: str) -> tuple[object, ...]:
        """All of a node's file that a revert must bring back."""
        found = self.live_on(node).stat()
        return self.live_on(node).read_bytes(), found.st_ino, found.st_mode, found.st_mtime_ns

    @contextlib.contextmanager
    def read_only_on(self, node: str) -> Iterator[None]:
        """Meanwhile nothing can be written beside the node's file."""
        kernels = str(self.live.parent)
        self.cluster.on(node, "mount", "--bind", kernels, kernels)
        self.cluster.on(node, "mount", "-o", "remount,ro,bind", kernels)
        try:
            yield
        finally:
            self.cluster.on(node, "umount", kernels)

    def are_restored(self) -> bool:
        """Whether both files are as before, no node is held, and nothing of an experiment runs anywhere."""
        wait_until(lambda: self.cluster.jobs() == [], timeout_s=30.0)  # a job restores before it ends
        for node in self.cluster.names:
            assert self.identity_on(node) == self.before_on[node], f"{node}: {self.live_on(node).read_text()}"
            assert not (self.live_on(node).parent / ".orch-flash_mla.py").exists()
        wait_until(lambda: self.loads() == [] and self.engines() == [] and self.ranks() == [])
        wait_until(lambda: [pid for pid in self._pids() if b"orch-watch" in command_of(pid)] == [])
        return True


@contextlib.contextmanager
def slurm_project(
    folder: Path, *, n_nodes: int, is_shared: bool = False, n_per_engine: int = 1, **workload: Any
) -> Iterator[SlurmProject]:
    """A new cluster and a project on it; at the end nothing of them runs.

    Args:
        is_shared: both nodes have the kernel on the same disk. n_per_engine: how many nodes one engine spans.
    """
    cluster = SlurmCluster(folder / "cluster", tuple(f"n{i + 1}" for i in range(max(2, n_nodes))))
    before = {name: os.environ.get(name) for name in cluster.environment}
    os.environ.update(cluster.environment)
    try:
        cluster.start()
        project = SlurmProject(folder, cluster, n_nodes=n_nodes, is_shared=is_shared, n_per_engine=n_per_engine)
        try:
            project.make(**workload)
            yield project
        finally:
            project.close()
    finally:
        cluster.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
