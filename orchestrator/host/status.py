"""What of an engine that orch started lives now."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import engine_state, launchers, launching, process_table
from .launching import LaunchError
from .process_table import Process


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the record (None without one), whether its leader lives, and every live pid, the leader first.

    Of a managed engine also who leads it now (``present``), by whomever it was started: of a start that orch has not
    ended, that one is the ``heir`` when the leader is another. ``error``: its manager could not be asked.
    """
    record, launcher = engine_state.read_record(request["state_dir"]), launchers.of(request["launcher"])
    table = process_table.processes()
    present, error = None, None
    if launcher.is_managed:
        try:
            present = launcher.present(request["port"], table)
        except LaunchError as exc:
            error = str(exc)
    answer = {
        "present": launching.found(present) if present else None,
        "is_managed": launcher.is_managed,
        "error": error,
    }
    if record is None:
        return {**answer, "record": None, "is_running": False, "heir": None, "pids": []}
    alive = engine_state.members(request["state_dir"], record, table)
    leader = engine_state.leader(record, table)
    if leader and record["pid"] is None:
        record.update(launching.found(leader))
        engine_state.write_record(request["state_dir"], record)
    return {
        **answer,
        "record": record,
        "is_running": leader is not None,
        "heir": _heir(record, leader, present),
        "pids": [one.pid for one in alive],
    }


def _heir(record: Dict[str, Any], leader: Optional[Process], present: Optional[Process]) -> Optional[Dict[str, Any]]:
    """Who leads now what orch started and has not ended, where its manager has started it again."""
    if leader is not None or present is None or record["stopped_s"] is not None:
        return None
    return launching.found(present)
