"""What orch remembers of an engine that it started on this host, and which live processes belong to it.

``process.json`` (written at a start) and ``members.json`` (every process seen since) lie in the engine's state folder.
A process belongs to the engine when one of these holds:

- it is the recorded leader: same pid, same start;
- it was seen before: same pid, same start;
- it is in the leader's session or process group;
- its environment carries the mark that the engine was started with (a daemon keeps it whatever session it makes);
- it is in the engine's own control group (a unit's, a container's), or below it;
- it runs the leader's program in the leader's process group, where somebody else had started the engine;
- it descends from one of those.

Nothing is ever taken for the engine's by its pid alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

from . import launching, masking, process_table
from .process_table import Process

RECORD_NAME = "process.json"
MARK = launching.MARK
NO_MARK = "none#"
"""The mark of an engine that was started without one: no process has it."""
MEMBERS_NAME = "members.json"
LOG_TIMEOUT_S = 20.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

Record = Dict[str, Any]


def boot_id() -> Optional[str]:
    """What changes with every boot; None where the host does not tell."""
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None


def read_record(state_dir: str) -> Optional[Record]:
    """The record of the last start; None when there was none, or the host has booted since."""
    record: Optional[Record] = _read_json(state_dir, RECORD_NAME)
    if record is None or record["boot_id"] != boot_id():
        return None
    return record


def write_record(state_dir: str, record: Record) -> None:
    """Replaces the record atomically."""
    _write_json(state_dir, RECORD_NAME, record)


def forget_members(state_dir: str) -> None:
    """Before a new start: what was seen of the last one no longer counts."""
    _write_json(state_dir, MEMBERS_NAME, [])


def _read_json(state_dir: str, name: str) -> Any:
    try:
        with open(os.path.join(state_dir, name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _write_json(state_dir: str, name: str, content: Any) -> None:
    owner = _make_folder(state_dir)
    descriptor, path = tempfile.mkstemp(dir=state_dir, prefix=name + ".")
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        if owner != os.geteuid():
            os.fchown(file.fileno(), owner, -1)
    os.replace(path, os.path.join(state_dir, name))


def _make_folder(path: str) -> int:
    """Makes a folder with its parents, for the owner of the one that was there: root may do this for a login.

    Returns:
        The owner.
    """
    if os.path.isdir(path):
        return os.stat(path).st_uid
    owner = _make_folder(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if owner != os.geteuid():
        os.chown(path, owner, -1)
    return owner


def leader(record: Record, table: Iterable[Process]) -> Optional[Process]:
    """The engine's leader, when it is alive."""
    for one in table:
        if record["pid"] is None:  # a start that was cut off before it could write down its pid
            if one.session == one.pid and _is_marked(one.pid, record["mark"]):
                return one
        elif one.pid == record["pid"] and one.start == record["start"]:
            return one
    return None


def members(state_dir: str, record: Record, table: List[Process]) -> List[Process]:
    """Every live process of the engine, the leader first, then by age; also written down for later.

    Written down, because a process that made its own session can be told by its ancestry only while its parent lives.
    """
    found = find_members(state_dir, record, table)
    now = {(one.pid, one.start) for one in found}
    if now != _seen(state_dir):
        _write_json(state_dir, MEMBERS_NAME, sorted(now))
    return found


def find_members(state_dir: str, record: Record, table: List[Process]) -> List[Process]:
    """Like ``members``, and writes nothing."""
    return _of_record(record, table, _seen(state_dir))


def _of_record(record: Record, table: List[Process], seen: Set[Tuple[int, str]]) -> List[Process]:
    excluded = process_table.ancestors_of_self(table)
    candidates = [one for one in table if one.pid not in excluded]
    found = {one.pid: one for one in _by_identity(record, candidates, seen)}
    while True:
        children = [one for one in candidates if one.parent in found and one.pid not in found]
        if not children:
            break
        found.update((one.pid, one) for one in children)
    first = leader(record, candidates)
    return sorted(found.values(), key=lambda one: (one != first, one.started_s, one.pid))


def kept_by(
    launcher: launching.Launcher, leader: Process, port: int, table: List[Process]
) -> Tuple[List[Process], launching.Place]:
    """Every live process of an engine that a launcher keeps, the leader first, though orch has not started it.

    Returns:
        The processes, and where they listen.

    Raises:
        LaunchError: the launcher could not be asked.
    """
    record: Record = {"mark": NO_MARK, "port": port, "log_path": None, **launching.found(leader)}
    record.update(launcher.describe(record, leader))
    return _of_record(record, table, set()), launching.Place(**record.get("listens", {"port": port}))


def _seen(state_dir: str) -> Set[Tuple[int, str]]:
    """The processes that were written down, by pid and start."""
    return {(pid, start) for pid, start in _read_json(state_dir, MEMBERS_NAME) or []}


def _by_identity(record: Record, candidates: List[Process], seen: Set[Tuple[int, str]]) -> List[Process]:
    """Those that need no ancestor to be told by."""
    namesake = next((one for one in candidates if one.pid == record["pid"]), None)
    is_reused = namesake is not None and namesake.start != record["start"]
    is_companion = _companions(record, None if is_reused else namesake)
    return [
        one
        for one in candidates
        if (one.pid, one.start) in seen
        or (one.pid == record["pid"] and one.start == record["start"])
        or (not is_reused and _is_grouped(one, record) and _may_be_ours(one, record, namesake is not None))
        or _is_marked(one.pid, record["mark"])
        or _is_in_own_group(one, record)
        or is_companion(one)
    ]


def _is_in_own_group(one: Process, record: Record) -> bool:
    """Whether a process is in the control group that only the engine has."""
    own = record.get("cgroup")
    if not own:
        return False
    return any(path == own or path.startswith(own + "/") for path in launching.group_of(one.pid))


def _companions(record: Record, first: Optional[Process]) -> Callable[[Process], bool]:
    """Tells the processes that run the leader's program beside it; none where orch itself made the leader's group."""
    program = program_of(first.pid) if first is not None and record.get("group") is not None else None
    if program is None:
        return lambda one: False
    return lambda one: one.group == record["group"] and program_of(one.pid) == program


def program_of(pid: int) -> Optional[Tuple[int, int]]:
    """Device and inode of a process's program file; None when it cannot be read."""
    try:
        found = os.stat("%s/%d/exe" % (process_table.PROC, pid))
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def _is_grouped(one: Process, record: Record) -> bool:
    return record["pid"] is not None and record["pid"] in (one.session, one.group)


def _may_be_ours(one: Process, record: Record, is_leader_alive: bool) -> bool:
    """Whether a process in the leader's group is ours.

    With the leader alive it is. With the leader gone, its number can have gone to a stranger who led a session and
    ended too: then the environment decides, unless the program has overwritten it.
    """
    if is_leader_alive:
        return True
    environment = process_table.environment_of(one.pid)
    return environment is None or "PATH" not in environment or _is_marked(one.pid, record["mark"])


def _is_marked(pid: int, mark: str) -> bool:
    """Whether a process was started with the engine's mark, in this start or an earlier one of the same engine."""
    environment = process_table.environment_of(pid) or {}
    return environment.get(MARK, "").rpartition("#")[0] == mark.rpartition("#")[0]


def describe_listeners(port: int, ours: Iterable[int], network_of: Optional[int] = None) -> List[Dict[str, Any]]:
    """Who listens on a port, for people: pid, command line without secrets, and whether it is the engine's.

    Args:
        network_of: a process whose network is meant; None: this host's.
    """
    own = set(ours)
    described = []
    for listener in process_table.listeners(port, likely=own, network_of=network_of):
        pid = next((pid for pid in listener.pids if pid in own), listener.pids[0] if listener.pids else None)
        described.append({"pid": pid, "command": command_of(pid), "is_ours": pid in own})
    return described


def command_of(pid: Optional[int]) -> Optional[str]:
    """The command line of a process for people: masked and bounded; None when it cannot be seen."""
    arguments = process_table.arguments_of(pid) if pid is not None else []
    if not arguments:
        return None
    text = " ".join(masking.mask_arguments(arguments))
    return text.encode("utf-8", "backslashreplace").decode()[: process_table.MAX_COMMAND_LENGTH]


def log_tail(path: Optional[str], n_lines: int, max_bytes: int = 1 << 16) -> List[str]:
    """The last lines of a log, or of what the command tells that shows it; none when there is none."""
    if path is None:
        return []
    if not path.startswith("/"):
        return launching.said(shlex.split(path), LOG_TIMEOUT_S)[-n_lines:]
    try:
        with open(path, "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - max_bytes))
            content = file.read()
    except OSError:
        return []
    return content.decode("utf-8", "backslashreplace").splitlines()[-n_lines:]
