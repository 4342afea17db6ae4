"""What of an engine lives on its host now, by whomever it was started. Looks only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from orchestrator.connection import Remote
from orchestrator.errors import EngineError
from orchestrator.host import engine_port, engine_state_dir, run_program
from orchestrator.records import Engine, EngineProcess


def running(remote: Remote, engine: Engine) -> EngineProcess | None:
    """The engine that orch started, when its leader lives; None otherwise, though workers of it may be left.

    Where its unit, container or user has started it again since, the leader that it has now.
    """
    answer = _status(remote, engine)
    if answer["heir"]:
        return engine_process(remote, {**answer["record"], **answer["heir"]})
    return engine_process(remote, answer["record"]) if answer["is_running"] else None


def present(remote: Remote, engine: Engine) -> EngineProcess | None:
    """Like ``running``; of a unit, a container or a port of the user's also an engine that orch has not started."""
    answer = _status(remote, engine)
    if answer["heir"] or answer["is_running"]:
        return engine_process(remote, {**answer["record"], **(answer["heir"] or {})})
    if answer["present"] is None:
        return None
    unknown = {"engine": engine.name, "log_path": engine.log, "deployed_digest": None}
    return engine_process(remote, {**unknown, **answer["present"]})


def ran_before(remote: Remote, engine: Engine) -> bool:
    """Whether the engine ran before orch started it for the first time."""
    record = _status(remote, engine)["record"]
    return bool(record and record.get("ran_before"))


def owes_start(remote: Remote, engine: Engine, *, digest: str, changed_s: float | None) -> bool:
    """Whether the engine has to be started again so that the host is as it was before orch came.

    True when it ran then and orch has stopped it, and when it runs with other bytes in memory than those on the host.
    Never of an engine whose command orch runs itself: before orch came there was none.

    Args:
        digest: of what is on the host now. changed_s: when orch has just put it there; None when it was there.

    Raises:
        EngineError: what keeps the engine could not be asked.
    """
    answer = _status(remote, engine)
    record, found = answer["record"], answer["present"]
    if answer["error"]:
        raise EngineError(f"{remote.host.name}: engine {engine.name} cannot be looked at: {answer['error']}")
    if not answer["is_managed"]:
        return False
    if found is None:
        return bool(record and record.get("ran_before") and record["stopped_s"] is not None)
    if record is not None and record["stopped_s"] is None and record["deployed_digest"] is not None:
        return bool(record["deployed_digest"] != digest)  # not known of what the watcher started on a restored file
    return changed_s is not None and bool(found["started_s"] < changed_s)


def processes(remote: Remote, engine: Engine, process: EngineProcess) -> tuple[int, ...]:
    """Every live process of that start of the engine, the leader first; none when another start has followed."""
    answer = _status(remote, engine)
    record = answer["record"]
    is_same = record is not None and (record["pid"], record["start_ticks"]) == (process.pid, process.start_ticks)
    return tuple(answer["pids"]) if is_same else ()


def _status(remote: Remote, engine: Engine) -> Any:
    request = {"state_dir": engine_state_dir(remote.scratch_dir(), engine), "port": engine_port(engine)}
    return run_program(remote, engine, "status", request, doing=f"look for engine {engine.name}")


def engine_process(remote: Remote, record: Mapping[str, Any]) -> EngineProcess:
    """The leader that a record names."""
    started_s = float(record["started_s"])
    return EngineProcess(
        engine=record["engine"],
        host=remote.host.name,
        pid=record["pid"],
        start_ticks=record["start_ticks"],
        started_at=datetime.fromtimestamp(started_s, timezone.utc).isoformat(timespec="milliseconds"),
        started_s=started_s,
        log_path=record["log_path"] or "",
        deployed_digest=record["deployed_digest"],
    )
