"""A group of two nodes without a cluster: this machine twice, with the same paths in two folders.

What the second node is asked about ``…/site`` it answers about ``…/sit2``, of the same length, so that no count of
bytes changes on the way; what it answers is turned back.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed
from orchestrator.connection.local import LocalRemote
from orchestrator.connection.slurm import NodeJob, NodeRemote
from orchestrator.connection.slurm_group import GroupRemote
from orchestrator.errors import OrchError
from orchestrator.project import Project
from orchestrator.records import Host, SlurmSettings
from orchestrator.session import Session
from orchestrator.store import Store
from tests.support.cli_project import CliProject, cli_project

NAMES = ("n1", "n2")


class TwinNode(NodeRemote):
    """One of the two.

    Attributes:
        faults: what it answers instead, by the first word that a script is given (of the agent: its operation).
    """

    def __init__(self, login: LocalRemote, name: str, here: Path, there: Path) -> None:
        super().__init__(login, NodeJob(name, name, "RUNNING", name, ""))
        self._moved = (bytes(here), bytes(there))
        assert len(self._moved[0]) == len(self._moved[1])
        self.faults: dict[str, OrchError] = {}

    def fail(self, word: str, error: OrchError) -> None:
        """Lets every script with that first word fail; ``""`` stands for Slurm's own word on the node."""
        self.faults[word] = error

    def run(
        self, script: str, args: Sequence[str] = (), *, stdin: bytes = b"", timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Completed:
        if args and args[0] in self.faults:
            raise self.faults[args[0]]
        here, there = self._moved
        words = [word.replace(here.decode(), there.decode()) for word in args]
        done = self.login.run(script, words, stdin=stdin.replace(here, there), timeout_s=timeout_s)
        return Completed(done.exit_code, done.stdout.replace(there, here), done.stderr.replace(there, here))

    def refuse_lost(self) -> None:
        if "" in self.faults:
            raise self.faults[""]


class TwoNodes:
    """A project whose engine spans both, with a baseline and a variant ``V2``. ``session`` is one on the group."""

    def __init__(self, project: CliProject) -> None:
        self.user = project
        second = project.site.with_name("sit2")
        shutil.copytree(project.site, second)
        self.files = [site / "kernels" / "flash_mla.py" for site in (project.site, second)]
        settings = SlurmSettings(nodes=2, nodes_per_engine=2)
        host = Host(name="cluster", transport="local", scratch_dir=str(project.scratch), slurm=settings)
        login = LocalRemote(host)
        folders = (project.site, second)
        self.nodes = [TwinNode(login, name, project.site, folder) for name, folder in zip(NAMES, folders, strict=True)]
        self.group = GroupRemote(self.nodes)
        self.before = self.identities()

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """The target on the group, as ``open_session`` gives it."""
        project = Project.open(str(self.user.inventory))
        target = replace(project.target("flash_mla"), host=self.group.host.name)
        with Store.open(project.db_path) as store:
            yield Session(project, store, target, project.engine_of(target), self.group, True)

    def identities(self) -> list[tuple[object, ...]]:
        """All of each node's file that a revert must bring back."""
        found = [(path.read_bytes(), path.stat()) for path in self.files]
        return [(content, stat.st_ino, stat.st_mode, stat.st_mtime_ns) for content, stat in found]

    def texts(self) -> list[str]:
        """What each node has."""
        return [path.read_text() for path in self.files]


@contextlib.contextmanager
def two_nodes(folder: Path) -> Iterator[TwoNodes]:
    """A new one below a folder; at the end nothing of it runs."""
    with cli_project(folder) as project:
        project.pulled()
        project.with_variant("V2", "num_stages=3")
        made = TwoNodes(project)
        try:
            yield made
        finally:
            first, project.site = project.site, made.files[1].parents[1]
            project.close()
            project.site = first
