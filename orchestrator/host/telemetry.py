"""Watches the GPUs of this host about once a second while a load runs, and writes what it sees to one file.

It runs detached and ends by itself: when the load's client has ended, at a deadline, when its folder is gone or holds
a file ``stop``. On a node whose engine is loaded from another one (``is_aside``) the end of the engine takes the place
of the client's. It observes only, and leaves the reading of what ``nvidia-smi`` says to the controller.

The samples file holds JSON lines: first ``gpus`` (index by uuid, with those of MIG devices), ``columns``, ``visible``
and ``error``; then one line for each GPU and second: ``at_s``, ``row`` (values as they were printed), ``pids`` (all
processes that compute there; null where that is not known) and ``own`` (those of them that are the engine's).
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional, Set, TextIO, Tuple

from . import engine_state, process_table

SMI = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"
GPU_COLUMNS = (
    *("index", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "memory.used", "utilization.gpu"),
    "clocks_event_reasons.active",
)
OLDER_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
"""What drivers before 535 call a column."""
POLL_S = 0.5
HOLD_INTERVALS = 3
"""A process counts as present for so many intervals after nvidia-smi named it: its two loops do not keep step."""
START_PATIENCE_S = 300.0
"""How long a load may take to begin: its start is retried while the line is lost."""
_ASK_TIMEOUT_S = 30.0
_MAX_ROWS_KEPT = 20


class _SmiError(Exception):
    """nvidia-smi does not answer; the text is its own."""


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Watches until the load is over; a second start beside the first one ends at once."""
    try:
        out = open(request["samples_path"], "x", buffering=1)
    except FileExistsError:
        return {"outcome": "another one watches"}
    with out:
        header: Dict[str, Any] = {"gpus": {}, "columns": [], "visible": request["visible"], "error": None}
        try:
            header["gpus"] = _places()
            header["columns"] = _accepted_columns() if header["gpus"] else []
        except _SmiError as exc:
            header["error"] = str(exc)
        _write(out, header)
        why = _watch(request, header, out) if header["columns"] else "nothing to watch"
        if os.path.isdir(os.path.dirname(request["samples_path"])):
            _write(out, {"ended_at_s": round(time.time(), 3), "why": why})
    return {"outcome": why}


def _write(out: TextIO, line: Dict[str, Any]) -> None:
    out.write(json.dumps(line) + "\n")


# ---- single questions


def _ask(*options: str) -> Tuple[int, str]:
    """The exit code and what was written; some drivers tell of their errors on standard output."""
    try:
        done = subprocess.run(
            [SMI, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise _SmiError(str(exc)) from exc
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def _places() -> Dict[str, int]:
    """The index of the GPU by uuid, for GPUs and the MIG devices on them; none on a host without a GPU."""
    code, listing = _ask("-L")
    if "no devices" in listing.lower():
        return {}
    if code:
        raise _SmiError(listing or "exit code %d" % code)
    places, gpu = {}, None
    for line in listing.splitlines():
        named = re.match(r"\s*(?:GPU (\d+):|MIG ).*\(UUID: ([^)]+)\)", line)
        if named:
            gpu = int(named.group(1)) if named.group(1) else gpu
            if gpu is not None:
                places[named.group(2)] = gpu
    return places


def _accepted_columns() -> List[str]:
    """The columns that this driver knows: one that it refuses is asked for by its older name, then left out."""
    columns = list(GPU_COLUMNS)
    while True:
        code, text = _ask("--query-gpu=" + ",".join(columns), FORMAT)
        if not code:
            return columns
        refused = re.search(r'"([^"]+)" is not a valid field', text)
        if not refused or refused.group(1) not in columns[1:]:
            raise _SmiError(text or "exit code %d" % code)
        i = columns.index(refused.group(1))
        columns[i : i + 1] = [OLDER_NAMES[columns[i]]] if columns[i] in OLDER_NAMES else []


# ---- the loops


class _Loop:
    """One ``nvidia-smi`` that repeats a query: a fresh one for each look would open the driver each time.

    It has a terminal of its own, so that it writes line by line, and the kernel hangs it up however this program ends.
    """

    def __init__(self, query: str, interval_s: float) -> None:
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            try:
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
                os.execvp(SMI, [SMI, query, FORMAT, "--loop-ms=%d" % round(1000 * interval_s)])
            finally:
                os._exit(127)
        self.rest = b""

    def lines(self) -> Optional[List[str]]:
        """The lines that have come; None once it has ended."""
        try:
            content = os.read(self.descriptor, 1 << 16)
        except OSError:  # how Linux tells that nobody holds the other side
            content = b""
        if not content:
            return None
        *whole, self.rest = (self.rest + content).split(b"\n")
        return [line.decode("utf-8", "replace").strip() for line in whole]

    def end(self) -> None:
        """Hangs up, and waits for it."""
        os.close(self.descriptor)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _watch(request: Dict[str, Any], header: Dict[str, Any], out: TextIO) -> str:
    """Writes samples until the load is over; answers why it ended."""
    interval_s = request["interval_s"]
    gpus = _Loop("--query-gpu=" + ",".join(header["columns"]), interval_s)
    processes = _Loop("--query-compute-apps=gpu_uuid,pid", interval_s)
    present = _Present(request["state_dir"], header["gpus"], HOLD_INTERVALS * interval_s)
    loops = {gpus.descriptor: gpus, processes.descriptor: processes}
    poll_s = min(POLL_S, interval_s)
    began_s = time.monotonic()
    next_look_s = 0.0
    said: List[str] = []
    try:
        while True:
            ready, _, _ = select.select(list(loops), [], [], poll_s)
            for descriptor in ready:
                lines = loops[descriptor].lines()
                if lines is None and descriptor == gpus.descriptor:
                    return "nvidia-smi ended: " + " | ".join(said[-_MAX_ROWS_KEPT:])
                if lines is None:
                    present.is_known = False
                    del loops[descriptor]
                elif descriptor == processes.descriptor:
                    present.take(lines)
                else:
                    said = _sample(lines, header["columns"], present, out) or said
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + poll_s
                why = _why_over(request, time.monotonic() - began_s)
                if why:
                    return why
    finally:
        gpus.end()
        processes.end()


def _sample(lines: List[str], columns: List[str], present: _Present, out: TextIO) -> List[str]:
    """Writes one line for each GPU; gives back what was no row of one."""
    other = []
    for line in lines:
        row = [value.strip() for value in line.split(",")]
        if len(row) != len(columns) or not row[0].isdigit():
            other.append(line)
            continue
        pids = present.on(int(row[0]))
        own = sorted(set(pids) & present.own)
        known = pids if present.is_known else None
        _write(out, {"at_s": round(time.time(), 3), "row": row, "pids": known, "own": own})
    return [line for line in other if line]


class _Present:
    """Which processes compute on which GPU now, and which of them are the engine's."""

    def __init__(self, state_dir: str, places: Dict[str, int], hold_s: float) -> None:
        self.state_dir, self.places, self.hold_s = state_dir, places, hold_s
        self.seen_s: Dict[Tuple[int, int], float] = {}
        self.own: Set[int] = set()
        self.strangers: Set[int] = set()
        self.is_known = True

    def take(self, lines: List[str]) -> None:
        """Lines ``uuid, pid``; a GPU that nvidia-smi did not list makes all of it unknown."""
        for line in filter(None, lines):
            uuid, _, pid = (part.strip() for part in line.partition(","))
            if not pid.isdigit():
                continue
            if uuid not in self.places:
                self.is_known = False
                continue
            self.seen_s[self.places[uuid], int(pid)] = time.monotonic()
            if int(pid) not in self.own | self.strangers:
                self._tell_apart(int(pid))

    def _tell_apart(self, pid: int) -> None:
        """Looks at all processes of the host, once for each new pid: that is too dear for every second."""
        record = engine_state.read_record(self.state_dir)
        if record:
            table = process_table.processes()
            self.own |= {one.pid for one in engine_state.find_members(self.state_dir, record, table)}
        if pid not in self.own:
            self.strangers.add(pid)

    def on(self, gpu: int) -> List[int]:
        """The processes that were named lately."""
        since_s = time.monotonic() - self.hold_s
        return sorted(pid for (place, pid), seen_s in self.seen_s.items() if place == gpu and seen_s >= since_s)


def _why_over(request: Dict[str, Any], elapsed_s: float) -> Optional[str]:
    """Why to end; None while the load goes on, or may still begin. The files are those of the load's wrapper."""
    folder, run_dir = os.path.dirname(request["samples_path"]), request["run_dir"]
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, "stop")):
        return "told to end"
    if os.path.exists(os.path.join(run_dir, "exit")):
        return "the load has ended"
    if elapsed_s > request["deadline_s"]:
        return "deadline"
    if request["is_aside"]:
        return _why_engine_gone(request["state_dir"])
    try:
        with open(os.path.join(run_dir, "process")) as file:
            pid, ticks = file.read().split()[:2]
    except (OSError, ValueError):
        return "no load began" if elapsed_s > START_PATIENCE_S else None
    client = process_table.process(int(pid))
    if client is None or ticks not in ("-", str(client.start_ticks)):
        return "the load's client is gone"
    return None


def _why_engine_gone(state_dir: str) -> Optional[str]:
    """The same by the engine of this node: what its record names as its first process."""
    record = engine_state.read_record(state_dir)
    first = process_table.process(record["pid"]) if record and record["pid"] is not None else None
    return None if record and first is not None and first.start == record["start"] else "the engine is gone"
