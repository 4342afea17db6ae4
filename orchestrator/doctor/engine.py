"""The engine before it is started: its Python, program, folder, port and address, and what its Python would load.

Starts nothing and imports nothing of the engine; its own Python is asked by ``host/survey.py``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from orchestrator.clients import driven, driver, load_client, loadgen_adapter, request_limit
from orchestrator.connection import Remote
from orchestrator.doctor.findings import Finding, fail, failed_by, ok, skipped, warn
from orchestrator.doctor.host_facts import HostFacts, starts_by
from orchestrator.engines import knowledge_of
from orchestrator.errors import LoadError, OrchError
from orchestrator.host import engine_port, engine_state_dir, run_program
from orchestrator.records import Engine, Target, Workload

OLDEST_PYTHON = (3, 8)
DISTRIBUTIONS = ("torch", "triton", "pytorch-triton", "sglang", "vllm")
NOT_ASKED = "the engine's Python could not be asked"
NOWHERE = "/dev/null"
"""Stands for a scratch folder that is not there: nothing can be found below it."""
VLLM_FLUSH_PATH, VLLM_FLUSH_SWITCH = "/reset_prefix_cache", "VLLM_SERVER_DEV_MODE"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def look_closer(
    remote: Remote, engine: Engine, target: Target, scratch_dir: str | None, facts: HostFacts
) -> tuple[Finding, Any | None]:
    """What is to be said of the engine's Python, and what ``host/survey.py`` sees when it can run it; else None."""
    finding = check_python(engine, facts)
    if finding.status == "fail":
        return finding, None
    try:
        return finding, _survey(remote, engine, target, scratch_dir)
    except OrchError as exc:
        return failed_by("engine python", exc, f"try `{engine.python} -I -S -c 'import json'` there"), None


def _survey(remote: Remote, engine: Engine, target: Target, scratch_dir: str | None) -> Any:
    request = {
        "state_dir": engine_state_dir(scratch_dir or NOWHERE, engine),
        "engines_dir": f"{scratch_dir or NOWHERE}/engines",
        "scratch_dir": scratch_dir or "/",
        "port": engine_port(engine),
        "python": engine.python,
        "command": list(engine.command),
        "cwd": engine.cwd or scratch_dir or "/",
        "env": dict(engine.env),
        "modules": {file.module: file.path for file in target.files if file.module},
        "distributions": list(DISTRIBUTIONS),
        "imports": client_imports(),
    }
    return run_program(remote, engine, "survey", request, doing=f"look at engine {engine.name}", timeout_s=120)


def own_pids(engine: Engine, scratch_dir: str | None, survey: Mapping[str, Any] | None) -> tuple[int, ...]:
    """The live processes of this engine: those that orch started, and those that its launcher keeps."""
    folder, found = engine_state_dir(scratch_dir or NOWHERE, engine), survey or {}
    started = [pid for one in found.get("engines", ()) if one["folder"] == folder for pid in one["pids"]]
    return tuple(dict.fromkeys([*started, *found.get("kept_pids", ())]))


def client_imports() -> list[str]:
    """The modules that what loads imports: all of the standard library, but a Python can be built without some."""
    names: set[str] = set()
    programs = (loadgen_adapter.source(), *(driven.source(one) for one in (driver, request_limit)))
    for node in (node for program in programs for node in ast.parse(program).body):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return sorted(name for name in names if name.partition(".")[0] in sys.stdlib_module_names)


def check_python(engine: Engine, facts: HostFacts) -> Finding:
    """Whether the engine's Python is there, and new enough for what orch sends it."""
    correct = f"correct python: of engine {engine.name} in inventory.yaml"
    said = facts.one("python_says")
    found = re.fullmatch(r"(\d+)\.(\d+)\.\d+", said)
    if found is None:
        why = f"is no Python ({said})" if said else f"cannot be run (as far as {facts.one('python_near')} it is there)"
        return fail("engine python", f"{engine.python} {why}", correct)
    if (int(found[1]), int(found[2])) < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return fail("engine python", f"{engine.python} is Python {said}; orch needs {wanted} or later", correct)
    return ok("engine python", f"{engine.python} is Python {said}")


def check_client(engine: Engine, survey: Mapping[str, Any]) -> Finding:
    """Whether the load client can run by the engine's Python, in the login's own environment."""
    answer = survey["client_python"]
    correct = f"give engine {engine.name} another python: in inventory.yaml, or mend that one"
    if answer.get("error"):
        return fail(
            "load client", f"{engine.python} does not run in the login's environment: {answer['error']}", correct
        )
    failed = answer["failed_imports"]
    if failed:
        reasons = "; ".join(f"{name} ({why})" for name, why in failed.items())
        return fail("load client", f"{engine.python} cannot import what the load client needs: {reasons}", correct)
    return ok("load client", f"loadgen {loadgen_adapter.version()}: all that it imports is there")


def check_modules(target: Target, engine: Engine, survey: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether each file of the target is the one that the engine's Python would import for its module."""
    answer = survey["engine_python"]
    if answer.get("error"):
        python, correct = engine.python, f"correct env: and command: of engine {engine.name} in inventory.yaml"
        if engine.launcher.kind == "container":
            python, correct = f"{engine.launcher.python} inside", f"start the container: {engine.launcher.name}"
        yield fail("module", f"{python}, started as the engine would, could not be asked: {answer['error']}", correct)
        return
    for i, file in enumerate(target.files):
        if file.module is not None:
            yield _check_module(target, engine, file.module, file.path, answer["modules"][file.module])
        elif i == 0 and not file.path.endswith(".py"):
            text = f"{file.path} is no Python module: that it is in place can be proved, not that the engine reads it"
            yield warn("module", text, "make sure by what the engine answers or logs that a change of it counts")
        elif i == 0:
            text = f"{file.path} has no module:, so it cannot be proved that the engine imports this file"
            yield warn("module", text, f"add module: to target {target.name} in inventory.yaml")
        else:
            yield skipped("module", f"{file.path} has no module:")


def _check_module(target: Target, engine: Engine, module: str, path: str, located: Mapping[str, Any]) -> Finding:
    if located.get("error"):
        return fail(
            "module",
            f"the engine's Python does not find {module}: {located['error']}",
            f"correct module: of target {target.name}, or cwd: and env: PYTHONPATH of engine {engine.name}",
        )
    if not located["is_target"]:
        return fail(
            "module",
            f"{module} would come from {located['path']}, not from {path}",
            f"put that path under files: of target {target.name}, or correct its module:",
        )
    if located.get("is_mount") and engine.launcher.mode == "exec":
        return fail(
            "module",
            f"{located['path']} is mounted by itself into container {engine.launcher.name}: it keeps what it is there",
            f"mount its folder {path.rpartition('/')[0]} instead",
        )
    return ok("module", f"{module} is {located['path']}")


def check_command(engine: Engine, facts: HostFacts) -> Finding:
    """Whether the engine's program exists, can be executed, and runs the Python that the inventory names."""
    program, found = starts_by(engine), facts.one("program_path")
    is_own = engine.launcher.kind == "command"
    correct = f"correct {'command' if is_own else 'launcher'}: of engine {engine.name} in inventory.yaml"
    if not program:
        return ok("engine command", "none: its user restarts it when orch asks at the terminal")
    if not found:
        return fail("engine command", f"{program} is not there, or may not be executed", correct)
    if missing := facts.one("interpreter_missing"):
        text = f"{found} asks for {missing} in its first line, which is not there (a moved environment?)"
        return fail("engine command", text, correct)
    folder, _, name = found.rpartition("/")
    if is_own and re.fullmatch(r"python[\d.]*", name) and folder != engine.python.rpartition("/")[0]:
        text = f"{program} is {found}, and python: is {engine.python}: two environments?"
        return warn("engine command", text, f"name one Python in both keys of engine {engine.name}")
    return ok("engine command", found)


def check_folder(engine: Engine, scratch_dir: str | None, facts: HostFacts) -> Finding:
    """Whether the folder exists in which the engine is started."""
    if engine.launcher.kind != "command":
        return ok("engine folder", "the one in which its launcher starts it")
    if engine.cwd is None:
        return ok("engine folder", f"{scratch_dir or 'none'} (the scratch folder; no cwd: is given)")
    if facts.one("is_folder"):
        return ok("engine folder", engine.cwd)
    text = f"{engine.cwd} is no folder that {facts.one('user')} may enter (as far as {facts.one('folder_near')} it is)"
    return fail("engine folder", text, f"correct cwd: of engine {engine.name} in inventory.yaml")


def check_log(engine: Engine, facts: HostFacts) -> Finding | None:
    """Whether the engine's log can be written; None when the inventory leaves its place to orch."""
    if engine.log is None or engine.launcher.kind != "command":
        return None
    if facts.one("is_log_writable"):
        return ok("engine log", engine.log)
    text = f"{facts.one('user')} may not write {engine.log} (in {facts.one('log_near')})"
    return fail("engine log", text, f"correct log: of engine {engine.name} in inventory.yaml, or leave it out")


def check_port(engine: Engine, survey: Mapping[str, Any]) -> Finding:
    """Whether the engine's port is free, or held by an engine that orch started."""
    port, listeners = engine_port(engine), survey["listeners"]
    if survey["launcher_error"]:
        correct = f"correct launcher: of engine {engine.name} in inventory.yaml"
        return fail("engine port", f"its launcher cannot be asked: {survey['launcher_error']}", correct)
    if not survey["can_see_listeners"]:
        return skipped("engine port", f"{port}: this host does not tell who listens (no /proc, no lsof)")
    if not listeners:
        return ok("engine port", f"{port} is free")
    if survey["kept_pids"] and all(one["is_ours"] for one in listeners):
        return ok("engine port", f"{port} is held by the engine that its launcher keeps, pid {survey['kept_pids'][0]}")
    if all(one["is_ours"] for one in listeners):
        return ok("engine port", f"{port} is held by the engine that orch started, pid {listeners[0]['pid']}")
    who = "; ".join(dict.fromkeys(_listener_words(one) for one in listeners if not one["is_ours"]))
    pid = next((one["pid"] for one in listeners if not one["is_ours"] and one["pid"]), None)
    end = f"end it (`kill {pid}`)" if pid else "find it with `sudo lsof -i` and end it"
    text = f"{port} is held by a process that orch did not start: {who}"
    return fail("engine port", text, f"{end}, or give engine {engine.name} another port in base_url: and command:")


def _listener_words(one: Mapping[str, Any]) -> str:
    return f"pid {one['pid']}, {one['command'] or 'command not readable'}" if one["pid"] else "not this login's to see"


def check_url(engine: Engine) -> Finding:
    """Whether the address is the one that the command listens on, seen from the host itself."""
    url, asked = f"{engine.base_url.rstrip('/')}{engine.ready_path}", _port_in(engine.command)
    port = engine_port(engine)
    if asked is not None and asked != port:
        text = f"the command listens on port {asked}, base_url: says {port}"
        return fail("engine url", text, f"make both the same in engine {engine.name} of inventory.yaml")
    known = knowledge_of(engine.kind)
    if engine.ready_path in known.early_paths:
        text = f"{engine.kind} answers {engine.ready_path} before it can serve: a start would count as ready too early"
        return warn(
            "engine url", text, f"write ready_path: {known.ready_path} in engine {engine.name}, or leave it out"
        )
    hostname = urlsplit(engine.base_url).hostname
    if hostname not in LOOPBACK:
        text = f"{url}: asked from the host itself, so every load would go through the network to {hostname}"
        return warn("engine url", text, f"write http://127.0.0.1:{port} as base_url: of engine {engine.name}")
    return ok("engine url", f"{url} is asked until it answers 200, for up to {engine.ready_timeout_s:g} s")


def check_counters(engine: Engine) -> Finding | None:
    """Whether an engine of a known kind is started so that it counts; None where that is not known."""
    option = knowledge_of(engine.kind).metrics_option
    if option is None or not engine.command:  # what its launcher starts it with is not known here
        return None
    if option not in engine.command:
        text = f"without {option} {engine.kind} does not tell what it preempts and what its prefix cache answers"
        return warn("engine counters", text, f"add {option} to command: of engine {engine.name}")
    return ok("engine counters", f"{option} is in the command")


def _port_in(command: Sequence[str]) -> int | None:
    """The value of ``--port``; None when there is none that is a number."""
    found = re.search(r"(?:^|\0)--port[=\0](\d+)(?:\0|$)", "\0".join(command))
    return int(found[1]) if found else None


def check_versions(survey: Mapping[str, Any], *, has_gpu: bool) -> Finding:
    """What decides the kernel's speed in the engine's Python: torch, triton, the engine itself."""
    found = survey["engine_python"].get("distributions", {})
    there = {name: version for name, version in found.items() if version}
    text = ", ".join(f"{name} {version}" for name, version in there.items())
    has_triton = "triton" in there or "pytorch-triton" in there
    if has_gpu and not has_triton:
        text = f"no triton in the engine's Python ({text or 'nor torch'}), and the host has a GPU"
        return warn("versions", text, "name the Python that the engine really runs with as python:")
    return ok("versions", text or "neither torch nor triton, sglang, vllm: fine for an engine that needs none")


def check_workloads(engine: Engine, workloads: Mapping[str, Workload]) -> Finding:
    """Whether each workload can be put to this engine."""
    problems = []
    next_step = "see `workloads:` in inventory.yaml"
    for workload in workloads.values():
        try:
            load_client(workload.client).prepare(workload, engine, 1, "/")
        except LoadError as exc:
            problems.append(exc.message)
            next_step = exc.next_step or next_step
    if problems:
        return fail("workloads", "; ".join(problems), next_step)
    flushing = [name for name, workload in workloads.items() if workload.cache_policy == "flush"]
    is_told = engine.launcher.runs_command
    if flushing and is_told and engine.cache_flush_path == VLLM_FLUSH_PATH and VLLM_FLUSH_SWITCH not in engine.env:
        text = (
            f"{', '.join(flushing)}: vLLM has {VLLM_FLUSH_PATH} only when {VLLM_FLUSH_SWITCH}=1 is set for the engine"
        )
        return warn("workloads", text, f"add {VLLM_FLUSH_SWITCH}: 1 to env: of engine {engine.name}, or keep the cache")
    if not workloads:
        return warn("workloads", "inventory.yaml has none, so `orch bench` has nothing to do", "add one there")
    return ok("workloads", ", ".join(workloads))
