"""Starts an engine: its command by the line itself, everything else by its launcher on the host."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.connection import Remote
from orchestrator.errors import EngineDiedError, EngineError, NotReadyError
from orchestrator.host import engine_port, engine_state_dir, run_program
from orchestrator.host.launching import MARK
from orchestrator.host.masking import mask_lines
from orchestrator.records import Engine, EngineProcess
from orchestrator.serve.looking import engine_process
from orchestrator.serve.waiting import EXEC_MARGIN_S, WINDOW_S, log_evidence
from orchestrator.serve.words import in_the_way, launcher_words

Ask = Callable[[str], None]
"""Tells the user what to do."""
OnWait = Callable[[float], None]

KILL_WAIT_S = 15.0
"""How long the host waits for what it killed."""


def start(
    remote: Remote,
    engine: Engine,
    *,
    deployed_digest: str | None,
    env: Mapping[str, str] | None = None,
    ask: Ask | None = None,
    on_wait: OnWait | None = None,
) -> EngineProcess:
    """Starts the engine detached from the connection, or has it started; does not wait until it is ready.

    A command is started in a session of its own in three round trips: the claim, the start, the record; the log of an
    earlier start is truncated. Any other launcher ends what it runs, starts it again and names the new leader.

    Args:
        deployed_digest: what is deployed now; written down for whoever finds the engine later.
        env: added to the engine's own, for this start only, where orch runs its command.
        ask: tells the user to restart the engine, where the inventory has no restart_command.
        on_wait: called after each window with the seconds waited so far, while a started engine has no leader yet.

    Raises:
        PortTakenError: something listens on the engine's port, or an earlier start of it still lives.
        RemoteCommandError: its program could not be started at all.
        EngineError: the launcher refused, or nobody is there to restart it. EngineDiedError: it was started and ended.
        NotReadyError: nothing new had been started within ``ready_timeout_s``.
    """
    state_dir = engine_state_dir(remote.scratch_dir(), engine)
    doing = f"start engine {engine.name}"
    if engine.launcher.kind != "command":
        return _have_started(remote, engine, start_order(engine, state_dir, deployed_digest, env or {}), ask, on_wait)
    record = _record(engine, state_dir, deployed_digest)
    log_path = record["log_path"]
    claim = {"step": "claim", "state_dir": state_dir, "port": engine_port(engine), "record": record}
    answer = run_program(remote, engine, "start", claim, doing=doing)
    if answer["outcome"] != "claimed":
        raise in_the_way(remote, engine, answer)
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
    return engine_process(remote, {**record, **written})


def _record(engine: Engine, state_dir: str, deployed_digest: str | None) -> dict[str, Any]:
    """What is known before the start. The mark names the engine, then this start of it."""
    return {
        "engine": engine.name,
        "argv": list(engine.command),
        "log_path": engine.log or (f"{state_dir}/engine.log" if engine.launcher.kind == "command" else None),
        "deployed_digest": deployed_digest,
        "mark": f"{state_dir}#{secrets.token_hex(8)}",
    }


def start_order(engine: Engine, state_dir: str, deployed_digest: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    """What ``host/start.py`` needs to have an engine started, with or without a controller."""
    return {
        "step": "launch",
        "state_dir": state_dir,
        "port": engine_port(engine),
        "record": _record(engine, state_dir, deployed_digest),
        "cwd": engine.cwd,
        "env": {**engine.env, **env} if engine.launcher.runs_command else {},
        "signal": engine.stop_signal,
        "grace_s": engine.stop_grace_s,
        "window_s": 0.0,
    }


def require_restartable(engine: Engine, *, is_attended: bool) -> None:
    """Makes sure that the engine can be started again at all, before anything is pushed.

    Args:
        is_attended: somebody sits at a terminal.

    Raises:
        EngineError: only a user could do it, and nobody is there.
    """
    if engine.launcher.kind == "manual" and not engine.launcher.restart_command and not is_attended:
        raise EngineError(
            f"engine {engine.name} is restarted by hand, and there is no terminal to ask at",
            next_step=f"set engines.{engine.name}.launcher.restart_command in inventory.yaml, or run it at a terminal",
        )


def _have_started(
    remote: Remote, engine: Engine, order: dict[str, Any], ask: Ask | None, on_wait: OnWait | None
) -> EngineProcess:
    """Has the launcher end what it runs and start it, and waits until the new leader is known."""
    require_restartable(engine, is_attended=ask is not None)
    doing = f"start engine {engine.name}"
    timeout_s = 2 * (engine.launcher.timeout_s + engine.stop_grace_s) + KILL_WAIT_S + EXEC_MARGIN_S
    began_s = time.monotonic()
    answer = run_program(remote, engine, "start", order, doing=doing, timeout_s=timeout_s)
    if answer["outcome"] == "starting" and ask is not None and not engine.launcher.restart_command:
        ask(f"restart engine {engine.name} on {remote.host.name} now: what listens on port {order['port']} is awaited")
        began_s = time.monotonic()
    while answer["outcome"] == "starting" and time.monotonic() - began_s < engine.ready_timeout_s:
        if on_wait:
            on_wait(time.monotonic() - began_s)
        looking = {**order, "step": "find", "window_s": WINDOW_S}
        answer = run_program(remote, engine, "start", looking, doing=doing, timeout_s=timeout_s)
    if answer["outcome"] == "started":
        return engine_process(remote, answer["record"])
    raise _no_start(remote, engine, answer)


def _no_start(remote: Remote, engine: Engine, answer: Mapping[str, Any]) -> Exception:
    """Why a launcher has not started the engine."""
    where = f"{remote.host.name}: engine {engine.name}"
    if answer["outcome"] == "starting":
        awaited = "led it" if engine.launcher.can_be_stopped else f"listened on port {engine_port(engine)}"
        return NotReadyError(
            f"{where}: {launcher_words(engine)} was asked for a start, and within {engine.ready_timeout_s:g} s no new "
            f"process {awaited}",
            next_step="look at it on the host; if it only needs longer, raise ready_timeout_s",
        )
    if answer["outcome"] in ("failed", "dead"):
        kind = EngineDiedError if answer["outcome"] == "dead" else EngineError
        return kind(
            f"{where} was not started: {answer['reason']}",
            next_step=f"see launcher: of engine {engine.name} in inventory.yaml",
            evidence=log_evidence(mask_lines(answer["log"], engine.env)),
        )
    return in_the_way(remote, engine, answer)
