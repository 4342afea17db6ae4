"""Programs that the engine's own Python runs on the host, and the way they get there.

This file is the controller's side: it sends a program with what it imports as JSON on standard input, in one exec,
and returns the JSON that the program answers. The other files of this folder are the programs. They use the standard
library only, are written for Python 3.8 and later, import each other relatively and nothing else of this project:
on the host they live in memory under the package name ``orch_host``, and nothing is installed there.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from orchestrator import spanning
from orchestrator.connection import Remote
from orchestrator.connection.slurm_group import node_of
from orchestrator.errors import EngineError, RemoteCommandError
from orchestrator.records import Engine

BOOTSTRAP = """
import json, sys, types
bundle = json.load(sys.stdin)
package = types.ModuleType("orch_host")
package.__path__ = []
sys.modules["orch_host"] = package
for name, source in bundle["sources"]:
    module = types.ModuleType("orch_host." + name)
    module.__package__ = "orch_host"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, "orch_host/" + name + ".py", "exec"), module.__dict__)
print(json.dumps(module.main(bundle["request"])))
"""
"""Run by ``python -c``: makes the modules of the bundle, in order, and calls ``main`` of the last."""

_CONTROL = ("masking", "process_table", "launching", "engine_state")
_LAUNCHERS = ("launch_command", "launch_systemd", "launch_container", "launch_manual", "launchers")
PROGRAMS = {
    "start": (*_CONTROL, *_LAUNCHERS, "shared_memory", "stop", "start"),
    "status": (*_CONTROL, *_LAUNCHERS, "status"),
    "ready": (*_CONTROL, "shared_memory", "http_get", "ready"),
    "stop": (*_CONTROL, *_LAUNCHERS, "shared_memory", "stop"),
    "restore": (*_CONTROL, *_LAUNCHERS, "shared_memory", "stop", "start", "restore"),
    "probe": (*_CONTROL, "shared_memory", "http_get", "interpreter", "bytecode", "probe"),
    "facts": (*_CONTROL, "http_get", "engine_answers", "interpreter", "facts"),
    "triton_cache": (*_CONTROL, "autotune_log", "triton_cache"),
    "survey": (*_CONTROL, *_LAUNCHERS, "interpreter", "survey"),
    "telemetry": (*_CONTROL, "telemetry"),
    "engine_counters": ("http_get", "engine_answers", "engine_counters"),
    "try_variant": (*_CONTROL, "interpreter", "scratch", "supervised", "try_variant"),
}
"""What each program needs, in the order of import; the last one holds ``main``."""

_INTERPRETER_PROGRAMS = {
    "probe": ("resolve",),
    "facts": ("versions",),
    "survey": ("resolve", "versions", "outfit"),
    "try_variant": ("import_variant",),
}
_NO_PYTHON, _NO_SUDO = 127, 126
_RUN = """
# $1 the interpreter, $2 the program, $3 sudo or empty
command -v "$1" >/dev/null 2>&1 || exit 127
[ -n "$3" ] || exec "$1" -I -S -c "$2"
sudo -n true || exit 126
exec sudo -n "$1" -I -S -c "$2"
"""


def source_of(name: str) -> str:
    """The source of one program."""
    return files(__name__).joinpath(f"{name}.py").read_text(encoding="utf-8")


def bundle(program: str, request: dict[str, Any]) -> str:
    """One line of ASCII JSON: the sources of a program, in order, and what it is asked.

    A program that asks a second interpreter (with the engine's flags and environment) gets that one's source too.
    """
    inner = _INTERPRETER_PROGRAMS.get(program)
    if inner:
        inner_sources = [[name, source_of(name)] for name in inner]
        request = {**request, "bootstrap": BOOTSTRAP, "inner_sources": inner_sources}
    return json.dumps({"sources": [[name, source_of(name)] for name in PROGRAMS[program]], "request": request})


def run_program(
    remote: Remote, engine: Engine, program: str, request: dict[str, Any], *, doing: str, timeout_s: float = 60.0
) -> Any:
    """Runs one of ``PROGRAMS`` by the engine's Python, in one exec.

    The interpreter is isolated (``-I -S``): nothing of the engine's environment can change what the program does.

    Args:
        doing: what was tried, for the message ("stop engine sglang").

    Returns:
        What the program answered.

    Raises:
        EngineError: there is no such Python on the host.
        RemoteCommandError: the program failed; the evidence is its last lines.
    """
    content = bundle(program, {**request, "launcher": launcher_settings(engine)}).encode("ascii")
    sudo = "sudo" if engine.launcher.sudo else ""
    done = remote.run(_RUN, [engine.python, BOOTSTRAP, sudo], stdin=content, timeout_s=timeout_s)
    if done.exit_code == _NO_SUDO and sudo:
        raise EngineError(
            f"{remote.host.name}: engine {engine.name} has sudo: true, and `sudo -n` is refused there",
            next_step="allow it without a password for this login, or log in as root and leave sudo: out",
            evidence=done.stderr.decode("utf-8", "backslashreplace").splitlines()[-5:],
        )
    if done.exit_code == _NO_PYTHON:
        raise EngineError(
            f"{remote.host.name}: engine {engine.name} has python {engine.python}, and it cannot be run there",
            next_step=f"correct python: of engine {engine.name} in inventory.yaml",
        )
    if done.exit_code:
        raise RemoteCommandError(
            f"{remote.host.name}: could not {doing} (exit code {done.exit_code})",
            evidence=done.stderr.decode("utf-8", "backslashreplace").splitlines()[-25:],
        )
    return json.loads(done.stdout)


def launcher_settings(engine: Engine) -> dict[str, Any]:
    """The launcher's keys as its program on the host takes them; how to get into its container, where it has one."""
    launcher = engine.launcher
    enter = [launcher.runtime, "exec", "-i", str(launcher.name)] if launcher.kind == "container" else []
    return {**asdict(launcher), "enter": enter}


def engine_port(engine: Engine) -> int:
    """The port of the engine's ``base_url``; 80 or 443 when it names none."""
    url = urlsplit(engine.base_url)
    return url.port or (443 if url.scheme == "https" else 80)


def engine_state_dir(scratch_dir: str, engine: Engine) -> str:
    """The folder on the host where orch keeps what it knows of an engine that it started."""
    return f"{scratch_dir}/engines/{engine.name}-{engine_port(engine)}"


def ranks(remote: Remote, engine: Engine) -> list[tuple[Remote, Engine]]:
    """Each machine that an engine spans, the head first, with the engine as it is started there.

    Raises:
        EngineError: the host's engines span another number of nodes than there are here.
    """
    members, slurm = remote.members, remote.host.slurm
    wanted = 1 if slurm is None else slurm.nodes_per_engine
    if wanted != len(members):
        raise EngineError(
            f"{remote.host.name}: engine {engine.name} spans {wanted} nodes (nodes_per_engine), and this is "
            f"{len(members)}",
            next_step="`orch revert` restores what an earlier command left there; the next one works on a whole group",
        )
    if len(members) == 1:
        return [(remote, engine)]
    nodes = [node_of(member) for member in members]
    return [(member, spanning.of_rank(engine, rank, nodes)) for rank, member in enumerate(members)]
