"""One target, connected: what an operation needs in hand, and what is live on the host just now.

``open_session`` gives project, store, target, engine and an open ``Remote``; on a cluster that is a node which Slurm
gave, or the group of nodes that one engine spans, and the target's host is called by it (``cluster/n1``,
``cluster/n1+n2``), in the record too. ``look`` is the one way to see the host's files: every look is stored as an
observation, and the answer has the name (baseline, a variant) of what was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator import push, spanning, variant, workspace
from orchestrator.connection import Remote, connect
from orchestrator.connection.slurm import NodeRemote, give_back, held_nodes, node_name, open_nodes
from orchestrator.connection.slurm_group import JOINT, grouped, names_in, node_of, open_places
from orchestrator.errors import NodeLostError, OrchError, WorkspaceError
from orchestrator.project import Project
from orchestrator.records import (
    CLEAN,
    Engine,
    FileState,
    Host,
    Lease,
    Progress,
    Snapshot,
    Target,
    Variant,
    manifest_digest,
    short,
)
from orchestrator.store import LookSource, OpenDeployment, Store

BASELINE = "baseline"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class Session:
    """A connected target. ``report`` is told of every step.

    Attributes:
        is_locked: whether no other orch of this project can be at work on the target.
        ask: tells the user at a terminal what only a user can do; None where there is none.
    """

    project: Project
    store: Store
    target: Target
    engine: Engine
    remote: Remote
    is_locked: bool
    report: Report = silent
    ask: Callable[[str], None] | None = None

    @property
    def is_node(self) -> bool:
        """Whether the host is a node that Slurm gave; other nodes may hold the same target then."""
        return isinstance(self.remote, NodeRemote)

    @property
    def is_whole(self) -> bool:
        """Whether there are as many machines here as an engine spans; of a group that lost a node there are not."""
        slurm = self.remote.host.slurm
        return len(self.remote.members) == (1 if slurm is None else slurm.nodes_per_engine)

    @property
    def n_places(self) -> int:
        """How many engines an experiment has at a time, each on a node, or a group of nodes, of its own."""
        slurm = self.remote.login.host.slurm if isinstance(self.remote, NodeRemote) else None
        return 1 if slurm is None else slurm.nodes // slurm.nodes_per_engine

    def together(self, seen: Sequence[Sequence[FileState]]) -> spanning.Together:
        """One answer out of the files of every node that the engine spans."""
        return spanning.together(seen, self.store.is_own_nonce)

    def say(self, stage: str, text: str) -> None:
        """Reports one step."""
        self.report(Progress(stage, text))

    def baseline(self) -> Snapshot:
        """The recorded baseline.

        Raises:
            WorkspaceError: nothing was pulled yet.
        """
        stored = self.store.baseline(self.target.name)
        if stored is None:
            raise WorkspaceError(f"target {self.target.name} has no recorded baseline", next_step="run `orch pull`")
        return stored


@contextlib.contextmanager
def open_session(
    project: Project,
    target_name: str | None,
    report: Report = silent,
    *,
    is_exclusive: bool = True,
    is_patient: bool = True,
    takes_part: bool = False,
    ask: Callable[[str], None] | None = None,
) -> Iterator[Session]:
    """Connects to the target's host and opens the store; both are closed at the end.

    Args:
        is_exclusive: keep every other orch of this project away from the target meanwhile; a mere look goes on
            without when another one is at work.
        is_patient: on a cluster, wait for a node where none is held.
        takes_part: of a group of nodes on which something of ours may be live, those that are held will do.
        ask: tells the user at a terminal what only a user can do; None where there is none.

    Raises:
        LeaseHeldError: another orch of this project is at work on the target.
    """
    target = project.target(target_name)
    with project.lock(target, is_required=is_exclusive) as is_locked, Store.open(project.db_path) as store:
        report(Progress("connect", f"connecting to {target.host}"))
        host = project.host_of(target)
        with connect(host) as remote:
            session = Session(project, store, target, project.engine_of(target), remote, is_locked, report, ask)
            yield session if host.slurm is None else _on_a_node(session, may_ask=is_patient, takes_part=takes_part)


# ---- nodes of a cluster


def open_nodes_for(session: Session, n_places: int) -> list[NodeRemote]:
    """Places for the target of a session that is on one: so many, and all on which something of ours may be live.

    Raises:
        NodeLostError: Slurm did not give so many nodes.
    """
    assert isinstance(session.remote, NodeRemote)
    login, on_wait = session.remote.login, _waiting(session)
    names = [*_nodes_in_use(session.store, session.target, login.host), session.remote.node]
    first = open_places(login, only=list(dict.fromkeys(names)), on_wait=on_wait)
    if len(first) >= n_places:
        return first
    assert login.host.slurm is not None
    taken, size = {node for place in first for node in names_in(place.node)}, login.host.slurm.nodes_per_engine
    opened = open_nodes(login, n_nodes=n_places * size, on_wait=on_wait)
    free = [remote for remote in opened if remote.node not in taken]
    more = [grouped(free[i : i + size]) for i in range(0, len(free) - size + 1, size)]
    return [*first, *more][:n_places]


@contextlib.contextmanager
def session_on(session: Session, remote: NodeRemote) -> Iterator[Session]:
    """The same target on another node, with a store of its own: for another thread."""
    with Store.open(session.project.db_path) as store:
        yield _at(session, remote, store)


def nodes_in_use(session: Session) -> list[str]:
    """The other nodes on which something of ours may be live; none when the host is no cluster."""
    if not isinstance(session.remote, NodeRemote):
        return []
    in_use = _nodes_in_use(session.store, session.target, session.remote.login.host)
    return [node for node in in_use if node != session.remote.node]


def on_node(session: Session, node: str) -> Session:
    """The same target on a node that is named, which Slurm is asked for where it is not held."""
    assert isinstance(session.remote, NodeRemote)
    (remote,) = open_places(session.remote.login, only=[node], on_wait=_waiting(session))
    return _at(session, remote, session.store)


def end_nodes(session: Session) -> None:
    """Gives every node of the host back to Slurm; what still holds a file there restores it first."""
    assert isinstance(session.remote, NodeRemote)
    give_back(session.remote.login)


def _on_a_node(session: Session, *, may_ask: bool, takes_part: bool) -> Session:
    """The target on one node or group: where something of ours may be live, else any that this host has or is given.

    Args:
        may_ask: wait for a node where there is none. A mere look does so only where something of ours may be live.
        takes_part: do not wait for the rest of a group of which some nodes are held.

    Raises:
        NodeLostError: there is none.
    """
    login = session.remote
    in_use = _nodes_in_use(session.store, session.target, login.host)
    assert login.host.slurm is not None
    size, held = login.host.slurm.nodes_per_engine, list(dict.fromkeys(held_nodes(login)))
    if not (may_ask or in_use or len(held) >= size):
        raise NodeLostError(
            f"{login.host.name}: no node is held, and nothing of this project is deployed on one",
            next_step="`orch pull` and `orch bench` ask Slurm for one; `orch status --offline` shows the record",
        )
    only = in_use[:1] or ([JOINT.join(held[:size])] if len(held) >= size else [])
    if takes_part:
        only = [_answering(login, place, held) for place in only]
    (remote,) = open_places(login, only=only, on_wait=_waiting(session))
    return _at(session, remote, session.store)


def _answering(login: Remote, place: str, held: Sequence[str]) -> str:
    """Those nodes of a group that are held and answer; all of it where none does, or it is a node by itself."""
    names, there = names_in(place), []
    for node in names if len(names) > 1 else ():
        with contextlib.suppress(OrchError):
            if node in held:
                open_nodes(login, only=[node])
                there.append(node)
    return JOINT.join(there) or place


def _nodes_in_use(store: Store, target: Target, host: Host) -> list[str]:
    prefix = node_name(host, "")
    hosts = [opened.host for opened in store.open_deployments(target.name) if opened.host.startswith(prefix)]
    return [name.removeprefix(prefix) for name in dict.fromkeys(hosts)]


def _at(session: Session, remote: NodeRemote, store: Store) -> Session:
    return replace(session, remote=remote, store=store, target=replace(session.target, host=remote.host.name))


def _waiting(session: Session) -> Callable[[float, str], None]:
    return lambda seconds, text: session.report(Progress("node", f"waiting for Slurm: {text}", elapsed_s=seconds))


def open_here(session: Session) -> list[OpenDeployment]:
    """What of this project is (or may be) on this host now, oldest first; what is on other nodes is not."""
    opened = session.store.open_deployments(session.target.name)
    return [one for one in opened if one.host == session.target.host] if session.is_node else opened


@dataclass(frozen=True, slots=True)
class Live:
    """What is on the host at one moment.

    Attributes:
        digest: of the set of files; None when one is missing.
        name: ``baseline``, a variant's name, or None when orch does not know these bytes.
        lease: the one that is held on the first file, if any.
        nonce: of that lease when this project took it, whatever became of the push; None when it is somebody else's.
        deployment: this project's open deployment under that lease, the newest; None when there is none.
        by_file: digest by file name.
        by_node: of an engine that spans several nodes, what each of them has, for people; empty when all have the same.
        is_torn: whether a push or a restore reached only some of those nodes: all of them have to be put back.
    """

    states: tuple[FileState, ...]
    digest: str | None
    name: str | None
    lease: Lease | None
    nonce: str | None
    deployment: OpenDeployment | None
    by_file: Mapping[str, str | None] = field(default_factory=dict)
    by_node: Mapping[str, str] = field(default_factory=dict)
    is_torn: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether this project holds the lease."""
        return self.nonce is not None

    @property
    def is_clean(self) -> bool:
        """Whether the host's journal says that nothing of orch's is deployed."""
        return all(state.phase == CLEAN for state in self.states)


def read_variant(project: Project, target: Target, name: str) -> Variant:
    """A variant as it is in the workspace now, with everything that it changes against the baseline it was made from.

    Raises:
        UnknownNameError: no such variant. WorkspaceError: its files, or its base's, cannot be read.
        VariantError: it does not parse, or changes nothing.
    """
    working = workspace.read_working_copy(project.variants_root, target, name)
    base = workspace.read_baseline(project.variants_root, target, working.base_digest)
    return variant.make_variant(base.files, working, target.kernel)


def set_digest(target: Target, states: tuple[FileState, ...]) -> str | None:
    """Digest of a target's files as seen; None when one is missing."""
    entries = [(file.name, state.digest) for file, state in zip(target.files, states, strict=True)]
    if any(digest is None for _, digest in entries):
        return None
    return manifest_digest((name, digest) for name, digest in entries if digest is not None)


def known_names(project: Project, store: Store, target: Target) -> dict[str, str]:
    """Digest → name, for everything that this project knows: working copies, variants once stored, the baseline."""
    names = dict(store.variant_names(target.name))
    for working in workspace.list_variants(project.variants_root, target):
        names[working.digest] = working.name
    stored = store.baseline(target.name)
    if stored is not None:
        names[stored.digest] = BASELINE
    return names


def look(session: Session, source: LookSource, expected: Mapping[str, str] | None = None) -> Live:
    """Looks at the host's files, stores the observation, and names what was found.

    Args:
        source: why: ``status``, ``push``, ``bench-before`` …
        expected: digest by file name; another one there is stored as unexpected.
    """
    seen = [push.status(member, session.target) for member in session.remote.members]
    all_of_them = session.together(seen)
    states = all_of_them.states
    session.store.record_states(session.target.host, session.target, states, source, expected)
    digest = set_digest(session.target, states)
    names = known_names(session.project, session.store, session.target)
    lease = next((state.lease for state in states if state.lease is not None), None)
    nonce = lease.nonce if lease is not None and session.store.is_own_nonce(lease.nonce) else None
    opened = open_here(session)
    ours = [deployment for deployment in opened if deployment.nonce == nonce]
    return Live(
        states=states,
        digest=digest,
        name=names.get(digest) if digest is not None else None,
        lease=lease,
        nonce=nonce,
        deployment=ours[-1] if ours else None,
        by_file={file.name: state.digest for file, state in zip(session.target.files, states, strict=True)},
        by_node={} if all_of_them.is_alike else _by_node(session, seen, names),
        is_torn=all_of_them.is_torn,
    )


def _by_node(session: Session, seen: Sequence[tuple[FileState, ...]], names: Mapping[str, str]) -> dict[str, str]:
    """What each node has, where they differ."""
    found = {}
    for member, states in zip(session.remote.members, seen, strict=True):
        digest = set_digest(session.target, states)
        name = names.get(digest or "", "a file is missing" if digest is None else "unknown bytes")
        is_clean = all(state.phase == CLEAN for state in states)
        found[node_of(member)] = f"{name} {short(digest)} ({'clean' if is_clean else 'deployed by orch'})"
    return found
