"""Looks at what a running engine has loaded for each file of a target. Observes only; the controller judges.

Every process of the engine is looked at, in its own mount namespace (``/proc/PID/root``), for a container or a
private mount can hold another file under the same name.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Optional, Tuple

from . import bytecode, engine_state, http_get, interpreter, process_table, shared_memory
from .interpreter import follow, followed, is_mount
from .process_table import Process

CTIME_RESOLUTION_S = 0.01
COARSE_S = 0.1
ANSWER_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 1 << 24


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the processes, the interpreter, and for each file what it resolves to and what each process sees."""
    table = process_table.processes()
    record = engine_state.read_record(request["state_dir"])
    alive = engine_state.members(request["state_dir"], record, table) if record else []
    shared_memory.note(request["state_dir"], alive)
    leader = engine_state.leader(record, alive) if record else None
    like_engine = interpreter.of_engine(request, alive)
    modules = [file["module"] for file in request["files"] if file["module"]]
    question = {"modules": modules, "first_path": like_engine.first_path}
    answer = interpreter.ask(like_engine, request, question)
    views = _Views(alive)
    return {
        "leader": [leader.pid, leader.start_ticks] if leader else None,
        "pids": [one.pid for one in alive],
        "python_pid": like_engine.pid,
        "is_same_python": _is_same_python(like_engine, answer),
        "runs_python": like_engine.pid is not None or _may_run_python(alive),
        "resolver_error": answer.get("error"),
        "sys_path": answer.get("sys_path"),
        "files": [_file(file, answer, views, bool(like_engine.enter)) for file in request["files"]],
        "reported": _reported(request["loaded_url"]),
    }


def _is_same_python(like_engine: interpreter.Interpreter, answer: Dict[str, Any]) -> Optional[bool]:
    """Whether the engine runs the interpreter that the inventory names; None when that cannot be told."""
    if like_engine.exe is None or "exe" not in answer:
        return None
    return bool(list(like_engine.exe) == answer["exe"])


def _may_run_python(alive: List[Process]) -> bool:
    """Whether a process of the engine may hold a Python interpreter: false only where each can be seen not to."""
    return not alive or any(_may_be_python(one.pid) for one in alive)


def _may_be_python(pid: int) -> bool:
    try:
        name = os.path.basename(os.readlink("%s/%d/exe" % (process_table.PROC, pid)))
        with open("%s/%d/maps" % (process_table.PROC, pid), "rb") as file:
            return name.startswith(("python", "pypy")) or b"/libpython" in file.read()
    except OSError:
        return True


def _file(file: Dict[str, Any], answer: Dict[str, Any], views: _Views, is_inside: bool) -> Dict[str, Any]:
    """Everything that can be seen of one file of the target.

    Args:
        is_inside: the engine is in a container, where the file may have another path than here.
    """
    located = answer.get("modules", {}).get(file["module"], {}) if file["module"] else {"path": file["path"]}
    path = located.get("path") or file["path"]
    found = {
        "name": file["name"],
        "resolved_path": located.get("path"),
        "error": located.get("error"),
        "is_target": views.are_of(path, file["path"]) if is_inside else _same_file(path, file["path"]),
        "here": _state(_look("/", file["path"] if is_inside else path)),
        "views": views.of(path),
        "bytecode": None,
    }
    if located.get("cached") and answer.get("optimize") is not None:
        found["bytecode"] = views.bytecode_of(path, located["cached"], answer["optimize"])
    return found


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


class _Look:
    """One file as seen through one root: its content and its stat, read once."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.content = file.read()
            self.stat = os.fstat(file.fileno())
        self.digest = "sha256:" + hashlib.sha256(self.content).hexdigest()


def _look(root: str, path: str) -> Tuple[Optional[_Look], str]:
    """The file, or None and why not."""
    try:
        return _Look(follow(root, path)), ""
    except OSError as exc:
        return None, exc.strerror or str(exc)


def _state(looked: Tuple[Optional[_Look], str]) -> Dict[str, Any]:
    look, error = looked
    if look is None:
        return {"digest": None, "error": error}
    stat = look.stat
    return {"digest": look.digest, "inode": [stat.st_dev, stat.st_ino], "ctime_s": stat.st_ctime, "error": None}


class _Views:
    """What each process of the engine sees under a path."""

    def __init__(self, alive: List[Process]) -> None:
        self.alive = alive

    def of(self, path: str) -> List[Dict[str, Any]]:
        """One view a process that still lives: digest, inode, and whether the process began after the last change."""
        found = []
        for one in self.alive:
            view = _state(_look(_root(one), path))
            still = process_table.process(one.pid)
            if still is None or still.start != one.start:
                continue  # ended meanwhile: a short-lived child is no witness
            after = began_after(one, view["ctime_s"]) if view["digest"] else None
            view.update(pid=one.pid, started_s=one.started_s, is_mount=is_mount(one.pid, path))
            found.append(dict(view, started_after_change=after))
        return found

    def are_of(self, path: str, here: str) -> bool:
        """Whether every process means by a path what is here under another; a mount by itself is judged by its view."""
        return all(is_mount(one.pid, path) or _same_file(followed(one.pid, path), here) for one in self.alive)

    def bytecode_of(self, path: str, cached_path: str, optimize: int) -> Dict[str, Any]:
        """The bytecode that Python would use: the worst that any process of the engine sees."""
        worst: Dict[str, Any] = {"state": None, "why": "", "path": cached_path}
        judged = set()
        for one in self.alive:
            look, _ = _look(_root(one), path)
            cached, _ = _look(_root(one), cached_path)
            if look is None or cached is None or (look.digest, cached.digest) in judged:
                continue
            judged.add((look.digest, cached.digest))
            source = bytecode.Source(path, look.content, int(look.stat.st_mtime))
            state, why = bytecode.judge(source, cached.content, optimize)
            if worst["state"] != "stale":
                worst.update(state=state, why=why)
        return worst


def _root(one: Process) -> str:
    return "%s/%d/root" % (process_table.PROC, one.pid) if process_table.has_proc() else "/"


def began_after(one: Process, ctime_s: float) -> Optional[bool]:
    """Whether a process surely began after a file's last change; None where start times are too coarse to tell.

    ctime and not mtime: a push sets mtimes on purpose. Both clocks are rounded down, so only a start that is later by
    more than the file system's tick counts.
    """
    if one.started_s >= ctime_s + CTIME_RESOLUTION_S:
        return True
    if one.resolution_s < COARSE_S or one.started_s + one.resolution_s < ctime_s:
        return False
    return None


def _reported(url: Optional[str]) -> Optional[Dict[str, Any]]:
    """What the engine itself says it loaded: ``modules``, or an ``error``; None when it is not to be asked."""
    if url is None:
        return None
    status, body = http_get.get(url, ANSWER_TIMEOUT_S, MAX_ANSWER_BYTES)
    if status != 200:
        shown = body[:200].decode("utf-8", "backslashreplace")
        return {"error": shown if status is None else "%d %s" % (status, shown)}
    try:
        modules = json.loads(body.decode("utf-8"))["modules"]
        return {"modules": {str(name): str(digest) for name, digest in modules.items()}}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        return {"error": 'not {"modules": {name: digest}}: %s' % exc}
