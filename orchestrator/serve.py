"""Starts, awaits and stops an engine on its host: Engine → EngineProcess.

Owns the engine's state folder on the host (``<scratch>/engines/<engine>-<port>/``: who was started, when, for which
digest, and its log). Never touches a target file, and never a process that orch did not start: each is told by its
pid together with its start time. What the engine loaded is ``provenance.py``'s question.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NoReturn

from orchestrator.connection import Remote
from orchestrator.errors import EngineDiedError, EngineError, NotReadyError, PortTakenError
from orchestrator.host import BOOTSTRAP, bundle, engine_port, engine_state_dir, run_program
from orchestrator.host.engine_state import MARK
from orchestrator.host.masking import mask_lines
from orchestrator.records import Engine, EngineProcess, short

WINDOW_S = 2.0
ANSWER_TIMEOUT_S = 10.0
N_TAIL_LINES = 25
N_TRACEBACK_LINES = 60
_EXEC_MARGIN_S = 30.0
_KILL_WAIT_S = 15.0

_TAIL = 'if [ -f "$1" ]; then tail -c 262144 -- "$1" | tail -n "$2"; fi'


def start(
    remote: Remote, engine: Engine, *, deployed_digest: str | None, env: Mapping[str, str] | None = None
) -> EngineProcess:
    """Starts the engine detached from the connection, in a session of its own; does not wait until it is ready.

    Three round trips: the claim, the start, the record. The log of an earlier start is truncated.

    Args:
        deployed_digest: what is deployed now; written down for whoever finds the engine later.
        env: added to the engine's own, for this start only.

    Raises:
        PortTakenError: something listens on the engine's port, or an earlier start of it still lives.
        RemoteCommandError: its program could not be started at all.
    """
    state_dir = engine_state_dir(remote.scratch_dir(), engine)
    log_path = engine.log or f"{state_dir}/engine.log"
    record = _record(engine, state_dir, log_path, deployed_digest)
    doing = f"start engine {engine.name}"
    claim = {"step": "claim", "state_dir": state_dir, "port": engine_port(engine), "record": record}
    answer = run_program(remote, engine, "start", claim, doing=doing)
    if answer["outcome"] != "claimed":
        _refuse_start(remote, engine, answer)
    spawned = remote.spawn(
        engine.command, log_path=log_path, cwd=engine.cwd, env={**engine.env, **(env or {}), MARK: record["mark"]}
    )
    written = {
        "step": "record",
        "state_dir": state_dir,
        "pid": spawned.pid,
        "start_ticks": spawned.start_ticks,
        "started_s": spawned.started_s,
    }
    run_program(remote, engine, "start", written, doing=doing)
    return _engine_process(remote, {**record, **written})


def _record(engine: Engine, state_dir: str, log_path: str, deployed_digest: str | None) -> dict[str, Any]:
    """What is known before the start. The mark names the engine, then this start of it."""
    return {
        "engine": engine.name,
        "argv": list(engine.command),
        "log_path": log_path,
        "deployed_digest": deployed_digest,
        "mark": f"{state_dir}#{secrets.token_hex(8)}",
    }


def _engine_process(remote: Remote, record: Mapping[str, Any]) -> EngineProcess:
    started_s = float(record["started_s"])
    return EngineProcess(
        engine=record["engine"],
        host=remote.host.name,
        pid=record["pid"],
        start_ticks=record["start_ticks"],
        started_at=datetime.fromtimestamp(started_s, timezone.utc).isoformat(timespec="milliseconds"),
        started_s=started_s,
        log_path=record["log_path"],
        deployed_digest=record["deployed_digest"],
    )


def _refuse_start(remote: Remote, engine: Engine, answer: Mapping[str, Any]) -> NoReturn:
    """Says whose process is in the way: ours from earlier, or a stranger's."""
    where = f"{remote.host.name}: engine {engine.name} cannot start"
    if answer["outcome"] == "running":
        found = answer["processes"]
        raise PortTakenError(
            f"{where}: {len(found)} process(es) of it still live (pid {found[0]['pid']}), "
            f"started by orch for digest {short(answer['deployed_digest'])}",
            next_step="stop it first",
            evidence=[_process_line(one) for one in found],
        )
    raise _stranger(where, engine, answer["listeners"])


def _stranger(where: str, engine: Engine, listeners: Sequence[Mapping[str, Any]], log: Sequence[str] = ()) -> Exception:
    who = ", ".join(dict.fromkeys(_process_line(one) for one in listeners)) or "no process of this host"
    return PortTakenError(
        f"{where}: port {engine_port(engine)} is held by a process that orch did not start ({who})",
        next_step="end it, or give the engine another port in inventory.yaml",
        evidence=log,
    )


def _process_line(found: Mapping[str, Any]) -> str:
    if found["pid"] is None:
        return "a process that this login cannot see"
    return f"pid {found['pid']}: {found['command'] or 'command line not readable'}"


def wait_ready(
    remote: Remote, engine: Engine, process: EngineProcess, *, on_wait: Callable[[float], None] | None = None
) -> float:
    """Waits until the engine answers 200 on ``ready_path``, with the listening process proved to be its own.

    The host polls every 20 ms; the line carries one exec per two seconds. On any failure the engine is left as it
    is: the caller stops it.

    Args:
        on_wait: called after each window with the seconds waited so far.

    Returns:
        Seconds from the start of the process until it was ready, by the host's clock.

    Raises:
        EngineDiedError: it ended; the evidence is its traceback, or the end of its log.
        NotReadyError: not ready within ``ready_timeout_s``; the evidence is the end of its log.
        PortTakenError: a process that is not the engine's answers on its port.
    """
    request = {
        "state_dir": engine_state_dir(remote.scratch_dir(), engine),
        "port": engine_port(engine),
        "url": engine.base_url.rstrip("/") + engine.ready_path,
        "pid": process.pid,
        "log_path": process.log_path,
        "answer_timeout_s": ANSWER_TIMEOUT_S,
    }
    began_s = time.monotonic()
    while True:
        remaining_s = engine.ready_timeout_s - (time.monotonic() - began_s)
        request["window_s"] = max(0.0, min(WINDOW_S, remaining_s))
        timeout_s = WINDOW_S + ANSWER_TIMEOUT_S + _EXEC_MARGIN_S
        answer = run_program(
            remote, engine, "ready", request, doing=f"wait for engine {engine.name}", timeout_s=timeout_s
        )
        if answer["outcome"] == "ready":
            return max(0.0, float(answer["now_s"]) - process.started_s)
        waited_s = time.monotonic() - began_s
        if answer["outcome"] != "waiting" or waited_s >= engine.ready_timeout_s:
            _fail_wait(remote, engine, process, answer)
        if on_wait:
            on_wait(waited_s)


def _fail_wait(remote: Remote, engine: Engine, process: EngineProcess, answer: Mapping[str, Any]) -> NoReturn:
    """Turns the last answer of a wait into the error that explains it."""
    where = f"{remote.host.name}: engine {engine.name}"
    evidence = log_evidence(mask_lines(answer["log"], engine.env))
    look = f"read the whole log: {process.log_path} on {remote.host.name}"
    if answer["outcome"] == "stranger":
        raise _stranger(where, engine, answer["listeners"], evidence)
    if answer["outcome"] == "dead":
        raise EngineDiedError(
            f"{where} (pid {process.pid}) ended before it was ready", next_step=look, evidence=evidence
        )
    raise NotReadyError(
        f"{where} (pid {process.pid}) was not ready within {engine.ready_timeout_s:g} s; "
        f"{engine.ready_path} last answered: {answer['answer']}",
        next_step=f"{look}; if it only needs longer, raise ready_timeout_s",
        evidence=evidence[-N_TAIL_LINES:],
    )


def log_evidence(lines: Sequence[str]) -> list[str]:
    """What of a log explains a death: from its last traceback on, else the last 25 lines.

    A traceback that is too long keeps its first line and its end.
    """
    starts = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not starts:
        return list(lines[-N_TAIL_LINES:])
    trace = list(lines[starts[-1] :])
    if len(trace) <= N_TRACEBACK_LINES:
        return trace
    n_last = N_TRACEBACK_LINES - 2
    return [trace[0], f"  … {len(trace) - 1 - n_last} lines …", *trace[-n_last:]]


def stop(remote: Remote, engine: Engine) -> bool:
    """Stops every process of the engine that orch started, and makes sure by identity that each is gone.

    ``stop_signal`` to each, KILL after ``stop_grace_s``. Processes are found by session, group, ancestry and the mark
    in their environment, so workers that made their own session, or that a dead leader left behind, end too. A pid
    that belongs to somebody else by now is never signalled. Safe to call again, and when nothing runs.

    Returns:
        Whether something was stopped.

    Raises:
        EngineError: something survived KILL; the evidence names each process.
    """
    request = {
        "state_dir": engine_state_dir(remote.scratch_dir(), engine),
        "signal": engine.stop_signal,
        "grace_s": engine.stop_grace_s,
    }
    timeout_s = engine.stop_grace_s + _KILL_WAIT_S + _EXEC_MARGIN_S
    answer = run_program(remote, engine, "stop", request, doing=f"stop engine {engine.name}", timeout_s=timeout_s)
    if answer["survivors"]:
        raise EngineError(
            f"{remote.host.name}: {len(answer['survivors'])} process(es) of engine {engine.name} survived KILL",
            next_step="look at them on the host (state D waits for a driver or a disk)",
            evidence=[_process_line(one) for one in answer["survivors"]],
        )
    return bool(answer["stopped"])


def running(remote: Remote, engine: Engine) -> EngineProcess | None:
    """The engine that orch started, when its leader lives; None otherwise, though workers of it may be left."""
    answer = _status(remote, engine)
    return _engine_process(remote, answer["record"]) if answer["is_running"] else None


def processes(remote: Remote, engine: Engine, process: EngineProcess) -> tuple[int, ...]:
    """Every live process of that start of the engine, the leader first; none when another start has followed."""
    answer = _status(remote, engine)
    record = answer["record"]
    is_same = record is not None and (record["pid"], record["start_ticks"]) == (process.pid, process.start_ticks)
    return tuple(answer["pids"]) if is_same else ()


def _status(remote: Remote, engine: Engine) -> Any:
    request = {"state_dir": engine_state_dir(remote.scratch_dir(), engine)}
    return run_program(remote, engine, "status", request, doing=f"look for engine {engine.name}")


def log_tail(remote: Remote, process: EngineProcess, n: int = N_TAIL_LINES) -> tuple[str, ...]:
    """The last ``n`` lines of the engine's log; none when there is no log yet."""
    done = remote.check(_TAIL, [process.log_path, str(n)], doing=f"read {process.log_path}")
    return tuple(done.text.splitlines())


def restore_script(engine: Engine, scratch_dir: str) -> str:
    """POSIX sh for the watcher on the host, to run after it restored the file: the engine must forget it too.

    Stops the engine that orch started, by the same identity checks as ``stop``, and with ``restart_after_restore``
    starts it again. It needs nobody: no connection, no argument, nothing beside it on the host but a Python. Prints
    one line of JSON with what it did; exits with 0 only when nothing of the stopped engine is left.

    The text holds ``engine.env``: keep the file private (mode 600).
    """
    state_dir = engine_state_dir(scratch_dir, engine)
    request = {
        "state_dir": state_dir,
        "signal": engine.stop_signal,
        "grace_s": engine.stop_grace_s,
        "restart": engine.restart_after_restore,
        "port": engine_port(engine),
        "cwd": engine.cwd or scratch_dir,
        "env": dict(engine.env),
        "record": _record(engine, state_dir, engine.log or f"{state_dir}/engine.log", None),
    }
    return "\n".join(
        [
            "#!/bin/sh",
            "# Ends (and may start again) the engine whose file was restored. Written by orch; safe to run again.",
            f"python={shlex.quote(engine.python)}",
            'command -v "$python" >/dev/null 2>&1 || python=python3',
            f"exec \"$python\" -I -S -c {shlex.quote(BOOTSTRAP)} <<'ORCH_REQUEST'",
            bundle("restore", request),
            "ORCH_REQUEST",
            "",
        ]
    )
