"""Stops every process of an engine that orch started, and makes sure that it is gone.

A unit or a container is ended by what keeps it first. Each signal goes to one process whose pid and start were just
compared (through a pidfd where there is one, which a reused pid cannot fool). What appears meanwhile is found by
looking again until nothing is left.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, List, Mapping

from . import engine_state, launchers, process_table, shared_memory
from .launching import LaunchError
from .process_table import Process

POLL_S = 0.05
KILL_WAIT_S = 15.0


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Stops the engine of ``state_dir``; answers the pids that it ``stopped`` and, with commands, the ``survivors``.

    ``shared_memory`` is what became of what it left there, see ``shared_memory.sweep``.
    """
    try:
        return stop(request["state_dir"], request["signal"], request["grace_s"], request["launcher"])
    except LaunchError as exc:
        return {"stopped": [], "survivors": [], "reason": str(exc), "log": exc.evidence}


def stop(state_dir: str, signal_name: str, grace_s: float, settings: Mapping[str, Any]) -> Dict[str, Any]:
    """The signal to all, KILL to what is left after the grace; safe to repeat, and does nothing when nothing lives.

    What runs under a manager after orch had stopped its own is not touched, nor what cannot be started again.

    Raises:
        LaunchError: the manager refused to end it.
    """
    record, launcher = engine_state.read_record(state_dir), launchers.of(settings)
    is_over = record is not None and record["stopped_s"] is not None and launcher.is_managed
    if record is None or is_over or not launcher.can_stop:
        return {"stopped": [], "survivors": []}
    members = _members(state_dir, record)
    found = {one.pid for one in members}
    shared_memory.note(state_dir, members)
    launcher.end(grace_s)
    alive = signal_until_gone(lambda: _members(state_dir, record), signal_name, grace_s)
    if not alive and record["stopped_s"] is None:
        record["stopped_s"] = time.time()
        engine_state.write_record(state_dir, record)
    survivors = [{"pid": one.pid, "command": engine_state.command_of(one.pid)} for one in alive]
    left_behind = {} if alive else shared_memory.sweep(state_dir)
    return {
        "stopped": sorted(found - {one.pid for one in alive}),
        "survivors": survivors,
        "shared_memory": left_behind,
    }


def signal_until_gone(look: Callable[[], List[Process]], signal_name: str, grace_s: float) -> List[Process]:
    """The signal to each process that a look finds, and KILL after the grace; returns what still lives in the end."""
    alive = _signal_until_gone(look, signal.Signals["SIG" + signal_name], grace_s)
    return _signal_until_gone(look, signal.SIGKILL, KILL_WAIT_S) if alive else []


def _members(state_dir: str, record: Dict[str, Any]) -> List[Process]:
    return engine_state.members(state_dir, record, process_table.processes())


def _signal_until_gone(look: Callable[[], List[Process]], number: signal.Signals, patience_s: float) -> List[Process]:
    """Sends a signal once to each process of the engine, later ones too; returns what still lives in the end."""
    deadline_s = time.monotonic() + patience_s
    signalled = set()
    while True:
        alive = look()
        for one in alive:
            if (one.pid, one.start) not in signalled:
                signalled.add((one.pid, one.start))
                _send(one, number)
        if not alive or time.monotonic() >= deadline_s:
            return alive
        time.sleep(POLL_S)


def _send(target: Process, number: signal.Signals) -> None:
    """Signals exactly this process, or nobody."""
    try:
        descriptor = os.pidfd_open(target.pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        descriptor = None  # ended, or a kernel without pidfds
    try:
        same = process_table.process(target.pid)
        if same is None or same.start != target.start:
            return
        if descriptor is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(descriptor, number)
        else:
            os.kill(target.pid, number)
    except ProcessLookupError:
        pass  # ended by itself meanwhile: what was wanted
    except PermissionError:
        pass  # somebody else's by now; it stays listed among the survivors
    finally:
        if descriptor is not None:
            os.close(descriptor)
