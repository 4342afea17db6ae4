"""What is on the host now: ``orch status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator import serve
from orchestrator.connection.slurm_group import node_of
from orchestrator.experiment.guards import reconcile
from orchestrator.records import EngineProcess
from orchestrator.session import Live, Session, look, open_here
from orchestrator.store import OpenDeployment


@dataclass(frozen=True, slots=True)
class HostStatus:
    """What is on the host now.

    Attributes:
        engine: the running engine that orch started, or who leads its unit, container or port; None when there is none.
        engine_is_older: whether it started before the live file's last change, so that it holds other bytes in memory.
        opened: what this project's record still holds open (a pushed variant, or what a killed controller left).
        ranks: of an engine that spans several nodes, its leader on each of them, by the node's name; None where none
            lives. Empty on one host.
    """

    live: Live
    engine: EngineProcess | None
    engine_is_older: bool
    opened: tuple[OpenDeployment, ...]
    ranks: Mapping[str, EngineProcess | None] = field(default_factory=dict)


def host_status(session: Session) -> HostStatus:
    """Looks at files, lease and engine; finishes the record of what a killed controller left open."""
    live = reconcile(session, look(session, "status"))
    process = serve.present(session.remote, session.engine)
    members = session.remote.members
    on_each = members if len(members) > 1 else ()
    ranks = {node_of(member): serve.present(member, session.engine) for member in on_each}
    changed_s = max((state.ctime_s for state in live.states if state.ctime_s is not None), default=None)
    is_older = process is not None and changed_s is not None and process.started_s < changed_s
    return HostStatus(live, process, is_older, tuple(open_here(session)), ranks)
