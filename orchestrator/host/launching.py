"""What every way to start an engine must offer: the protocol of the files ``launch_*.py``, and what they share.

A launcher says which process leads the engine, asks for a start or an end, and leaves the rest to others: who belongs
to the engine is ``engine_state.py``'s question, signals are ``stop.py``'s, and the order of steps is ``start.py``'s. It
works with no controller there, for the watcher uses it too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from . import process_table
from .process_table import Process

MARK = "ORCH_ENGINE"
"""The variable that names the engine, then this start of it, to every process that inherits it."""
MAX_ANSWER_BYTES = 1 << 22
MAX_EVIDENCE_BYTES = 1 << 16
N_EVIDENCE_LINES = 25
POLL_S = 0.05

Record = Dict[str, Any]


class LaunchError(Exception):
    """The engine could not be started, ended or found: one line says why, ``evidence`` what the other program said."""

    def __init__(self, message: str, evidence: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.evidence = list(evidence)


class Place(NamedTuple):
    """Where an engine listens: a port, and a process whose network it is in (None: the host's own)."""

    port: int
    pid: Optional[int] = None


class Launcher:
    """One way to start and end an engine.

    Attributes:
        is_managed: something else than orch keeps the engine: it may run before orch comes, under that, and then it is
            ours to restart. Otherwise only what orch started is touched.
        can_stop: it can be ended without a new start. can_start: orch can have it started, with nobody there to ask.
    """

    is_managed = False
    can_stop = True
    can_start = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Takes the launcher's keys of the inventory."""
        self.settings = settings
        self.timeout_s = float(settings.get("timeout_s", 600.0))

    def present(self, port: int, table: Sequence[Process]) -> Optional[Process]:
        """The engine's leader now, by the word of what keeps it, whoever started it; None when none runs.

        Only of a managed one; of the others orch's own record tells.
        """
        return None

    def launch(self, record: Record, order: Mapping[str, Any]) -> None:
        """Asks for a start, or makes it; returns at once, or when the asked one says that it is done.

        Args:
            record: what is known of this start; it may be added to. order: ``cwd``, ``env``, ``port``.

        Raises:
            LaunchError: it was refused.
        """
        raise NotImplementedError

    def find(self, record: Record, table: Sequence[Process]) -> Optional[Process]:
        """The leader of the start that ``launch`` asked for; None as long as there is none yet.

        Raises:
            LaunchError: there will be none.
        """
        raise NotImplementedError

    def describe(self, record: Record, leader: Process) -> Record:
        """What else is known once the leader is there: ``log_path``, ``cgroup``, ``argv``, ``listens``."""
        return {}

    def end(self, grace_s: float) -> None:
        """Asks what keeps the engine to end it; nothing where orch ends it by signals.

        Raises:
            LaunchError: it was refused, or took too long.
        """

    def inside(self) -> Optional[int]:
        """A process that sees the files as the engine does, where it sees others than this host; None: it does not."""
        return None

    def listens_at(self, port: int) -> Place:
        """Where a listener has to be looked for before a start."""
        return Place(port)


def found(leader: Process) -> Record:
    """The part of the record that names the leader."""
    return {
        "pid": leader.pid,
        "start": leader.start,
        "start_ticks": leader.start_ticks,
        "started_s": round(leader.started_s, 3),
    }


def call(
    argv: Sequence[str],
    timeout_s: float,
    environment: Optional[Mapping[str, str]] = None,
    *,
    with_stderr: bool = False,
) -> str:
    """Runs a program to its end; what it wrote to its standard output, and to standard error where that is wanted too.

    Raises:
        LaunchError: it is not there, failed, or passed its deadline.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise LaunchError("%s is not on the host's PATH (%s)" % (argv[0], os.environ.get("PATH", "")))
    # files, for a pipe would wait for what the program leaves running
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT if with_stderr else err,
                env=None if environment is None else dict(environment),
                start_new_session=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            message = "`%s` did not end within %g s" % (shown(argv), timeout_s)
            raise LaunchError(message, _last(err) or _last(out)) from exc
        except OSError as exc:
            raise LaunchError("`%s` cannot be run: %s" % (shown(argv), exc.strerror or exc)) from exc
        if done.returncode:
            message = "`%s` failed with exit code %d" % (shown(argv), done.returncode)
            raise LaunchError(message, _last(err) or _last(out))
        out.seek(0)
        return out.read(MAX_ANSWER_BYTES).decode("utf-8", "backslashreplace")


def said(argv: Sequence[str], timeout_s: float) -> List[str]:
    """The lines that a program tells; where it cannot be asked, why not."""
    try:
        return call(argv, timeout_s, with_stderr=True).splitlines()
    except LaunchError as exc:
        return ["(%s)" % exc, *exc.evidence]


def shown(argv: Sequence[str]) -> str:
    """A command line for people."""
    return " ".join(map(shlex.quote, argv))


def _last(file: IO[bytes]) -> List[str]:
    """The last lines of what a program wrote."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_EVIDENCE_BYTES))
    return file.read().decode("utf-8", "backslashreplace").splitlines()[-N_EVIDENCE_LINES:]


def group_of(pid: int) -> List[str]:
    """The control groups of a process, in the hierarchies that systemd and containers put it into."""
    try:
        with open("%s/%d/cgroup" % (process_table.PROC, pid)) as file:
            fields = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [path for number, controllers, path in fields if number == "0" or controllers == "name=systemd"]


def await_leader(launcher: Launcher, record: Record, window_s: float) -> Optional[Process]:
    """Looks for the leader until it is there, or the window has passed.

    Raises:
        LaunchError: there will be none.
    """
    deadline_s = time.monotonic() + window_s
    while True:
        leader = launcher.find(record, process_table.processes())
        if leader is not None or time.monotonic() >= deadline_s:
            return leader
        time.sleep(POLL_S)
