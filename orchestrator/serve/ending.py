"""Ends an engine: for a controller, and for the watcher on the host that has none."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.connection import Remote
from orchestrator.errors import EngineError
from orchestrator.host import BOOTSTRAP, bundle, engine_state_dir, launcher_settings, run_program
from orchestrator.records import Engine
from orchestrator.serve.starting import KILL_WAIT_S, start_order
from orchestrator.serve.waiting import EXEC_MARGIN_S
from orchestrator.serve.words import launcher_words, process_line


def stop(remote: Remote, engine: Engine, *, told: Callable[[str], None] | None = None) -> bool:
    """Stops every process of the engine that orch started, and makes sure by identity that each is gone.

    ``stop_signal`` to each, KILL after ``stop_grace_s``. Processes are found by session, group, ancestry and the mark
    in their environment, so workers that made their own session, or that a dead leader left behind, end too. A pid
    that belongs to somebody else by now is never signalled. Safe to call again, and when nothing runs.

    A unit or a container is ended by what keeps it. An engine that only its user can start is left running. Shared
    memory that the engine left behind is removed where it is provably its own.

    Args:
        told: gets a line about shared memory that was removed, and one about what was left.

    Returns:
        Whether something was stopped.

    Raises:
        EngineError: something survived KILL, or its manager refused; the evidence names each process, or says why.
    """
    request = {
        "state_dir": engine_state_dir(remote.scratch_dir(), engine),
        "signal": engine.stop_signal,
        "grace_s": engine.stop_grace_s,
    }
    timeout_s = engine.launcher.timeout_s + 2 * engine.stop_grace_s + KILL_WAIT_S + EXEC_MARGIN_S
    answer = run_program(remote, engine, "stop", request, doing=f"stop engine {engine.name}", timeout_s=timeout_s)
    if "reason" in answer:
        raise EngineError(
            f"{remote.host.name}: engine {engine.name} was not stopped: {answer['reason']}",
            next_step=f"stop {launcher_words(engine)} by hand; see launcher: in inventory.yaml",
            evidence=answer["log"],
        )
    if answer["survivors"]:
        raise EngineError(
            f"{remote.host.name}: {len(answer['survivors'])} process(es) of engine {engine.name} survived KILL",
            next_step="look at them on the host (state D waits for a driver or a disk)",
            evidence=[process_line(one) for one in answer["survivors"]],
        )
    for line in _memory_lines(answer.get("shared_memory") or {}):
        if told:
            told(line)
    return bool(answer["stopped"])


def _memory_lines(left_behind: Mapping[str, Any]) -> Iterator[str]:
    """What became of the shared memory that an engine left behind."""
    removed, left = left_behind.get("removed", ()), left_behind.get("left", ())
    if removed:
        n_bytes = sum(one["size_bytes"] for one in removed)
        names = ", ".join(one["name"] for one in removed)
        size = f"{n_bytes / 1024:,.0f} KiB" if n_bytes < 1 << 20 else f"{n_bytes / (1 << 20):,.0f} MiB"
        yield f"removed {size} of shared memory that the engine left in /dev/shm: {names}"
    if left:
        names = ", ".join(f"{one['name']} ({one['why']})" for one in left)
        yield f"left in /dev/shm, not provably the engine's own: {names}"


def restore_script(engine: Engine, scratch_dir: str) -> str:
    """POSIX sh for the watcher on the host, to run after it restored the file: the engine must forget it too.

    Stops the engine that orch started, by the same identity checks as ``stop``, and starts it again with
    ``restart_after_restore``, or where it ran before orch came. It needs nobody: no connection, no argument, nothing
    beside it on the host but a Python. Prints one line of JSON with what it did; exits with 0 only when nothing of the
    stopped engine is left.

    The text holds ``engine.env``: keep the file private (mode 600).
    """
    state_dir = engine_state_dir(scratch_dir, engine)
    is_command = engine.launcher.kind == "command"
    request = {
        **start_order(engine, state_dir, None, {}),
        "launcher": launcher_settings(engine),
        "restart": engine.restart_after_restore,
        "cwd": (engine.cwd or scratch_dir) if is_command else engine.cwd,
        "window_s": 0.0 if is_command else engine.ready_timeout_s,
    }
    run = "exec sudo -n" if engine.launcher.sudo else "exec"
    return "\n".join(
        [
            "#!/bin/sh",
            "# Ends (and may start again) the engine whose file was restored. Written by orch; safe to run again.",
            f"python={shlex.quote(engine.python)}",
            'command -v "$python" >/dev/null 2>&1 || python=python3',
            f"{run} \"$python\" -I -S -c {shlex.quote(BOOTSTRAP)} <<'ORCH_REQUEST'",
            bundle("restore", request),
            "ORCH_REQUEST",
            "",
        ]
    )
