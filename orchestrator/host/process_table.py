"""What runs on this host: processes, their identity, and who listens on a port. Reads only.

From /proc where there is one (Linux); else from ``ps`` and ``lsof`` (macOS), which know less: sessions and
environments are then unknown, and start times are whole seconds.

A process is identified by its pid **and** when it started, for a pid is used again and that pair is not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

PROC = "/proc"
MAX_COMMAND_LENGTH = 300
_LISTEN = "0A"
_PS_COLUMNS = "pid=,ppid=,pgid=,stat=,lstart="
_LSTART_FORMAT = "%a %b %d %H:%M:%S %Y"


class Process(NamedTuple):
    """One live process (never a zombie).

    Attributes:
        session: None where it is not known.
        start: what tells it from another process of the same pid: start ticks, or ``lstart`` of ``ps``.
        start_ticks: field 22 of /proc/PID/stat; None where there is no /proc.
        started_s: seconds since the epoch; never later than the true start.
        resolution_s: how much later than ``started_s`` the true start may be.
    """

    pid: int
    parent: int
    group: int
    session: Optional[int]
    start: str
    start_ticks: Optional[int]
    started_s: float
    resolution_s: float


class Listener(NamedTuple):
    """A listening TCP socket on a port; ``pids`` is empty when its owner cannot be seen from this login."""

    address: str
    pids: Tuple[int, ...]


def has_proc() -> bool:
    """Whether this host has a Linux /proc."""
    return os.path.exists(PROC + "/self/stat")


def processes() -> List[Process]:
    """Every live process that this login can see."""
    if not has_proc():
        return list(_from_ps([]))
    boot_s = _boot_time_s()
    pids = (int(name) for name in os.listdir(PROC) if name.isdigit())
    return [process for process in (_from_proc(pid, boot_s) for pid in pids) if process]


def process(pid: int) -> Optional[Process]:
    """One live process; None when there is none, or only a zombie."""
    if not has_proc():
        return next(_from_ps(["-p", str(pid)]), None)
    return _from_proc(pid, _boot_time_s())


def _boot_time_s() -> float:
    """When the host booted, in seconds since the epoch, by the clock that start ticks are counted in.

    Not ``btime`` of /proc/stat: that is cut to whole seconds, too coarse to order a restart after a push.
    """
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _from_proc(pid: int, boot_s: float) -> Optional[Process]:
    try:
        with open("%s/%d/stat" % (PROC, pid), "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # After the last ")": the program's name may hold spaces and brackets. fields[0] is field 3, the state.
    fields = stat[stat.rindex(b")") + 2 :].split()
    n_threads = int(fields[17])
    if fields[0] in (b"Z", b"X") and n_threads <= 1:  # a leader that ended before its threads is still alive
        return None
    ticks = int(fields[19])
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=str(ticks),
        start_ticks=ticks,
        started_s=boot_s + ticks / ticks_per_s,
        resolution_s=1 / ticks_per_s,
    )


def _from_ps(selection: List[str]) -> Iterator[Process]:
    listing = subprocess.run(
        ["ps", *(selection or ["-A"]), "-o", _PS_COLUMNS],
        stdout=subprocess.PIPE,
        env=dict(os.environ, LC_ALL="C"),
        check=False,
    )
    for line in listing.stdout.decode("utf-8", "replace").splitlines():
        pid, parent, group, state, start = line.split(None, 4)
        if state.startswith("Z"):
            continue
        start = " ".join(start.split())
        started_s = time.mktime(time.strptime(start, _LSTART_FORMAT))
        yield Process(int(pid), int(parent), int(group), None, start, None, started_s, 1.0)


def arguments_of(pid: int) -> List[str]:
    """The argument vector of a process; empty when it cannot be read. A program may have overwritten its own."""
    if has_proc():
        content = _read("%s/%d/cmdline" % (PROC, pid))
        return [os.fsdecode(part) for part in content.rstrip(b"\0").split(b"\0")] if content else []
    listing = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], stdout=subprocess.PIPE, check=False)
    return listing.stdout.decode("utf-8", "replace").split()


def environment_of(pid: int) -> Optional[Dict[str, str]]:
    """The environment that a process was started with; None when it cannot be read.

    A program that renames itself may overwrite this memory; what is left of it is not an environment, and None.
    """
    content = _read("%s/%d/environ" % (PROC, pid)) if has_proc() else b""
    environment = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and re.fullmatch(rb"[A-Za-z_]\w*", name):
            environment[os.fsdecode(name)] = os.fsdecode(value)
    return environment or None


def _read(path: str) -> bytes:
    """The bytes of a file of /proc; none when the process has ended or belongs to somebody else."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def ancestors_of_self(table: Iterable[Process]) -> Set[int]:
    """This process and all its ancestors: the ones that nobody here may stop."""
    parents = {one.pid: one.parent for one in table}
    pid = os.getpid()
    found = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        pid = parents.get(pid, 0)
    return found


def listeners(port: int, likely: Iterable[int] = (), network_of: Optional[int] = None) -> List[Listener]:
    """Who listens on a TCP port of this host.

    Args:
        likely: pids to look at first, which saves looking at all.
        network_of: a process whose network is meant (a container may have its own); None: this one's.
    """
    if not has_proc():
        return _listeners_from_lsof(port)
    sockets = _listening_sockets(port, "" if network_of is None else "/%d" % network_of)
    owners: Dict[str, List[int]] = {inode: [] for inode in sockets}
    looked_at = set()
    for pid in [*likely, *(int(name) for name in os.listdir(PROC) if name.isdigit())]:
        if owners and all(owners.values()):
            break
        if pid not in looked_at:
            looked_at.add(pid)
            for inode in _sockets_of(pid) & sockets.keys():
                owners[inode].append(pid)
    return [Listener(sockets[inode], tuple(pids)) for inode, pids in owners.items()]


def can_see_listeners() -> bool:
    """Whether this host has a way to tell who listens."""
    return has_proc() or shutil.which("lsof") is not None


def _listening_sockets(port: int, process_folder: str) -> Dict[str, str]:
    """Inode of each listening socket on the port, and the address in hexadecimal as the kernel shows it."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in _read("%s%s/net/%s" % (PROC, process_folder, name)).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            address, _, hex_port = fields[1].rpartition(":")
            if fields[3] == _LISTEN and int(hex_port, 16) == port:
                sockets[fields[9]] = address
    return sockets


def _sockets_of(pid: int) -> Set[str]:
    folder = "%s/%d/fd" % (PROC, pid)
    found = set()
    try:
        for name in os.listdir(folder):
            try:
                link = os.readlink(folder + "/" + name)
            except OSError:
                continue  # closed meanwhile
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:
        pass  # ended, or somebody else's: its sockets stay without a visible owner
    return found


def _listeners_from_lsof(port: int) -> List[Listener]:
    try:
        listing = subprocess.run(
            ["lsof", "-nP", "-iTCP:%d" % port, "-sTCP:LISTEN", "-Fpn"], stdout=subprocess.PIPE, check=False
        )
    except FileNotFoundError:
        return []
    found = []
    pid = 0
    for line in listing.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("p"):
            pid = int(line[1:])
        elif line.startswith("n"):
            found.append(Listener(line[1:], (pid,)))
    return found
