"""``Variant`` → ``RemoteVerdict``: a variant tried on its host, in a scratch folder, never in place of the live file.

Touches the host's scratch folder alone, and leaves nothing there. The live file is not even read; the engine is only
looked at, and may run meanwhile: what the reference command does on the GPU then shares it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from orchestrator.check.reference import one_line, read_document, reference_findings
from orchestrator.connection import Remote
from orchestrator.errors import HostWriteError, RemoteCommandError, UsageError
from orchestrator.host import engine_state_dir, run_program
from orchestrator.records import Engine, Progress, SourceFile, Target, Variant
from orchestrator.verdicts import RemoteFinding, RemoteVerdict

IMPORT_TIMEOUT_S = 180.0
MARGIN_S = 60.0
"""A call may take so much longer than its command: files to write, processes to end, a large folder to remove."""

Report = Callable[[Progress], None]
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def check_remote(
    remote: Remote,
    engine: Engine,
    target: Target,
    variant: Variant,
    *,
    report: Report,
    import_timeout_s: float = IMPORT_TIMEOUT_S,
) -> RemoteVerdict:
    """Imports the variant as the engine would, then has the reference command of the target judge it.

    Whatever is wrong with the variant is a finding. The reference command runs only when the import passed. Safe to
    repeat; a call also removes what a killed one left behind.

    Args:
        report: told each step.
        import_timeout_s: an import that takes longer has failed.

    Raises:
        UsageError: the reference command names neither ``{file}`` nor ``{folder}``, or the engine is in a container.
        EngineError: the engine's Python is not there.
        HostWriteError: no space in the scratch folder.
        RemoteCommandError: the reference command is not there, or the engine's working directory.
        ConnectionError_: the host cannot be reached, or the line died.
    """
    _require_placeholder(target)
    if engine.launcher.kind == "container":
        raise UsageError(
            f"engine {engine.name} runs in container {engine.launcher.name}, where the scratch folder is not",
            next_step="leave --remote out: `orch bench` tries the variant, and `orch revert` takes it back",
        )
    label = f"{variant.name} on {target.host}"
    report(Progress("check", f"{label}: import"))
    findings = [_import_finding(_try_import(remote, engine, target, variant, import_timeout_s), target)]
    command, document = None, None
    if not target.check.reference:
        what = f"not tried: no command under targets.{target.name}.check.reference in inventory.yaml"
        findings.append(RemoteFinding("reference", None, what))
    elif not findings[0].passed:
        findings.append(RemoteFinding("reference", None, "not tried: the import failed"))
    else:
        report(Progress("check", f"{label}: reference command (at most {target.check.reference_timeout_s:g} s)"))
        seen = _try_reference(remote, engine, target, variant)
        command, document = tuple(seen["argv"]), read_document(seen)
        findings += reference_findings(seen, document, _first(target, variant).digest, target.check.reference_timeout_s)
    return RemoteVerdict(
        target=target.name,
        variant=variant.name,
        digest=variant.digest,
        host=target.host,
        command=command,
        passed=all(one.passed is not False for one in findings) and any(one.passed for one in findings[1:]),
        findings=tuple(findings),
        report=document,
        checked_at=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _require_placeholder(target: Target) -> None:
    words = target.check.reference
    if words and not any("{file}" in word or "{folder}" in word for word in words):
        raise UsageError(
            f"the reference command of target {target.name} would not judge the variant: it has no {{file}}",
            next_step=f"put {{file}} or {{folder}} into targets.{target.name}.check.reference in inventory.yaml",
        )


def _first(target: Target, variant: Variant) -> SourceFile:
    """The variant's file that holds the kernel."""
    return next(file for file in variant.files if file.name == target.files[0].name)


def _try_import(
    remote: Remote, engine: Engine, target: Target, variant: Variant, timeout_s: float
) -> Mapping[str, Any]:
    scratch_dir = remote.scratch_dir()
    request = {
        "step": "import",
        "state_dir": engine_state_dir(scratch_dir, engine),
        "python": engine.python,
        "command": list(engine.command),
    }
    where = f"cwd and python of engine {engine.name}"
    return _try(remote, engine, target, variant, request, timeout_s, doing="import", correct=where)


def _try_reference(remote: Remote, engine: Engine, target: Target, variant: Variant) -> Mapping[str, Any]:
    request = {"step": "command", "argv": list(target.check.reference)}
    where = f"targets.{target.name}.check.reference, or cwd of engine {engine.name},"
    timeout_s = target.check.reference_timeout_s
    return _try(remote, engine, target, variant, request, timeout_s, doing="judge", correct=where)


def _try(
    remote: Remote,
    engine: Engine,
    target: Target,
    variant: Variant,
    request: Mapping[str, Any],
    timeout_s: float,
    *,
    doing: str,
    correct: str,
) -> Mapping[str, Any]:
    """One run of the program on the host.

    Args:
        doing: the verb, for messages. correct: what in the inventory is wrong when it cannot be started.
    """
    what = f"{doing} variant {variant.name} of {target.name}"
    seen: dict[str, Any] = run_program(
        remote,
        engine,
        "try_variant",
        {
            **request,
            "scratch_dir": remote.scratch_dir(),
            "files": _files(target, variant),
            "cwd": engine.cwd,
            "env": dict(engine.env),
            "timeout_s": timeout_s,
        },
        doing=what,
        timeout_s=timeout_s + MARGIN_S,
    )
    if "cannot_write" in seen:
        raise HostWriteError(
            f"{remote.host.name}: could not write the scratch files to {what}: {seen['cannot_write']}",
            next_step=f"look at the space and the permissions of {remote.scratch_dir()} on the host",
        )
    if "cannot_start" in seen:
        raise RemoteCommandError(
            f"{remote.host.name}: could not {what}: {seen['cannot_start']}",
            next_step=f"correct {correct} in inventory.yaml",
        )
    return seen


def _files(target: Target, variant: Variant) -> list[dict[str, Any]]:
    """The variant's files as the program takes them, that with the kernel first."""
    content = {file.name: file for file in variant.files}
    return [
        {
            "name": file.name,
            "module": file.module,
            "live_path": file.path,
            "digest": content[file.name].digest,
            "content": base64.b64encode(content[file.name].content).decode("ascii"),
        }
        for file in target.files
    ]


def _import_finding(seen: Mapping[str, Any], target: Target) -> RemoteFinding:
    """What became of the import."""
    told, stderr = seen["import"], tuple(seen["stderr"])
    first = target.files[0]
    if told and told["error"] is None:
        how = f"as {first.module}" if first.module else "by its path"
        return RemoteFinding("import", True, f"imported {how} in {seen['elapsed_s']:.1f} s")
    if told:
        return RemoteFinding("import", False, one_line(told["error"]) + _at(told["place"]), tuple(told["trace"]))
    names = {file.name for file in target.files}
    at = _at(next((place for line in stderr if (place := _place(line)) and place[0] in names), None))
    if seen["exit_code"] is None:
        what = f"did not end within {seen['elapsed_s']:.0f} s and was killed"
    elif seen["signal"]:
        what = f"killed by {seen['signal']}"
    else:
        what = f"ended its process with exit code {seen['exit_code']}"
    return RemoteFinding("import", False, what + at, stderr)


def _place(line: str) -> tuple[str, int] | None:
    """File and line that a line of a stack trace names."""
    found = _FRAME.search(line)
    return (found[1], int(found[2])) if found else None


def _at(place: tuple[str, int] | None) -> str:
    return f" ({place[0]}, line {place[1]})" if place else ""
