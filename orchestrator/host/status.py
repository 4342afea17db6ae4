"""What of an engine that orch started lives now."""

from __future__ import annotations

from typing import Any, Dict

from . import engine_state, process_table


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the record (None without one), whether its leader lives, and every live pid, the leader first."""
    record = engine_state.read_record(request["state_dir"])
    if record is None:
        return {"record": None, "is_running": False, "pids": []}
    table = process_table.processes()
    alive = engine_state.members(request["state_dir"], record, table)
    leader = engine_state.leader(record, table)
    if leader and record["pid"] is None:
        record.update(
            pid=leader.pid, start=leader.start, start_ticks=leader.start_ticks, started_s=round(leader.started_s, 3)
        )
        engine_state.write_record(request["state_dir"], record)
    return {"record": record, "is_running": leader is not None, "pids": [one.pid for one in alive]}
