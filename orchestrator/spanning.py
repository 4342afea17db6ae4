"""What it means that one engine spans several nodes: a command for each rank, and one answer out of several nodes'.

Pure: nothing here asks a node. The nodes of a group are in the order of their ranks, the head (rank 0) first. How a
group is reached is ``connection/slurm_group.py``; what is done on all of it is ``experiment/everywhere.py`` for files
and leases, ``serve/ranks.py`` for the engine's processes, ``provenance.py`` for the proof.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.records import CLEAN, Engine, FileState, Lease, digest_of

RANK, N_NODES, HEAD = "{node_rank}", "{n_nodes}", "{head_node}"
PLACEHOLDERS = (RANK, N_NODES, HEAD)
"""Stand in the command and in the values of ``env`` of an engine that spans several nodes."""

_Fact = str | int | float | None


def placeholders_in(engine: Engine) -> list[str]:
    """Those that an engine's command or environment has."""
    texts = [*engine.command, *engine.env.values()]
    return [one for one in PLACEHOLDERS if any(one in text for text in texts)]


def of_rank(engine: Engine, rank: int, nodes: Sequence[str]) -> Engine:
    """The engine as it is started on one node of a group.

    Args:
        nodes: their names, the head first. rank: which of them.
    """
    values = {RANK: str(rank), N_NODES: str(len(nodes)), HEAD: nodes[0]}

    def filled(text: str) -> str:
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    return replace(
        engine,
        command=tuple(filled(word) for word in engine.command),
        env={name: filled(value) for name, value in engine.env.items()},
    )


# ---- the files of a group


@dataclass(frozen=True, slots=True)
class Together:
    """The files of a target as seen on every node of a group.

    Attributes:
        states: one for each file. Where the nodes differ its digest is that of nothing, for no name may fit it.
        is_alike: whether every node has the same bytes, journal and lease.
        is_torn: whether the journals or our own lease differ: a push or a restore that reached a part of the group.
    """

    states: tuple[FileState, ...]
    is_alike: bool
    is_torn: bool


def together(seen: Sequence[Sequence[FileState]], is_own: Callable[[str], bool]) -> Together:
    """One answer out of what every node has; of one machine what it has.

    Args:
        seen: the files of each node, the head's first. is_own: whether a lease, by its nonce, is this project's.
    """
    if len(seen) == 1:
        return Together(tuple(seen[0]), True, False)
    by_file = list(zip(*seen, strict=True))
    leases = [[state.lease for state in states] for states in by_file]
    is_torn = any(len({_journal(state) for state in states}) > 1 for states in by_file)
    is_torn = is_torn or any(_is_held_in_part(of_file, is_own) for of_file in leases)
    has_same_bytes = all(len({state.digest for state in states}) == 1 for states in by_file)
    joined = tuple(_joined(states, is_own) for states in by_file)
    return Together(joined, has_same_bytes and not is_torn, is_torn)


def _journal(state: FileState) -> tuple[str | None, ...]:
    return (state.phase, state.base_digest, state.pushed_digest)


def _is_held_in_part(leases: Iterable[Lease | None], is_own: Callable[[str], bool]) -> bool:
    nonces = {lease.nonce if lease is not None and is_own(lease.nonce) else None for lease in leases}
    return len(nonces) > 1


def _joined(states: Sequence[FileState], is_own: Callable[[str], bool]) -> FileState:
    """One file: the first node's on which something is deployed, with the newest times and the lease that binds."""
    shown = next((state for state in states if state.phase != CLEAN), states[0])
    digests = [state.digest for state in states]
    digest = digests[0]
    if len(set(digests)) > 1:
        digest = None if None in digests else digest_of("\n".join(map(str, digests)).encode())
    leases = [state.lease for state in states if state.lease is not None]
    foreign = [lease for lease in leases if not is_own(lease.nonce) and lease.remaining_s > 0]
    return replace(
        shown,
        digest=digest,
        lease=min(foreign or leases, key=lambda lease: lease.remaining_s, default=None),
        mtime_s=max((state.mtime_s for state in states if state.mtime_s is not None), default=None),
        ctime_s=max((state.ctime_s for state in states if state.ctime_s is not None), default=None),
    )


# ---- the facts of a group


def facts_of_group(seen: Sequence[Mapping[str, _Fact]], nodes: Sequence[str]) -> dict[str, _Fact]:
    """The facts of every node as one: a value that all share once, others one after the other in the order of ranks.

    The names of the nodes are taken out of texts (the head's becomes ``{head_node}``), for they say where an engine
    ran and not what it is: another group may be given for the next start. What only the head can tell is the head's.
    """
    joined: dict[str, _Fact] = {}
    for name in seen[0]:
        values = [one.get(name) if name == "hostname" else _without_names(one.get(name), nodes) for one in seen]
        known = list(dict.fromkeys(value for value in values if value is not None))
        joined[name] = " | ".join(map(str, known)) if len(known) > 1 else next(iter(known), None)
    return joined


def _without_names(value: _Fact, nodes: Sequence[str]) -> _Fact:
    if not isinstance(value, str):
        return value
    for rank, node in enumerate(nodes):
        name = HEAD if rank == 0 else f"{{node_{rank}}}"
        value = re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", name, value)
    return value
