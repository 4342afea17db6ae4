"""For the watcher on the host, after it restored the file: ends the engine that still has the other one in memory.

Nobody is there to ask, so it is careful: it touches only what orch started, and starts an engine again only when it ran
before orch came, or when the inventory wants it and orch had one running, or had stopped it a moment ago (a controller
that died between a stop and a start).
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional, Tuple

from . import engine_state, launchers, launching, start
from .launching import LaunchError
from .stop import stop

RESTART_WINDOW_S = 3600.0


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers what was ``stopped``, and the pid ``started`` or ``why_not_started``; fails when something survives."""
    state_dir, launcher = request["state_dir"], launchers.of(request["launcher"])
    before = engine_state.read_record(state_dir)
    try:
        done = stop(state_dir, request["signal"], request["grace_s"], request["launcher"])
    except LaunchError as exc:
        raise SystemExit("still running: %s" % exc) from exc
    if done["survivors"]:
        raise SystemExit("still alive after KILL: %r" % done["survivors"])
    reason = _why_not(request, before, launcher)
    if before is None or reason:
        return {"stopped": done["stopped"], "started": None, "why_not_started": reason}
    pid, reason = _start(request, launcher)
    return {"stopped": done["stopped"], "started": pid, "why_not_started": reason}


def _why_not(request: Dict[str, Any], before: Any, launcher: launching.Launcher) -> Any:
    if before is not None and not launcher.can_stop:
        return None if launcher.can_start else "it still holds the other file in memory: nobody is there to restart it"
    if not request["restart"] and not (before and before.get("ran_before")):
        return "restart_after_restore is not set"
    if before is None:
        return "orch has not started it since the host booted"
    if before["stopped_s"] is not None and time.time() - before["stopped_s"] > RESTART_WINDOW_S:
        return "orch stopped it long ago"
    place = launcher.listens_at(request["port"])
    taken = engine_state.describe_listeners(place.port, ours=(), network_of=place.pid)
    return "port %d is taken: %r" % (request["port"], taken) if taken else None


def _start(request: Dict[str, Any], launcher: launching.Launcher) -> Tuple[Optional[int], Optional[str]]:
    """Starts it as anybody does, and writes the record like any other start; its pid, or why there is none."""
    try:
        answer = start.launch(request)
    except LaunchError as exc:
        return None, str(exc)
    if answer["outcome"] == "started":
        return int(answer["record"]["pid"]), None
    return None, answer["outcome"]
