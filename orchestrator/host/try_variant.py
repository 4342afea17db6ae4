"""Tries a variant in a scratch folder: imports it as the engine would, or has a command judge it.

The work is done by a second process in a session of its own. It outlives the line for as long as it needs to kill
what it started and to remove the folder; the first process only waits for its answer.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional

from . import engine_state, interpreter, masking, process_table, scratch, supervised
from .supervised import Ended

N_LINES = 40
MAX_LINE_LENGTH = 1000
TELL_AFTER = 0.9
"""Part of the deadline after which an import that has not ended writes where it is."""


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Does ``request["step"]``: ``import`` or ``command``. Answers how it ended, or why it could not be tried."""
    parent, own_end = os.pipe()  # the worker's end is closed when this process is gone
    answers, told = os.pipe()
    worker = os.fork()
    if not worker:
        os.close(own_end)
        os.close(answers)
        _work(request, parent, told)
    os.close(parent)
    os.close(told)
    with os.fdopen(answers, "rb") as stream:
        content = stream.read()
    os.waitpid(worker, 0)
    if not content:
        raise SystemExit("the process that tries the variant ended without an answer")
    answer: Dict[str, Any] = json.loads(content.decode("ascii"))
    return answer


def _work(request: Dict[str, Any], parent: int, told: int) -> NoReturn:
    """The second process."""
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, _leave)
        supervised.forbid_core_dumps()
        answer = _answer(request, parent)
        with os.fdopen(told, "wb") as stream:
            stream.write(json.dumps(answer).encode("ascii"))
    except (supervised.LineLost, BrokenPipeError, SystemExit):
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _leave(*_: Any) -> NoReturn:
    raise SystemExit


class _Attempt(NamedTuple):
    """One try. ``parent`` ends when the process does that the line belongs to."""

    request: Dict[str, Any]
    folder: scratch.Folder
    parent: int

    def run(self, argv: List[str], payload: str, cwd: str, environment: Mapping[str, str]) -> Ended:
        """Runs one command with the payload as its standard input."""
        stdin_path = os.path.join(self.folder.path, "stdin")
        self.folder.write(stdin_path, payload.encode("ascii"))
        timeout_s = self.request["timeout_s"]
        return supervised.run(
            argv, cwd=cwd, env=environment, stdin_path=stdin_path, timeout_s=timeout_s, parent=self.parent
        )


def _answer(request: Dict[str, Any], parent: int) -> Dict[str, Any]:
    try:
        with scratch.fresh(request["scratch_dir"]) as folder:
            attempt = _Attempt(request, folder, parent)
            paths = folder.write_files(request["files"])
            return _import(attempt, paths) if request["step"] == "import" else _command(attempt, paths)
    except scratch.CannotWrite as exc:
        return {"cannot_write": str(exc)}
    except supervised.CannotStart as exc:
        return {"cannot_start": str(exc)}


def _import(attempt: _Attempt, paths: Mapping[str, str]) -> Dict[str, Any]:
    """Imports the first file in an interpreter started like the engine's."""
    request, folder = attempt.request, attempt.folder
    like_engine = interpreter.of_engine({**request, "cwd": request["cwd"] or folder.files}, _alive(request))
    answer_path = os.path.join(folder.path, "answer.json")
    question = {
        **_modules(request["files"], paths),
        "first_path": like_engine.first_path,
        "folder": folder.files,
        "answer_path": answer_path,
        "timeout_s": TELL_AFTER * request["timeout_s"],
    }
    payload = json.dumps({"sources": request["inner_sources"], "request": question})
    argv = [like_engine.python, *like_engine.flags, "-B", "-c", request["bootstrap"]]
    environment = folder.environment(like_engine.environment)
    ended = attempt.run(argv, payload, like_engine.cwd, environment)
    told = _read_json(answer_path)
    if told and told["error"] is not None:
        told["error"] = _readable(told["error"], folder, environment)
        told["trace"] = _lines(_readable("\n".join(told["trace"]), folder, environment))
    return {**_described(ended, folder, environment), "import": told}


def _modules(files: List[Dict[str, str]], paths: Mapping[str, str]) -> Dict[str, Any]:
    """The first file, and every module of the target with the variant's file and the installed one."""
    named = [file for file in files if file["module"]]
    return {
        "file": {"path": paths[files[0]["name"]], "module": files[0]["module"]},
        "modules": {file["module"]: {"path": paths[file["name"]], "live_path": file["live_path"]} for file in named},
    }


def _command(attempt: _Attempt, paths: Mapping[str, str]) -> Dict[str, Any]:
    """Runs the command; ``{file}`` and ``{folder}`` in it stand for the variant's."""
    request, folder = attempt.request, attempt.folder
    places = {"file": paths[request["files"][0]["name"]], "folder": folder.files}
    argv = [re.sub(r"\{(file|folder)\}", lambda found: places[found[1]], word) for word in request["argv"]]
    environment = folder.environment({**os.environ, **request["env"]})
    ended = attempt.run(argv, "", request["cwd"] or folder.files, environment)
    return {**_described(ended, folder, environment), "argv": masking.mask_arguments(argv)}


def _alive(request: Mapping[str, Any]) -> List[process_table.Process]:
    """The engine's processes, where it runs; only looked at."""
    record = engine_state.read_record(request["state_dir"])
    if not record:
        return []
    return engine_state.find_members(request["state_dir"], record, process_table.processes())


def _read_json(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path) as file:
            content: Dict[str, Any] = json.load(file)
            return content
    except (OSError, ValueError):
        return None


def _described(ended: Ended, folder: scratch.Folder, environment: Mapping[str, str]) -> Dict[str, Any]:
    """How it ended, for the controller."""
    code = ended.exit_code
    stderr = _readable(ended.stderr.decode("utf-8", "backslashreplace"), folder, environment)
    return {
        "exit_code": code,
        "signal": _signal_name(-code) if code is not None and code < 0 else None,
        "elapsed_s": ended.elapsed_s,
        "stdout": _readable(ended.stdout.decode("utf-8", "backslashreplace"), folder, environment),
        "is_whole": ended.is_whole,
        "stderr": _lines(stderr),
    }


def _lines(text: str) -> List[str]:
    """The last lines, none of them endless."""
    return [line[:MAX_LINE_LENGTH] for line in text.splitlines()[-N_LINES:]]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _readable(text: str, folder: scratch.Folder, environment: Mapping[str, str]) -> str:
    """The variant's files under their own names, for the folder is gone when this is read; secrets masked."""
    return "".join(masking.mask_lines([text.replace(folder.files + "/", "")], environment))
