"""Shared memory that an engine leaves behind in ``/dev/shm``: seen while it lives, removed only when provably its own.

Engines are ended by signals, and what they shared between their processes then often stays (``psm_*`` of Python,
``sglang_loads_*``, ``sem.*``, ``nccl-*``): hundreds of megabytes of memory a start. No name is trusted. A file is the
engine's when all of this holds:

- it was not there before this start of the engine (``begin``);
- a process of the engine had it open or mapped while that process lived (``note``), and belongs to the file's owner;
- nobody else was seen to have it, then or now.

``sweep`` removes such a file when the engine is gone. What a process of the engine had, and fails one of these, is left
and named. ``shared_memory.json`` in the engine's state folder keeps what was seen.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from . import process_table
from .process_table import Process

FOLDER = "/dev/shm"
RECORD_NAME = "shared_memory.json"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Held(NamedTuple):
    """Inodes of shared memory that live processes have; ``is_complete`` is false when one could not be looked at."""

    by_pid: Dict[int, Set[int]]
    is_complete: bool


def begin(state_dir: str) -> None:
    """Before a start: removes what the last one left and nobody swept, and remembers what is there already."""
    sweep(state_dir)
    before = sorted(one.inode() for one in _files())
    _write(state_dir, {"before": before, "held": {}})


def note(state_dir: str, alive: Iterable[Process]) -> None:
    """Remembers what the engine's live processes have, and who else has it. Safe to repeat; does nothing elsewhere."""
    record = _read(state_dir)
    files = {one.inode(): one for one in _files()}
    if record is None or not files:
        return
    own = {one.pid for one in alive}
    held = _held(files)
    users = {pid: _user_of(pid) for pid in own}
    for inode in {inode for pid in own for inode in held.by_pid.get(pid, ())}:
        seen = record["held"].setdefault(str(inode), {"name": files[inode].name, "is_foreign": False, "users": []})
        holders = {pid for pid, inodes in held.by_pid.items() if inode in inodes}
        seen["is_foreign"] = seen["is_foreign"] or bool(holders - own)
        seen["users"] = sorted({*seen["users"], *(users[pid] for pid in holders & own if users[pid] is not None)})
    _write(state_dir, record)


def sweep(state_dir: str) -> Dict[str, Any]:
    """After the stop: removes what is provably the engine's. Safe to repeat.

    Returns:
        ``removed``: name and size of each. ``left``: name of each that a process of the engine had, and why it stays.
    """
    record = _read(state_dir)
    files = {one.inode(): one for one in _files()} if record else {}
    seen = {int(inode): one for inode, one in record["held"].items() if int(inode) in files} if record else {}
    answer: Dict[str, Any] = {"removed": [], "left": []}
    if record is None or not seen:
        return answer
    held = _held({inode: files[inode] for inode in seen})
    for inode, one in sorted(seen.items()):
        file = files[inode]
        status = _status(file)
        if status is None:
            continue  # unlinked meanwhile
        why = _why_not_ours(inode, file.name, status, one, record["before"], held)
        if why is None:
            why = _remove(file, status)
        if why is None:
            answer["removed"].append({"name": file.name, "size_bytes": status.st_size})
        else:
            answer["left"].append({"name": file.name, "why": why})
    if not answer["left"]:
        _write(state_dir, {"before": record["before"], "held": {}})
    return answer


def _why_not_ours(
    inode: int, name: str, status: os.stat_result, seen: Dict[str, Any], before: List[int], held: Held
) -> Optional[str]:
    """Why a file cannot be proved to be the engine's alone; None when it can."""
    if inode in before:
        return "it was there before the engine started"
    if name != seen["name"]:
        return "it was called %s" % seen["name"]
    if seen["users"] != [status.st_uid]:
        return "it belongs to another user"
    holders = sorted(pid for pid, inodes in held.by_pid.items() if inode in inodes)
    if holders:
        return "pid %d has it" % holders[0]
    if seen["is_foreign"]:
        return "another process had it too"
    if status.st_mode & _OTHERS and not held.is_complete:
        return "another user's process may have it"
    return None


def _remove(file: os.DirEntry[str], status: os.stat_result) -> Optional[str]:
    """Unlinks the very file that was judged; why not, when it cannot be."""
    try:
        now = os.lstat(file.path)
        if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return "another file took its place"
        os.unlink(file.path)
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


def _status(file: os.DirEntry[str]) -> Optional[os.stat_result]:
    try:
        return os.lstat(file.path)
    except OSError:
        return None


def _files() -> List[os.DirEntry[str]]:
    """The regular files of shared memory; none where there is no such folder, or no /proc to tell who has them."""
    if not process_table.has_proc():
        return []
    try:
        with os.scandir(FOLDER) as entries:
            return [one for one in entries if one.is_file(follow_symlinks=False)]
    except OSError:
        return []


def _held(files: Dict[int, os.DirEntry[str]]) -> Held:
    """Which of these files each live process has open or mapped."""
    by_pid: Dict[int, Set[int]] = {}
    is_complete = True
    device = os.stat(FOLDER).st_dev
    for name in os.listdir(process_table.PROC):
        if not name.isdigit() or not _has_memory(name):
            continue
        try:
            found = (_mapped(name, device) | _opened(name, device)) & files.keys()
        except FileNotFoundError:
            continue  # ended meanwhile
        except OSError as exc:
            is_complete = is_complete and isinstance(exc, ProcessLookupError)
            continue
        if found:
            by_pid[int(name)] = found
    return Held(by_pid, is_complete)


def _has_memory(pid: str) -> bool:
    """False for what can have nothing mapped: a thread of the kernel, a zombie, a process that has ended."""
    try:
        with open("%s/%s/statm" % (process_table.PROC, pid), "rb") as file:
            return not file.read().startswith(b"0 ")
    except OSError:
        return False


def _mapped(pid: str, device: int) -> Set[int]:
    """Inodes on a device that a process has mapped: ``start-end rw-s offset major:minor inode path``.

    By inode, for a semaphore is mapped under the temporary name that it had when it was made.
    """
    wanted = b"%02x:%02x" % (os.major(device), os.minor(device))
    found = set()
    with open("%s/%s/maps" % (process_table.PROC, pid), "rb") as file:
        for line in file:
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == wanted:
                found.add(int(fields[4]))
    return found


def _opened(pid: str, device: int) -> Set[int]:
    """Inodes on a device that a process has open."""
    folder = "%s/%s/fd" % (process_table.PROC, pid)
    found = set()
    for name in os.listdir(folder):
        try:
            status = os.stat(folder + "/" + name)
        except OSError:
            continue  # closed meanwhile
        if status.st_dev == device:
            found.add(status.st_ino)
    return found


def _user_of(pid: int) -> Optional[int]:
    try:
        return os.stat("%s/%d" % (process_table.PROC, pid)).st_uid
    except OSError:
        return None


def _read(state_dir: str) -> Optional[Dict[str, Any]]:
    try:
        with open(os.path.join(state_dir, RECORD_NAME)) as file:
            found: Dict[str, Any] = json.load(file)
            return found
    except (OSError, ValueError):
        return None


def _write(state_dir: str, record: Dict[str, Any]) -> None:
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=state_dir, prefix=RECORD_NAME + ".")
    with os.fdopen(descriptor, "w") as file:
        json.dump(record, file)
    os.replace(path, os.path.join(state_dir, RECORD_NAME))
