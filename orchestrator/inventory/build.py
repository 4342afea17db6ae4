"""From the plain values of a YAML tree to an ``Inventory``: shorter forms, references, paths, and every refusal.

Collects all that is wrong before it refuses. Reads no file: whether a key file exists is ``orch doctor``'s question.
"""

from __future__ import annotations

import keyword
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from orchestrator.engines import knowledge_of
from orchestrator.inventory.problems import Problem, nearest, shown
from orchestrator.inventory.shapes import (
    LAUNCHER_KINDS,
    NAME_PATTERN,
    SECTIONS,
    TOP_LEVEL_KEYS,
    VERSION,
    FileEntry,
    Section,
    TargetEntry,
    allowed_keys,
    fit,
)
from orchestrator.inventory.spans import misfits_of_host, misfits_of_span
from orchestrator.inventory.yaml_tree import KeyPath, Tree, dotted
from orchestrator.records import (
    RECIPE_KEYS,
    Engine,
    EngineKind,
    Host,
    Inventory,
    Launcher,
    Target,
    TargetFile,
    Workload,
)
from orchestrator.verdicts import arch_name, parse_arch

RESERVED_FILE_NAME = "variant.json"
"""The workspace keeps its own record under this name beside a variant's files."""

_NOT_OF_LOADGEN = ("client_command", "client_env", "tokenizer")
_LOADGEN_ONLY = ("max_token_id", "min_token_id")
_LIMITS = ("request_timeout_s", "load_timeout_s")
"""What a workload takes over with another's recipe, unless it gives its own: one client may need longer to start."""
_CLIENTS_ELSEWHERE = {"guidellm": "/opt/guidellm/bin/guidellm run", "aiperf": "/opt/aiperf/bin/aiperf profile"}
"""Clients that no engine brings along, with a command to show."""

_FREE_TEXTS = frozenset(["env", "command", "restart_command", "reference", "client_env", "client_command"])
"""Keys whose texts go to other programs, which may want an empty one, or one of several lines."""

_OWN_SLURM_OPTIONS = frozenset(
    (
        *("-a", "-N", "-n", "-J", "-o", "--array", "--nodes", "--ntasks", "--job-name", "--output"),
        *("--wrap", "--parsable", "--requeue", "--no-requeue"),
    )
)
"""Options of sbatch that say what orch needs: one job a node, found again by its name."""

_SSH_ONLY = ("connect_timeout_s", "identity", "jump", "known_hosts", "port", "ssh", "ssh_config", "user")


@dataclass(slots=True)
class _Desk:
    """The tree under work, and what was found wrong in it so far."""

    tree: Tree
    folder: Path
    problems: list[Problem] = field(default_factory=list)

    def complain(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(self.tree.line_of(path), dotted(path), text))


def build(tree: Tree, path: Path) -> tuple[Inventory | None, list[Problem]]:
    """Makes the inventory, or the list of everything that is wrong with it.

    Args:
        tree: a parsed document without problems of its own.
        path: of inventory.yaml; local paths in it are relative to its folder.
    """
    desk = _Desk(tree, path.absolute().parent)
    sections = _sections(desk)
    if desk.problems:
        return None, desk.problems
    hosts = {name: _host(desk, record) for name, record in _fitted(desk, "hosts", sections)}
    engines = dict(_fitted(desk, "engines", sections))
    workloads: dict[str, Workload] = dict(_fitted(desk, "workloads", sections))
    for engine in engines.values():
        _check_engine(desk, engine)
    for workload in workloads.values():
        _check_workload(desk, workload)
    known: dict[str, Sequence[str]] = {"host": list(sections["hosts"]), "engine": list(sections["engines"])}
    targets: dict[str, Target] = {}
    for name, entry in _fitted(desk, "targets", sections):
        target = _target(desk, name, entry, known)
        if target is not None:
            targets[name] = target
            for where, text in misfits_of_span(target, hosts.get(target.host), engines.get(target.engine)):
                desk.complain(where, text)
    if desk.problems:
        return None, desk.problems
    return Inventory(path=str(path), hosts=hosts, targets=targets, engines=engines, workloads=workloads), []


# ---- the document and its sections


def _sections(desk: _Desk) -> dict[Section, dict[str, Any]]:
    root = desk.tree.root
    found: dict[Section, dict[str, Any]] = {section: {} for section in SECTIONS}
    if not isinstance(root, dict):
        desk.complain((), f"wanted the keys {', '.join(TOP_LEVEL_KEYS)}, found {shown(root)}")
        return found
    for key in root:
        if key not in TOP_LEVEL_KEYS:
            allowed = sorted(TOP_LEVEL_KEYS)
            desk.complain((key,), f"unknown key; allowed: {', '.join(allowed)}{nearest(key, allowed)}")
    version = root.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        desk.complain(("version",), f"wanted {VERSION}, found {shown(version)}")
    for section in SECTIONS:
        found[section] = _section(desk, section, root.get(section))
    if not desk.problems and not found["hosts"]:
        desk.complain(("hosts",), "wanted at least one host")
    return found


def _section(desk: _Desk, section: Section, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        desk.complain((section,), f"wanted a mapping of names to {section}, found {shown(value)}")
        return {}
    for name in value:
        if not re.fullmatch(NAME_PATTERN[1:-1], name):
            desk.complain(
                (section, name), "wanted a name of letters, digits, '.', '_' and '-' (a letter or digit first)"
            )
    return value


def _fitted(desk: _Desk, section: Section, sections: Mapping[Section, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Every entry of a section that fits its shape; the others are complained about."""
    for name, value in sections[section].items():
        path = (section, name)
        fields = {} if value is None else value
        if not isinstance(fields, dict):
            desk.complain(
                path, f"wanted a mapping with the keys {', '.join(allowed_keys(section))}, found {shown(value)}"
            )
            continue
        n_before = len(desk.problems)
        fields = _longhand(desk, section, path, fields)
        record, misfits = fit(section, name, fields)
        refused = {misfit.path[:1] for misfit in misfits}
        for misfit in misfits:
            desk.complain((*path, *misfit.path), misfit.text)
        _check_texts(desk, path, {key: entry for key, entry in fields.items() if (key,) not in refused})
        if record is not None and len(desk.problems) == n_before:
            yield name, record


def _longhand(desk: _Desk, section: Section, path: KeyPath, fields: dict[str, Any]) -> dict[str, Any]:
    """The entry with its shorter forms spelled out: command as a list, files as mappings, numbers in env as text."""
    fields = dict(fields)
    if "name" in fields:
        allowed = allowed_keys(section)
        desk.complain((*path, "name"), f"unknown key; the entry's own key is its name; allowed: {', '.join(allowed)}")
        del fields["name"]
    slurm = fields.get("slurm") if section == "hosts" else None
    if isinstance(slurm, dict) and isinstance(slurm.get("options"), str):
        fields["slurm"] = {**slurm, "options": _split(desk, (*path, "slurm", "options"), slurm["options"])}
    if section == "engines":
        if fields.get("kind") in get_args(EngineKind):
            fields = {**knowledge_of(fields["kind"]).defaults, **fields}
        if isinstance(fields.get("command"), str):
            fields["command"] = _split(desk, (*path, "command"), fields["command"])
        if isinstance(fields.get("env"), dict):
            fields["env"] = _environment(desk, (*path, "env"), fields["env"])
        if "launcher" in fields:
            fields["launcher"] = _launcher_longhand(desk, (*path, "launcher"), fields["launcher"])
    if section == "workloads":
        fields = _with_recipe(desk, path, fields)
        if isinstance(fields.get("client_command"), str):
            fields["client_command"] = _split(desk, (*path, "client_command"), fields["client_command"])
        if isinstance(fields.get("client_env"), dict):
            fields["client_env"] = _environment(desk, (*path, "client_env"), fields["client_env"])
    if section == "targets" and isinstance(fields.get("files"), list):
        fields["files"] = [{"path": entry} if isinstance(entry, str) else entry for entry in fields["files"]]
    if section == "targets" and "check" in fields:
        fields["check"] = _check_longhand(desk, (*path, "check"), fields["check"])
    return fields


def _with_recipe(desk: _Desk, path: KeyPath, fields: dict[str, Any]) -> dict[str, Any]:
    """A workload that is another one by another client, with the recipe of that one spelled out."""
    if "recipe" not in fields:
        return fields
    here = (*path, "recipe")
    name = fields.pop("recipe")
    entries = desk.tree.root["workloads"]
    others = [other for other in entries if other != path[-1]]
    if name not in others:
        listed = ", ".join(others) or "none"
        desk.complain(here, f"no other workload {shown(name)}; workloads here: {listed}{nearest(str(name), others)}")
        return fields
    theirs = entries[name] if isinstance(entries[name], dict) else {}
    if "recipe" in theirs:
        desk.complain(here, f"{name} has the recipe of {shown(theirs['recipe'])} itself; name that one")
    for key in RECIPE_KEYS:
        if key in fields:
            desk.complain((*path, key), f"is part of the recipe, which is that of {name}; leave it out")
    taken = {key: theirs[key] for key in (*RECIPE_KEYS, *_LIMITS) if key in theirs}
    return {**taken, **fields}


def _launcher_longhand(desk: _Desk, path: KeyPath, value: object) -> object:
    """A launcher that is only named, as a mapping; its command as words."""
    if value is None or value in LAUNCHER_KINDS:
        return {} if value is None else {"kind": value}
    if not isinstance(value, dict) or not isinstance(value.get("restart_command"), str):
        return value
    return {**value, "restart_command": _split(desk, (*path, "restart_command"), value["restart_command"])}


def _check_longhand(desk: _Desk, path: KeyPath, value: object) -> object:
    """What ``orch check`` is told: one architecture as a list, the reference command as one, arguments as scalars."""
    if not isinstance(value, dict):
        return {} if value is None else value
    check = dict(value)
    if "arch" in check:
        check["arch"] = list(_architectures(desk, (*path, "arch"), check["arch"]))
    if isinstance(check.get("reference"), str):
        check["reference"] = _split(desk, (*path, "reference"), check["reference"])
    if isinstance(check.get("arguments"), dict):
        for name, argument in check["arguments"].items():
            if isinstance(argument, dict | list):
                desk.complain((*path, "arguments", name), f"wanted a type or a value, found {shown(argument)}")
        check["arguments"] = {k: v for k, v in check["arguments"].items() if not isinstance(v, dict | list)}
    return check


def _architectures(desk: _Desk, path: KeyPath, value: object) -> Iterator[str]:
    for i, entry in enumerate(value if isinstance(value, list) else [value]):
        arch = parse_arch(str(entry)) if isinstance(entry, str | int) else None
        if arch is None:
            here = (*path, i) if isinstance(value, list) else path
            desk.complain(here, f"wanted an architecture such as sm_120 or sm_90, found {shown(entry)}")
        else:
            yield arch_name(arch)


def _split(desk: _Desk, path: KeyPath, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as exc:
        desk.complain(path, f"cannot be split into arguments ({exc}); write it as a list")
        return ["unsplittable"]


def _environment(desk: _Desk, path: KeyPath, env: dict[str, Any]) -> dict[str, str]:
    """Numbers become the text that was written; what could be meant in two ways is refused."""
    texts = {}
    for name, value in env.items():
        here = (*path, name)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            desk.complain(here, "wanted a variable name (letters, digits, '_'; no digit first)")
        elif isinstance(value, bool) or value is None:
            wanted = 'quote it ("1", "true" or "")'
            desk.complain(here, f"wanted text, found {shown(value)}; engines read this differently: {wanted}")
        elif isinstance(value, dict | list):
            desk.complain(here, f"wanted text, found {shown(value)}")
        else:
            texts[name] = desk.tree.texts.get(here, str(value))
    return texts


def _check_texts(desk: _Desk, path: KeyPath, value: object) -> None:
    """Refuses texts that nobody means: empty ones, and control characters that would travel into paths and commands."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_texts(desk, (*path, key), entry)
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            _check_texts(desk, (*path, i), entry)
    elif isinstance(value, str):
        is_free_text = bool(_FREE_TEXTS & set(path))
        if not value and not is_free_text:
            desk.complain(path, "is empty; leave the key out or give it a value")
        elif "\0" in value or (not is_free_text and any(ord(character) < 32 for character in value)):
            desk.complain(path, f"holds a control character: {shown(value)}")


# ---- hosts


def _host(desk: _Desk, host: Host) -> Host:
    path = ("hosts", host.name)
    given = desk.tree.root["hosts"][host.name] or {}
    if host.transport == "local":
        for key in _SSH_ONLY:
            if key in given:
                desk.complain((*path, key), "has no meaning with transport: local; leave it out")
    for key in ("ssh", "user", "jump"):
        if (getattr(host, key) or "").startswith("-"):
            desk.complain((*path, key), f"may not begin with '-', found {shown(getattr(host, key))}")
    _check_absolute(desk, (*path, "scratch_dir"), host.scratch_dir)
    for i, option in enumerate(host.slurm.options if host.slurm else ()):
        name = option.partition("=")[0]
        if name in _OWN_SLURM_OPTIONS:
            desk.complain((*path, "slurm", "options", i), f"{name} is set by orch; leave it out")
    for key, text in misfits_of_host(host):
        desk.complain((*path, "slurm", key), text)
    return replace(
        host,
        identity=_local_path(desk, host.identity),
        known_hosts=_local_path(desk, host.known_hosts),
        ssh_config=_local_path(desk, host.ssh_config),
    )


def _local_path(desk: _Desk, text: str | None) -> str | None:
    """A path on this machine: ``~`` expanded, relative to the inventory's folder."""
    return None if text is None else str(desk.folder / Path(text).expanduser())


def _check_absolute(desk: _Desk, path: KeyPath, text: str | None, where: str = "on the host") -> None:
    if text is None or (text.startswith("/") and posixpath.normpath(text) == text and not text.startswith("//")):
        return
    why = "'~' is not expanded on a host" if text.startswith("~") else "an absolute path without '..', '.' or '//'"
    desk.complain(path, f"wanted a path {where} from '/' ({why}), found {shown(text)}")


# ---- engines


def _check_engine(desk: _Desk, engine: Engine) -> None:
    path = ("engines", engine.name)
    for key in ("python", "cwd", "log"):
        _check_absolute(desk, (*path, key), getattr(engine, key))
    for key in ("ready_path", "loaded_path", "cache_flush_path"):
        value = getattr(engine, key)
        if value is not None and not value.startswith("/"):
            desk.complain((*path, key), f"wanted a path below base_url that begins with '/', found {shown(value)}")
    if not _is_base_url(engine.base_url):
        desk.complain(
            (*path, "base_url"), f"wanted http://ADDRESS:PORT and nothing after it, found {shown(engine.base_url)}"
        )
    _check_command(desk, engine)
    _check_launcher(desk, engine)


def _check_command(desk: _Desk, engine: Engine) -> None:
    """Who starts the engine's command needs one; who does not, nothing of what it would be started with."""
    path, given = ("engines", engine.name), desk.tree.root["engines"][engine.name]
    if not engine.launcher.runs_command:
        for key, where in _OF_A_COMMAND.items():
            if key in given:
                text = f"has no meaning with launcher: {_launcher_words(engine.launcher)}; {where}"
                desk.complain((*path, key), text)
    elif "command" not in given:
        desk.complain((*path, "command"), "missing")
    elif not engine.command:
        desk.complain((*path, "command"), "wanted at least one entry, found none")
    elif not engine.command[0]:
        desk.complain((*path, "command"), "the first argument, the program, is empty")


_OF_A_COMMAND = {
    "command": "it is started by what is there already",
    "cwd": "it is started where it always is",
    "env": "set it where the engine is started: orch writes no unit and no container",
    "stop_signal": "it is stopped by what started it",
}
"""Of an engine whose command orch does not run itself: what cannot be asked for, and why."""

_LAUNCHER_KEYS: dict[str, tuple[str, ...]] = {
    "command": (),
    "systemd": ("unit", "user", "sudo", "timeout_s"),
    "container": ("runtime", "name", "mode", "python", "sudo", "timeout_s"),
    "manual": ("restart_command", "timeout_s"),
}
"""The keys that each kind of launcher has beside ``kind``."""

_LAUNCHER_NEEDS = {
    "systemd": (("unit", "the unit that runs the engine, as sglang.service"),),
    "container": (
        ("name", "the container's name"),
        ("python", "the engine's interpreter, as a path inside the container"),
    ),
}


def _launcher_words(launcher: Launcher) -> str:
    return f"{launcher.kind} (mode: {launcher.mode})" if launcher.kind == "container" else launcher.kind


def _check_launcher(desk: _Desk, engine: Engine) -> None:
    """Every key that this kind of launcher needs, and none that only another one has."""
    path, launcher = ("engines", engine.name, "launcher"), engine.launcher
    written = desk.tree.root["engines"][engine.name].get("launcher")
    given = written if isinstance(written, dict) else {}
    allowed = ("kind", *_LAUNCHER_KEYS[launcher.kind])
    for key in given:
        if key not in allowed:
            text = f"has no meaning with kind: {launcher.kind}; its keys: {', '.join(allowed)}"
            desk.complain((*path, key), text)
    for key, what in _LAUNCHER_NEEDS.get(launcher.kind, ()):
        if getattr(launcher, key) is None:
            desk.complain((*path, key), f"missing; {what}")
    if launcher.user and launcher.sudo:
        desk.complain((*path, "sudo"), "has no meaning with user: true: the unit is the login's own")
    for key in ("unit", "name"):
        if (getattr(launcher, key) or "").startswith("-"):
            desk.complain((*path, key), f"may not begin with '-', found {shown(getattr(launcher, key))}")
    _check_absolute(desk, (*path, "python"), launcher.python, "inside the container")
    if "restart_command" in given and not "".join(launcher.restart_command[:1]):
        desk.complain((*path, "restart_command"), "the first argument, the program, is empty")


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_web = parts.scheme in {"http", "https"} and bool(parts.hostname) and has_port
    return is_web and not (parts.path or parts.query or parts.fragment or "@" in parts.netloc or " " in text)


# ---- workloads


def _check_workload(desk: _Desk, workload: Workload) -> None:
    """What the load client needs, and what has no meaning for it."""
    path, client = ("workloads", workload.name), workload.client
    given = desk.tree.root["workloads"][workload.name] or {}
    for key in _NOT_OF_LOADGEN if client == "loadgen" else _LOADGEN_ONLY:
        if key in given:
            desk.complain((*path, key), f"has no meaning with client: {client}; leave it out")
    if client == "loadgen":
        return
    if workload.tokenizer is None:
        desk.complain((*path, "tokenizer"), f"missing; {client} makes its prompts with one: give the model's folder")
    command = workload.client_command
    if not command and client in _CLIENTS_ELSEWHERE:
        shown_command = _CLIENTS_ELSEWHERE[client]
        desk.complain((*path, "client_command"), f"missing; how {client} is called on the host, as {shown_command}")
    elif command and not command[0].startswith("/"):
        desk.complain((*path, "client_command"), f"wanted a program from '/', found {shown(command[0])}")
    elif command and client == "sglang" and command[-2:-1] != ("-m",):
        wanted = "PYTHON -m sglang.benchmark.serving"
        desk.complain((*path, "client_command"), f"wanted {wanted}, found {shown(' '.join(command))}")


# ---- targets

_OF_A_KERNEL = ("arguments", "arch", "varies")
"""Of ``check``: what has no meaning for files without a kernel."""


def _target(desk: _Desk, name: str, entry: TargetEntry, known: Mapping[str, Sequence[str]]) -> Target | None:
    path = ("targets", name)
    n_before = len(desk.problems)
    host = _reference(desk, path, "host", entry.host, known["host"])
    engine = _reference(desk, path, "engine", entry.engine, known["engine"])
    if entry.kernel is not None and not _is_identifier(entry.kernel):
        desk.complain((*path, "kernel"), f"wanted the name of a Python function, found {shown(entry.kernel)}")
    for key in _OF_A_KERNEL if entry.kernel is None else ():
        if getattr(entry.check, key):
            desk.complain((*path, "check", key), "is about a kernel, and this target names none: add kernel:")
    files = _target_files(desk, path, entry)
    if len(desk.problems) > n_before:
        return None
    return Target(name=name, host=host, engine=engine, files=files, kernel=entry.kernel, check=entry.check)


def _reference(desk: _Desk, path: KeyPath, key: str, name: str | None, known: Sequence[str]) -> str:
    """The name that a target refers to; the only one where it names none."""
    if name in known:
        return str(name)
    listed = f"{key}s here: {', '.join(known) or 'none'}"
    if name is not None:
        desk.complain((*path, key), f"no {key} {shown(name)}; {listed}{nearest(name, known)}")
    elif len(known) != 1:
        desk.complain((*path, key), f"missing; {listed}")
    return known[0] if known else ""


def _target_files(desk: _Desk, path: KeyPath, entry: TargetEntry) -> tuple[TargetFile, ...]:
    entries = list(entry.files)
    if entry.module is not None:
        if entries[0].module is not None:
            desk.complain((*path, "module"), "given here and with the first file; leave one out")
        entries[0] = FileEntry(path=entries[0].path, module=entry.module)
    for i, file in enumerate(entries):
        here = (*path, "files", i)
        _check_absolute(desk, here, file.path)
        if file.path == "/":
            desk.complain(here, "wanted a file, found the root folder")
        if file.module is not None and not all(_is_identifier(part) for part in file.module.split(".")):
            desk.complain(path, f"wanted a dotted module name such as sglang.srt.layers.x, found {shown(file.module)}")
        if file.path in [other.path for other in entries[:i]]:
            desk.complain(here, f"{shown(file.path)} is given twice")
    paths = [file.path for file in entries]
    files = tuple(
        TargetFile(path=file.path, name=name, module=file.module)
        for file, name in zip(entries, _names_in_workspace(paths), strict=True)
    )
    for i, named in enumerate(files):
        if named.name == RESERVED_FILE_NAME:
            desk.complain((*path, "files", i), f"a target's file may not be called {RESERVED_FILE_NAME}")
    return files


def _names_in_workspace(paths: Sequence[str]) -> list[str]:
    """Each path relative to the folder that all share; paths that are wrong are reported elsewhere."""
    if not all(path.startswith("/") for path in paths):
        return [posixpath.basename(path) for path in paths]
    shared = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return [posixpath.relpath(path, shared) for path in paths]


def _is_identifier(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
