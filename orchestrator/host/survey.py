"""What a start of the engine would meet: who holds its port, what of earlier starts lives, what its Python would load.

Observes only, and writes nothing; the controller judges.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from . import engine_state, interpreter, launchers, launching, process_table
from .launching import LaunchError
from .process_table import Process


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers listeners on the port, live engines of orch's, and the outfit of the engine's and the client's Python."""
    table = process_table.processes()
    kept, why_not = _kept(request, table)
    engines = [found for found in (_engine(folder, table) for folder in _folders(request["engines_dir"])) if found]
    own = next((found for found in engines if found["folder"] == request["state_dir"]), None)
    pids = own["pids"] if own else [one.pid for one in kept]
    alive = [one for one in table if one.pid in pids]
    alive.sort(key=lambda one: pids.index(one.pid))
    return {
        "engines": engines,
        "kept_pids": [one.pid for one in kept],
        "launcher_error": why_not,
        "listeners": engine_state.describe_listeners(request["port"], ours=pids),
        "can_see_listeners": process_table.can_see_listeners(),
        "engine_python": _engine_python(request, alive),
        "client_python": _client_python(request),
    }


def _folders(engines_dir: str) -> List[str]:
    """The state folders of all engines that orch ever started from this scratch folder."""
    try:
        return sorted(os.path.join(engines_dir, name) for name in os.listdir(engines_dir))
    except OSError:
        return []


def _kept(request: Dict[str, Any], table: List[Process]) -> Tuple[List[Process], Optional[str]]:
    """What runs under the engine's unit, container or restart command now, the leader first; or why nobody can tell."""
    launcher = launchers.of(request["launcher"])
    try:
        leader = launcher.present(request["port"], table)
        if leader is None:
            launcher.listens_at(request["port"])
            return [], None
        record = {"mark": "", "port": request["port"], "log_path": None, **launching.found(leader)}
        record.update(launcher.describe(record, leader))
    except LaunchError as exc:
        return [], str(exc)
    return engine_state.find_members(request["state_dir"], record, table), None


def _engine(folder: str, table: List[Process]) -> Dict[str, Any]:
    """A live engine; empty when nothing of it lives, or its record cannot be read (then nobody can tell)."""
    try:
        record = engine_state.read_record(folder)
        alive = engine_state.find_members(folder, record, table) if record else []
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not record or not alive:
        return {}
    return {
        "folder": folder,
        "engine": record["engine"],
        "pids": [one.pid for one in alive],
        "group": alive[0].group,
        "has_leader": engine_state.leader(record, alive) is not None,
        "started_s": record["started_s"],
        "deployed_digest": record["deployed_digest"],
    }


def _engine_python(request: Dict[str, Any], alive: List[Process]) -> Any:
    """Where the engine's Python finds each module, and whether that is the target's file; or an ``error``."""
    like_engine = interpreter.of_engine(request, alive)
    question = {
        "modules": sorted(request["modules"]),
        "first_path": like_engine.first_path,
        "distributions": request["distributions"],
        "imports": [],
    }
    answer = interpreter.ask(like_engine, request, question)
    for module, located in answer.get("modules", {}).items():
        located["is_target"] = _is_same_file(located.get("path"), request["modules"][module])
    return answer


def _client_python(request: Dict[str, Any]) -> Any:
    """The load client runs with the login's environment, not the engine's."""
    plain = interpreter.Interpreter(request["python"], None, None, ["-B"], "", dict(os.environ), request["scratch_dir"])
    question = {"modules": [], "first_path": "", "distributions": [], "imports": request["imports"]}
    return interpreter.ask(plain, request, question)


def _is_same_file(found: Any, wanted: str) -> bool:
    try:
        return bool(found) and os.path.samefile(found, wanted)
    except OSError:
        return False
