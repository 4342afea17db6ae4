"""Several nodes of a cluster that one engine spans: a ``GroupRemote``, which is its head and knows the others.

A group is made of nodes that Slurm gave one by one (``slurm.py``), each with a job and a keeper of its own. What asks a
group asks its head: the engine's port, the load and its files are there. Who has to reach every node goes through
``members``. A group is called by its nodes (``cluster/n1+n2``), in messages and in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.connection.base import DEFAULT_TIMEOUT_S, Completed, Remote
from orchestrator.connection.slurm import NodeRemote, OnWait, node_name, open_nodes
from orchestrator.errors import NodeLostError

JOINT = "+"
"""Between the names of a group's nodes; no name of a node holds it."""


class GroupRemote(NodeRemote):
    """A group of nodes, asked at its head.

    Attributes:
        node: the names of all, in the order of their ranks.
        has_files_apart: whether it was proved that no two of them share a file of the target.
    """

    has_files_apart = False

    def __init__(self, nodes: Sequence[NodeRemote]) -> None:
        head = nodes[0]
        super().__init__(head.login, head.job)
        self.node = JOINT.join(one.node for one in nodes)
        self.host = replace(head.host, name=node_name(head.login.host, self.node))
        self._nodes = tuple(nodes)

    @property
    def members(self) -> tuple[NodeRemote, ...]:
        """See ``Remote.members``."""
        return self._nodes

    def run(
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        stdin: bytes = b"",
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Completed:
        """See ``Remote.run``: on the head."""
        return self._nodes[0].run(script, args, stdin=stdin, timeout_s=timeout_s)

    def scratch_dir(self) -> str:
        """See ``Remote.scratch_dir``: the head's."""
        return self._nodes[0].scratch_dir()

    def refuse_lost(self) -> None:
        """Asks Slurm whether every node is still ours.

        Raises:
            NodeLostError: the job of one is over, or the node is down.
        """
        for node in self._nodes:
            node.refuse_lost()


def node_of(remote: Remote) -> str:
    """What a machine calls itself to its peers: the node's own name on a cluster, else the host's of the inventory."""
    return remote.node if isinstance(remote, NodeRemote) else remote.host.name


def names_in(node: str) -> list[str]:
    """The nodes that a name means: of a group each, of a node itself."""
    return node.split(JOINT)


def grouped(nodes: Sequence[NodeRemote]) -> NodeRemote:
    """Nodes as one place to work on; a single one is that already.

    Raises:
        NodeLostError: one node is there twice.
    """
    names = [one.node for one in nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise NodeLostError(
            f"{nodes[0].login.host.name}: Slurm gave {twice} to two jobs, and an engine needs {len(nodes)} nodes",
            next_step="add --exclusive to options under slurm, give the nodes back (`scancel`), and try again",
        )
    return nodes[0] if len(nodes) == 1 else GroupRemote(nodes)


def open_places(
    login: Remote,
    *,
    n_places: int = 1,
    only: Sequence[str] = (),
    on_wait: OnWait | None = None,
    patience_s: float | None = None,
) -> list[NodeRemote]:
    """Places for so many engines: nodes, or groups of them where ``nodes_per_engine`` says so.

    Args:
        only: the places with these names, instead of any ``n_places``. Others: see ``slurm.open_nodes``.

    Raises:
        NodeLostError: Slurm did not give every node.
    """
    assert login.host.slurm is not None
    if only:
        names = list(dict.fromkeys(name for place in only for name in names_in(place)))
        opened = open_nodes(login, only=names, on_wait=on_wait, patience_s=patience_s)
        by_name = {one.node: one for one in opened}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise NodeLostError(f"{login.host.name}: {', '.join(missing)} is not held", next_step="try again")
        return [grouped([by_name[name] for name in names_in(place)]) for place in only]
    size = login.host.slurm.nodes_per_engine
    opened = open_nodes(login, n_nodes=n_places * size, on_wait=on_wait, patience_s=patience_s)
    return [grouped(opened[i : i + size]) for i in range(0, len(opened) - size + 1, size)]
