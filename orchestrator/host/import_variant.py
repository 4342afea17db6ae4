"""Imports one module whose file is not the installed one. Run in an interpreter started like the engine's.

The target's modules come from other files, in this process only; everything else, their parent packages too, comes
from where the engine has it. The answer goes into a file: what is imported may print, crash, or never end.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, Optional, Sequence

N_TRACE_LINES = 25


class Finder(importlib.abc.MetaPathFinder):
    """Finds the target's modules in the variant's files.

    Args:
        modules: by dotted name: ``path`` of the variant's file, and ``live_path`` of the installed one.
    """

    def __init__(self, modules: Dict[str, Dict[str, str]]) -> None:
        self.modules = modules

    def find_spec(
        self, name: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        """The variant's file for a module of the target, nothing for any other."""
        module = self.modules.get(name)
        return _spec(name, module) if module else None


def _spec(name: str, module: Dict[str, str]) -> Optional[ModuleSpec]:
    is_package = os.path.basename(module["live_path"]) == "__init__.py"
    # the other modules of such a package are those that are installed
    search = [os.path.dirname(module["live_path"])] if is_package else None
    return importlib.util.spec_from_file_location(name, module["path"], submodule_search_locations=search)


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Writes ``error`` (None when it was imported), ``place`` and ``trace`` to ``answer_path``; ends the process."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(request["timeout_s"])  # says where it is when it does not end
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = request["first_path"]
    sys.dont_write_bytecode = True
    answer: Dict[str, Any] = {"error": None, "place": None, "trace": []}
    try:
        _import(request["file"], request["modules"])
    except BaseException as exc:  # whatever the variant raises, SystemExit too, is the finding
        answer = _described(exc, request["folder"])
    with open(request["answer_path"], "w") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)  # a thread that it left behind must not keep this process


def _import(file: Dict[str, Optional[str]], modules: Dict[str, Dict[str, str]]) -> None:
    path, name = file["path"], file["module"]
    assert path
    if name is None:
        name = "orch_variant"
        modules = {**modules, name: {"path": path, "live_path": path}}
    sys.meta_path.insert(0, Finder(modules))
    for known in modules:
        sys.modules.pop(known, None)  # a start-up file may have imported the installed one
    module = importlib.import_module(name)
    origin = getattr(module, "__file__", None)
    if origin != path:
        raise ImportError("%s came from %s, not from the variant's file" % (name, origin))


def _described(exc: BaseException, folder: str) -> Dict[str, Any]:
    """The error in one line, the last line of the variant that led to it, and the trace."""
    first_line = (str(exc).splitlines() or [""])[0]
    error = type(exc).__name__ + (": " + first_line if first_line else "")
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(exc.__traceback__)
        if frame.filename.startswith(folder)
    ]
    if isinstance(exc, SyntaxError) and (exc.filename or "").startswith(folder):
        error = type(exc).__name__ + ": " + str(exc.msg)
        places.append((exc.filename or "", exc.lineno))
    lines = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__)).splitlines()
    place = [os.path.relpath(places[-1][0], folder), places[-1][1]] if places else None
    return {"error": error, "place": place, "trace": lines[-N_TRACE_LINES:]}
