"""The engine runs already, and orch does not know how: a command of the user's starts it again, or the user does.

Its leader is who listens on its port. That it was started again is proved by another process there, with another start
time: an exit code of 0 alone proves nothing. It is never ended for good, for orch could not bring it back.
"""

from __future__ import annotations

import time
from typing import Any, List, Mapping, Optional, Sequence

from . import process_table
from .launching import Launcher, LaunchError, Record, call
from .process_table import Process

DYING_S = 1.0
"""A socket outlives its dying owner by a moment, in which nobody has it: one without an owner is looked at so long."""


class ManualLauncher(Launcher):
    """Whatever listens on the engine's port."""

    is_managed = True
    can_stop = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.can_start = bool(settings["restart_command"])

    def present(self, port: int, table: Sequence[Process]) -> Optional[Process]:
        """Who listens on the port; of several the one that the others descend from, or else the eldest."""
        found = _listening(port, table)
        by_pid = {one.pid for one in found}
        return min(found, key=lambda one: (one.parent in by_pid, one.started_s, one.pid)) if found else None

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Notes who listens now, and runs the user's command, where there is one."""
        record["port"] = order["port"]
        record["before"] = [[one.pid, one.start] for one in _listening(order["port"], process_table.processes())]
        command = self.settings["restart_command"]
        if command:
            call(command, self.timeout_s)

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The new listener, once none of those before is there any more."""
        before = {(pid, start) for pid, start in record["before"]}
        found = self.present(record["port"], table)
        listening = {(one.pid, one.start) for one in _listening(record["port"], table)}
        return None if found is None or listening & before else found

    def describe(self, record: Record, leader: Process) -> Record:
        """Its command line, and its process group: a worker beside it may descend from what started both."""
        return {"argv": process_table.arguments_of(leader.pid), "group": leader.group}


def _listening(port: int, table: Sequence[Process]) -> List[Process]:
    """Those that listen on the port."""
    until_s = time.monotonic() + DYING_S
    listeners = process_table.listeners(port)
    while not all(one.pids for one in listeners) and time.monotonic() < until_s:
        time.sleep(0.05)
        listeners = process_table.listeners(port)
    if not all(one.pids for one in listeners):
        raise LaunchError("who listens on port %d cannot be seen by this login: log in as its user, or root" % port)
    pids = {pid for one in listeners for pid in one.pids}
    return [one for one in table if one.pid in pids]
