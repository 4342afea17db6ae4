"""One target, connected: what an operation needs in hand, and what is live on the host just now.

``open_session`` gives project, store, target, engine and an open ``Remote``. ``look`` is the one way to see the host's
files: every look is stored as an observation, and the answer has the name (baseline, a variant) of what was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator import push, variant, workspace
from orchestrator.connection import Remote, connect
from orchestrator.errors import WorkspaceError
from orchestrator.project import Project
from orchestrator.records import CLEAN, Engine, FileState, Lease, Progress, Snapshot, Target, Variant, manifest_digest
from orchestrator.store import LookSource, Store

BASELINE = "baseline"


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class Session:
    """A connected target. ``report`` is told of every step."""

    project: Project
    store: Store
    target: Target
    engine: Engine
    remote: Remote
    report: Report = silent

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
def open_session(project: Project, target_name: str | None, report: Report = silent) -> Iterator[Session]:
    """Connects to the target's host and opens the store; both are closed at the end."""
    target = project.target(target_name)
    with Store.open(project.db_path) as store:
        report(Progress("connect", f"connecting to {target.host}"))
        with connect(project.host_of(target)) as remote:
            yield Session(project, store, target, project.engine_of(target), remote, report)


@dataclass(frozen=True, slots=True)
class Live:
    """What is on the host at one moment.

    Attributes:
        digest: of the set of files; None when one is missing.
        name: ``baseline``, a variant's name, or None when orch does not know these bytes.
        lease: the one that is held on the first file, if any.
        is_ours: whether the lease's nonce is one that this project drew.
        nonce: the nonce of this project's open deployment, if there is one.
    """

    states: tuple[FileState, ...]
    digest: str | None
    name: str | None
    lease: Lease | None
    is_ours: bool
    nonce: str | None
    deployed_variant: str | None = None
    by_file: Mapping[str, str | None] = field(default_factory=dict)

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
    states = push.status(session.remote, session.target)
    session.store.record_states(session.target.host, session.target, states, source, expected)
    digest = set_digest(session.target, states)
    names = known_names(session.project, session.store, session.target)
    opened = session.store.open_deployments(session.target.name)
    lease = next((state.lease for state in states if state.lease is not None), None)
    nonces = {deployment.nonce for deployment in opened}
    return Live(
        states=states,
        digest=digest,
        name=names.get(digest) if digest is not None else None,
        lease=lease,
        is_ours=lease is not None and lease.nonce in nonces,
        nonce=opened[0].nonce if opened else None,
        deployed_variant=opened[0].variant if opened else None,
        by_file={file.name: state.digest for file, state in zip(session.target.files, states, strict=True)},
    )
