"""The engine is a unit of systemd, which starts it, ends it, and may start it again by itself.

Its leader is the unit's main process, and every process of the unit's control group is the engine's. orch writes no
unit and no drop-in, so it adds nothing to the engine's environment.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import process_table
from .launching import Launcher, LaunchError, Record, call, said, shown
from .process_table import Process

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "MainPID", "ControlGroup", "InvocationID", "Job")


class SystemdLauncher(Launcher):
    """A unit, of the system or of the login's own systemd."""

    is_managed = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.unit = str(settings["unit"])
        self.scope: List[str] = ["--user"] if settings.get("user") else []

    def present(self, port: int, table: Sequence[Process]) -> Optional[Process]:
        """The unit's main process."""
        return self._main(self._show())

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Asks systemd for a start, and does not wait for it: a unit that notifies says so only when it is ready."""
        self._systemctl("start", "--no-block", self.unit)

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The main process; an error as soon as systemd gave the start up."""
        state = self._show()
        main = self._main(state)
        if main is None and state["ActiveState"] in ("failed", "inactive") and state["Job"] in ("", "0"):
            words = self._words("journalctl", "--unit", self.unit, "--no-pager", "--lines", "25", "--output", "cat")
            raise LaunchError(
                "%s is %s (%s)" % (self.unit, state["ActiveState"], state["Result"] or state["SubState"]),
                said(words, self.timeout_s),
            )
        return main

    def describe(self, record: Record, leader: Process) -> Record:
        """The control group, and the command that shows this start's part of the journal."""
        state = self._show()
        journal = self._words("journalctl", "--unit", self.unit, "--no-pager", "--output", "cat")
        if state["InvocationID"]:
            journal = self._words(
                "journalctl", "--no-pager", "--output", "cat", "_SYSTEMD_INVOCATION_ID=" + state["InvocationID"]
            )
        return {
            "argv": process_table.arguments_of(leader.pid),
            "cgroup": state["ControlGroup"].rstrip("/") or None,
            "log_path": record["log_path"] or shown(journal),
        }

    def end(self, grace_s: float) -> None:
        """Stops the unit: systemd then starts it no more by itself."""
        self._systemctl("stop", self.unit)

    def _main(self, state: Mapping[str, str]) -> Optional[Process]:
        pid = state["MainPID"]
        return process_table.process(int(pid)) if pid.isdigit() and pid != "0" else None

    def _show(self) -> Dict[str, str]:
        asked = ["--property=" + ",".join(_PROPERTIES)]
        told = dict.fromkeys(_PROPERTIES, "")
        for line in self._systemctl("show", *asked, self.unit).splitlines():
            name, _, value = line.partition("=")
            told[name] = value
        if told["LoadState"] not in ("loaded", ""):
            raise LaunchError("systemd has no unit %s (%s)" % (self.unit, told["LoadState"]))
        return told

    def _systemctl(self, *words: str) -> str:
        _find_own_systemd(self.scope)
        return call(self._words("systemctl", *words), self.timeout_s)

    def _words(self, program: str, *words: str) -> List[str]:
        return [program, *self.scope, *words]


def _find_own_systemd(scope: Sequence[str]) -> None:
    """A session without one set up knows no XDG_RUNTIME_DIR, and then systemctl does not find the login's systemd."""
    folder = "/run/user/%d" % os.getuid()
    if scope and "XDG_RUNTIME_DIR" not in os.environ and os.path.isdir(folder):
        os.environ["XDG_RUNTIME_DIR"] = folder
