"""A start of an engine: claim the port and the state folder, launch, find the leader, and write it down.

The claim is written first, so that an engine whose start was cut off after it can still be found and stopped. A command
is launched by the controller's line between ``claim`` and ``record``; every other launcher is asked by ``launch``, and
``find`` is repeated while its leader is not there yet.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import engine_state, launchers, launching, process_table, shared_memory
from .launching import Launcher, LaunchError
from .process_table import Process
from .stop import signal_until_gone


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Does ``request["step"]``: ``claim``, ``record``, ``launch`` or ``find``."""
    try:
        return _STEPS[request["step"]](request)
    except LaunchError as exc:
        return {"outcome": "failed", "reason": str(exc), "log": exc.evidence}


def claim(request: Dict[str, Any]) -> Dict[str, Any]:
    """Refuses while anything of an earlier start lives or anything listens on the port; else notes the intent.

    What runs under a unit, a container or a restart command is the engine whoever started it, and makes way.
    """
    state_dir, launcher = request["state_dir"], launchers.of(request["launcher"])
    table = process_table.processes()
    earlier = engine_state.read_record(state_dir)
    present = launcher.present(request["port"], table)
    alive = engine_state.members(state_dir, earlier, table) if earlier else []
    if launcher.is_managed:
        ran_before = _ran_before(earlier, present)
        strangers = _strangers(request, launcher, present, alive, table)
        if strangers:  # found out before anything is ended for nothing
            return {"outcome": "taken", "listeners": strangers}
        alive = _make_way(request, launcher, present, alive) if launcher.can_stop else []
    else:
        ran_before = False
    if alive:
        return {
            "outcome": "running",
            "deployed_digest": earlier["deployed_digest"] if earlier else None,
            "processes": [{"pid": one.pid, "command": engine_state.command_of(one.pid)} for one in alive],
        }
    place = launcher.listens_at(request["port"])
    listeners = engine_state.describe_listeners(place.port, ours=(), network_of=place.pid)
    if listeners and launcher.can_stop:  # else whoever listens is the engine
        return {"outcome": "taken", "listeners": listeners}
    engine_state.forget_members(state_dir)
    shared_memory.begin(state_dir)
    record: Dict[str, Any] = {"pid": None, "start": None, "start_ticks": None, "started_s": None, "stopped_s": None}
    record.update(request["record"], boot_id=engine_state.boot_id(), ran_before=ran_before)
    engine_state.write_record(state_dir, record)
    return {"outcome": "claimed"}


def _strangers(
    request: Dict[str, Any],
    launcher: Launcher,
    present: Optional[Process],
    alive: List[Process],
    table: List[Process],
) -> List[Dict[str, Any]]:
    """Who listens on the port of an engine that can be ended, and is not of it."""
    if not launcher.can_stop:
        return []
    kept: List[Process] = []
    place = launching.Place(request["port"])
    if present is not None:
        kept, place = engine_state.kept_by(launcher, present, request["port"], table)
    own = [one.pid for one in [*kept, *alive]]
    listeners = engine_state.describe_listeners(place.port, ours=own, network_of=place.pid)
    return [one for one in listeners if not one["is_ours"]]


def _ran_before(earlier: Optional[Dict[str, Any]], present: Optional[Process]) -> bool:
    """Whether the engine ran before orch came, so that it has to run again when orch goes."""
    if earlier is not None and (present is not None) == (earlier["stopped_s"] is None):
        return bool(earlier.get("ran_before"))  # as orch left it: its own start runs, or it has stopped it
    return present is not None


def _make_way(
    request: Dict[str, Any], launcher: Launcher, present: Optional[Process], alive: List[Process]
) -> List[Process]:
    """Has the manager end what runs; returns what still lives."""
    if present is None and not alive:
        return []
    launcher.end(request["grace_s"])
    wanted = {(one.pid, one.start) for one in [*alive, *([present] if present else [])]}

    def left() -> List[Process]:
        return [one for one in process_table.processes() if (one.pid, one.start) in wanted]

    return signal_until_gone(left, request["signal"], request["grace_s"])


def _record(request: Dict[str, Any]) -> Dict[str, Any]:
    record = _claimed(request)
    ticks = request["start_ticks"]
    alive = process_table.process(request["pid"])
    start = str(ticks) if ticks is not None else alive.start if alive else ""
    record.update(pid=request["pid"], start=start, start_ticks=ticks, started_s=request["started_s"])
    engine_state.write_record(request["state_dir"], record)
    return {}


def launch(request: Dict[str, Any]) -> Dict[str, Any]:
    """Claims, asks for the start, and looks for the leader for one window of time."""
    answer = claim(request)
    if answer["outcome"] != "claimed":
        return answer
    record = _claimed(request)
    launchers.of(request["launcher"]).launch(record, request)
    pid, record["pid"] = record["pid"], None  # a pid without its start is nobody's
    engine_state.write_record(request["state_dir"], record)
    record["pid"] = pid
    return _find(request, record)


def find(request: Dict[str, Any]) -> Dict[str, Any]:
    """Looks for the leader of a start that was asked for, for one window of time."""
    return _find(request, _claimed(request))


def _find(request: Dict[str, Any], record: Dict[str, Any]) -> Dict[str, Any]:
    """Answers ``started`` with the record, ``starting`` while there is no leader yet, ``dead`` when none will come."""
    launcher = launchers.of(request["launcher"])
    try:
        leader = launching.await_leader(launcher, record, request["window_s"])
        if leader is None:
            return {"outcome": "starting"}
        record.update(launching.found(leader))
        record.update(launcher.describe(record, leader))
    except LaunchError as exc:
        return {"outcome": "dead", "reason": str(exc), "log": exc.evidence}
    engine_state.write_record(request["state_dir"], record)
    return {"outcome": "started", "record": record}


def _claimed(request: Dict[str, Any]) -> Dict[str, Any]:
    record = engine_state.read_record(request["state_dir"])
    if record is None:
        raise SystemExit("the claim in %s is gone" % request["state_dir"])
    return record


_STEPS = {"claim": claim, "record": _record, "launch": launch, "find": find}
