"""What is on the host now: ``orch status``."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import serve
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
    """

    live: Live
    engine: EngineProcess | None
    engine_is_older: bool
    opened: tuple[OpenDeployment, ...]


def host_status(session: Session) -> HostStatus:
    """Looks at files, lease and engine; finishes the record of what a killed controller left open."""
    live = reconcile(session, look(session, "status"))
    process = serve.present(session.remote, session.engine)
    changed_s = max((state.ctime_s for state in live.states if state.ctime_s is not None), default=None)
    is_older = process is not None and changed_s is not None and process.started_s < changed_s
    return HostStatus(live, process, is_older, tuple(open_here(session)))
