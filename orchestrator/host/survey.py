"""What a start of the engine would meet: who holds its port, what of earlier starts lives, what its Python would load.

Observes only, and writes nothing; the controller judges.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from . import engine_state, interpreter, launchers, process_table
from .launching import LaunchError, Place
from .process_table import Process


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers listeners on the port, live engines of orch's, and the outfit of the engine's and the client's Python."""
    table = process_table.processes()
    kept, place, why_not = _kept(request, table)
    inside = None if why_not else launchers.of(request["launcher"]).inside()
    engines = [found for found in (_engine(folder, table) for folder in _folders(request["engines_dir"])) if found]
    own = next((found for found in engines if found["folder"] == request["state_dir"]), None)
    pids = own["pids"] if own else [one.pid for one in kept]
    alive = [one for one in table if one.pid in pids]
    alive.sort(key=lambda one: pids.index(one.pid))
    return {
        "engines": engines,
        "kept_pids": [one.pid for one in kept],
        "launcher_error": why_not,
        "listeners": engine_state.describe_listeners(place.port, ours=pids, network_of=place.pid),
        "can_see_listeners": process_table.can_see_listeners(),
        "engine_python": _engine_python(request, alive, inside),
        "client_python": _client_python(request),
    }


def _folders(engines_dir: str) -> List[str]:
    """The state folders of all engines that orch ever started from this scratch folder."""
    try:
        return sorted(os.path.join(engines_dir, name) for name in os.listdir(engines_dir))
    except OSError:
        return []


def _kept(request: Dict[str, Any], table: List[Process]) -> Tuple[List[Process], Place, Optional[str]]:
    """What runs under the engine's unit, container or restart command now, the leader first, and where it listens.

    The last is why nobody can tell, where nobody can.
    """
    launcher, port = launchers.of(request["launcher"]), request["port"]
    try:
        leader = launcher.present(port, table)
        if leader is None:
            return [], launcher.listens_at(port), None
        return (*engine_state.kept_by(launcher, leader, port, table), None)
    except LaunchError as exc:
        return [], Place(port), str(exc)


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


def _engine_python(request: Dict[str, Any], alive: List[Process], inside: Optional[int]) -> Any:
    """Where the engine's Python finds each module, and whether that is the target's file; or an ``error``.

    Args:
        inside: a process of its container.
    """
    like_engine = interpreter.of_engine(request, alive)
    question = {
        "modules": sorted(request["modules"]),
        "first_path": like_engine.first_path,
        "distributions": request["distributions"],
        "imports": [],
    }
    answer = interpreter.ask(like_engine, request, question)
    for module, located in answer.get("modules", {}).items():
        path, wanted = located.get("path"), request["modules"][module]
        located["is_target"] = _is_same_file(path, wanted)
        if path and inside is not None:
            located["is_target"] = _is_same_file(interpreter.followed(inside, path), wanted)
            located["is_mount"] = interpreter.is_mount(inside, path)
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
