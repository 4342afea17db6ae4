"""The two steps around a start: claim the port and the state folder before it, write down the process after it.

The claim is written first, so that an engine whose start was cut off between the two can still be found and stopped.
"""

from __future__ import annotations

from typing import Any, Dict

from . import engine_state, process_table


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Does ``request["step"]``: ``claim`` or ``record``."""
    return _claim(request) if request["step"] == "claim" else _record(request)


def _claim(request: Dict[str, Any]) -> Dict[str, Any]:
    """Refuses while anything of an earlier start lives or anything listens on the port; else notes the intent."""
    state_dir = request["state_dir"]
    earlier = engine_state.read_record(state_dir)
    if earlier:
        alive = engine_state.members(state_dir, earlier, process_table.processes())
        if alive:
            return {
                "outcome": "running",
                "deployed_digest": earlier["deployed_digest"],
                "processes": [{"pid": one.pid, "command": engine_state.command_of(one.pid)} for one in alive],
            }
    listeners = engine_state.describe_listeners(request["port"], ours=())
    if listeners:
        return {"outcome": "taken", "listeners": listeners}
    engine_state.forget_members(state_dir)
    record: Dict[str, Any] = {"pid": None, "start": None, "start_ticks": None, "started_s": None, "stopped_s": None}
    record.update(request["record"], boot_id=engine_state.boot_id())
    engine_state.write_record(state_dir, record)
    return {"outcome": "claimed"}


def _record(request: Dict[str, Any]) -> Dict[str, Any]:
    record = engine_state.read_record(request["state_dir"])
    if record is None:
        raise SystemExit("the claim in %s is gone" % request["state_dir"])
    ticks = request["start_ticks"]
    alive = process_table.process(request["pid"])
    start = str(ticks) if ticks is not None else alive.start if alive else ""
    record.update(pid=request["pid"], start=start, start_ticks=ticks, started_s=request["started_s"])
    engine_state.write_record(request["state_dir"], record)
    return {}
