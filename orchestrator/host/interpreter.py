"""How the engine's Python was really started: its flags, its environment, the first entry of its ``sys.path``.

Read from the running process, for a launcher script may have set what the inventory does not know. Questions that
depend on them (where does a module come from?) are then put to a second interpreter that is started the same way: in
the engine's container, where it runs in one, for only there its Python and its paths mean anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import process_table
from .process_table import Process

TIMEOUT_S = 60.0
MAX_LINKS = 40
_MOUNT_ESCAPE = re.compile(r"\\([0-7]{3})")
_INSIDE = """
import json, os, sys
def first_line():
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(0, 1) or sys.exit("no input")
    return json.loads(line.decode("ascii"))
order = first_line()
os.chdir(order["cwd"])
os.execve(order["argv"][0], order["argv"], order["env"])
"""
"""Run in the container: becomes the interpreter that the first line of its input describes, and leaves it the rest.
The environment comes that way because a command line can be read by everybody."""
_PYTHON_NAME = re.compile(r"^(python|pypy)[\d.]*$")


class Interpreter(NamedTuple):
    """How to start an interpreter like the engine's.

    Attributes:
        pid: the process that this was read from; None when no process of the engine runs Python.
        exe: that process's program file, by device and inode.
        flags: options before the program (``-O``, ``-X …``, ``-I``).
        first_path: what Python puts first on ``sys.path`` for that program, unless told not to.
        enter: the command that runs what follows it inside the engine's container; empty on the host itself.
    """

    python: str
    pid: Optional[int]
    exe: Optional[Tuple[int, int]]
    flags: List[str]
    first_path: str
    environment: Dict[str, str]
    cwd: str
    enter: Sequence[str] = ()


def of_engine(request: Dict[str, Any], alive: Sequence[Process]) -> Interpreter:
    """The interpreter of the engine's first process that runs Python; without one, what the inventory says.

    Args:
        request: ``python``, ``command``, ``cwd``, ``env``, ``launcher`` of the inventory.
        alive: the engine's processes, the leader first.
    """
    launcher = request.get("launcher", {})
    enter = launcher.get("enter", [])
    python = launcher["python"] if enter else request["python"]
    configured = {} if enter else dict(os.environ)
    configured.update(request["env"])
    pid = next((one.pid for one in alive if _runs_python(one.pid)), None)
    arguments = process_table.arguments_of(pid) if pid is not None else []
    environment = (process_table.environment_of(pid) if pid is not None else None) or configured
    if not arguments or not _is_python(arguments[0]):  # no such process, or it renamed itself
        command = [python, "-m", "unknown"] if enter or not request["command"] else request["command"]
        arguments = _with_interpreter(command, environment, python)
    root = "%s/%d/root" % (process_table.PROC, pid) if enter and pid is not None else ""
    cwd = _cwd_of(pid, root) or ("/" if enter else request["cwd"])
    flags, kind, program = split(arguments)
    first_path = cwd
    if kind == "script":
        script = follow(root or "/", os.path.join(cwd, program))
        first_path = (os.path.dirname(script) if os.path.isfile(script) else script)[len(root) :]
    return Interpreter(python, pid, exe_of(pid), flags, first_path, environment, cwd, enter)


def _is_python(program: str) -> bool:
    return bool(_PYTHON_NAME.match(os.path.basename(program)))


def _runs_python(pid: int) -> bool:
    try:
        return _is_python(os.readlink("/proc/%d/exe" % pid).replace(" (deleted)", ""))
    except OSError:
        arguments = process_table.arguments_of(pid)
        return bool(arguments) and _is_python(arguments[0].lower())


def exe_of(pid: Optional[int]) -> Optional[Tuple[int, int]]:
    """Device and inode of a process's program file; None when it cannot be read."""
    try:
        found = os.stat("/proc/%d/exe" % pid) if pid is not None else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def _cwd_of(pid: Optional[int], root: str) -> Optional[str]:
    """Where a process is now, as it sees it: a launcher may have gone elsewhere than the inventory says."""
    try:
        folder = os.readlink("/proc/%d/cwd" % pid) if pid is not None else None
    except OSError:
        return None
    return folder if folder and os.path.isdir(root + folder) else None


def _with_interpreter(command: Sequence[str], environment: Dict[str, str], python: str) -> List[str]:
    """A command as the kernel will run it: a script with a Python first line becomes ``python script …``."""
    if _is_python(command[0]):
        return list(command)
    program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
    try:
        with open(program, "rb") as file:
            first_line = file.readline(200)
    except OSError:
        first_line = b""
    if first_line.startswith(b"#!") and b"python" in first_line:
        return [python, program, *command[1:]]
    return [python, "-m", "unknown"]


def split(arguments: Sequence[str]) -> Tuple[List[str], str, str]:
    """Splits a Python command line into its flags, the kind of program (module, command, script), and the program."""
    flags: List[str] = []
    rest = list(arguments[1:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return flags, "command" if word == "-" else "script", word
        if word.startswith("--"):
            flags += [word, rest.pop(0)] if word == "--check-hash-based-pycs" and rest else [word]
            continue
        found = re.match(r"-([^mcWX]*)([mcWX]?)(.*)", word, re.DOTALL)
        assert found  # every word that starts with a dash matches
        plain, letter, value = found.groups()
        flags += ["-" + plain] if plain else []
        value = value or (rest.pop(0) if letter and rest else "")
        if letter in ("W", "X"):
            flags += ["-" + letter, value]
        elif letter:
            return flags, "module" if letter == "m" else "command", value
    return flags, "command", ""


def ask(interpreter: Interpreter, request: Dict[str, Any], question: Dict[str, Any]) -> Any:
    """Runs the bundle's inner program in an interpreter started like the engine's; what it answers, or an error text.

    Start-up files (``.pth``, ``sitecustomize``) run as they do in the engine, so they may print: the last line counts.
    Root asks as the engine's own user: what that user may write is not run as root, and leaves no files of root's.
    """
    payload = json.dumps({"sources": request["inner_sources"], "request": question})
    argv = [interpreter.python, *interpreter.flags, "-c", request["bootstrap"]]
    cwd, environment = interpreter.cwd, interpreter.environment
    if interpreter.enter:
        payload = json.dumps({"argv": argv, "env": environment, "cwd": cwd}) + "\n" + payload
        argv = [*interpreter.enter, interpreter.python, "-I", "-S", "-c", _INSIDE]
        cwd, environment = "/", dict(os.environ)
    try:
        done = subprocess.run(
            argv,
            input=payload.encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment,
            timeout=TIMEOUT_S,
            preexec_fn=None if interpreter.enter else _becoming_owner(interpreter.pid),
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return {"error": str(exc)}
    if done.returncode:
        last = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-1:]
        return {"error": "exit code %d: %s" % (done.returncode, "".join(last))}
    return json.loads(done.stdout.splitlines()[-1].decode("ascii"))


def _becoming_owner(pid: Optional[int]) -> Optional[Callable[[], None]]:
    """What makes a child of root's the user of a process; None where there is nothing to become."""
    try:
        owner = os.stat("%s/%d" % (process_table.PROC, pid)) if pid is not None and os.geteuid() == 0 else None
    except OSError:
        return None
    if owner is None or owner.st_uid == 0:
        return None
    user, group = owner.st_uid, owner.st_gid

    def become() -> None:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)

    return become


def follow(root: str, path: str) -> str:
    """The path, seen from here, that a process with that root means by ``path``: its symlinks start at its own root."""
    if root == "/":
        return os.path.realpath(path)
    done: List[str] = []
    todo = path.split("/")
    n_links = 0
    while todo:
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        here = "/".join([root, *done, part])
        if not os.path.islink(here):
            done.append(part)
            continue
        n_links += 1
        if n_links > MAX_LINKS:
            raise OSError(0, "too many symbolic links")
        link = os.readlink(here)
        done = [] if link.startswith("/") else done
        todo = link.split("/") + todo
    return "/".join([root, *done])


def followed(pid: int, path: str) -> str:
    """The path, seen from here, that a process means by ``path``; what it would be where it leads nowhere."""
    root = "%s/%d/root" % (process_table.PROC, pid)
    try:
        return follow(root, path)
    except OSError:
        return root + path


def is_mount(pid: int, path: str) -> bool:
    """Whether a file is mounted by itself for a process: such a mount keeps the file when another takes its name."""
    inside = followed(pid, path)[len("%s/%d/root" % (process_table.PROC, pid)) :]
    try:
        with open("%s/%d/mountinfo" % (process_table.PROC, pid)) as file:
            return any(_MOUNT_ESCAPE.sub(_unescaped, line.split(" ")[4]) == inside for line in file)
    except OSError:
        return False


def _unescaped(found: Any) -> str:
    return chr(int(found.group(1), 8))
