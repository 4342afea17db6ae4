"""The engine is a command that orch starts: a process in its own session, found by its pid and ended by signals.

With a controller there, its line starts the command (``Remote.spawn``); this is for the watcher, which has none.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any, Mapping, Optional, Sequence

from . import process_table
from .launching import MARK, Launcher, LaunchError, Record
from .process_table import Process


class CommandLauncher(Launcher):
    """The command of the inventory, started as a detached process."""

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Starts it with nothing inherited but the log."""
        environment = dict(os.environ)
        environment.update(order["env"])
        environment[MARK] = record["mark"]
        os.makedirs(os.path.dirname(record["log_path"]), exist_ok=True)
        # a background shell ignores them, and so would it
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        with open(record["log_path"], "wb") as log:
            child = subprocess.Popen(
                record["argv"],
                cwd=order["cwd"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record["pid"] = child.pid
        child.returncode = 0  # it outlives this program on purpose: no warning about a child that was not waited for

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The process that was just started, if it still lives."""
        found = process_table.process(record["pid"])
        if found is None:
            raise LaunchError("it ended at once: see %s" % record["log_path"])
        return found
