"""For the watcher on the host, after it restored the file: ends the engine that still has the other one in memory.

Nobody is there to ask, so it is careful: it touches only what orch started, and starts an engine again only when orch
had one running, or had stopped it a moment ago (a controller that died between a stop and a start).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any, Dict

from . import engine_state, process_table
from .stop import stop

RESTART_WINDOW_S = 3600.0


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers what was ``stopped``, and the pid ``started`` or ``why_not_started``; fails when something survives."""
    state_dir = request["state_dir"]
    before = engine_state.read_record(state_dir)
    done = stop(state_dir, request["signal"], request["grace_s"])
    if done["survivors"]:
        raise SystemExit("still alive after KILL: %r" % done["survivors"])
    reason = _why_not(request, before)
    if before is None or reason:
        return {"stopped": done["stopped"], "started": None, "why_not_started": reason}
    return {"stopped": done["stopped"], "started": _start(request), "why_not_started": None}


def _why_not(request: Dict[str, Any], before: Any) -> Any:
    if not request["restart"]:
        return "restart_after_restore is not set"
    if before is None:
        return "orch has not started it since the host booted"
    if before["stopped_s"] is not None and time.time() - before["stopped_s"] > RESTART_WINDOW_S:
        return "orch stopped it long ago"
    taken = engine_state.describe_listeners(request["port"], ours=())
    return "port %d is taken: %r" % (request["port"], taken) if taken else None


def _start(request: Dict[str, Any]) -> int:
    """Starts it in its own session, with nothing inherited but the log; writes the record like any other start."""
    record = dict(request["record"], start=None, start_ticks=None, started_s=time.time(), stopped_s=None)
    record.update(pid=None, boot_id=engine_state.boot_id())
    engine_state.forget_members(request["state_dir"])
    engine_state.write_record(request["state_dir"], record)
    environment = dict(os.environ)
    environment.update(request["env"])
    environment[engine_state.MARK] = record["mark"]
    os.makedirs(os.path.dirname(record["log_path"]), exist_ok=True)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a background shell ignores them, and so would it
        signal.signal(number, signal.SIG_DFL)
    with open(record["log_path"], "wb") as log:
        child = subprocess.Popen(
            record["argv"],
            cwd=request["cwd"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    alive = process_table.process(child.pid)
    if alive:
        record.update(start=alive.start, start_ticks=alive.start_ticks)
    record["pid"] = child.pid
    engine_state.write_record(request["state_dir"], record)
    child.returncode = 0  # it outlives this program on purpose: no warning about a child that was not waited for
    return child.pid
