"""Waits until an engine is ready, and reads what its log says when it is not."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from orchestrator.connection import Remote
from orchestrator.errors import EngineDiedError, NotReadyError
from orchestrator.host import engine_port, engine_state_dir, run_program
from orchestrator.host.masking import mask_lines
from orchestrator.records import Engine, EngineProcess
from orchestrator.serve.words import stranger

WINDOW_S = 2.0
ANSWER_TIMEOUT_S = 10.0
N_TAIL_LINES = 25
N_TRACEBACK_LINES = 60
EXEC_MARGIN_S = 30.0

_TAIL = """
# $1 how many lines; then the file, or the words of a command
n=$1
shift
if [ "$#" -gt 1 ]; then "$@" 2>&1 | tail -n "$n"
elif [ -f "$1" ]; then tail -c 262144 -- "$1" | tail -n "$n"
fi
"""


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
        timeout_s = WINDOW_S + ANSWER_TIMEOUT_S + EXEC_MARGIN_S
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
    look = f"read the whole log: {process.log_path or 'where the engine writes it'} on {remote.host.name}"
    if answer["outcome"] == "stranger":
        raise stranger(where, engine, answer["listeners"], evidence)
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


def log_tail(remote: Remote, process: EngineProcess, n: int = N_TAIL_LINES) -> tuple[str, ...]:
    """The last ``n`` lines of the engine's log, or of what the command tells that shows it; none when there is none."""
    words = shlex.split(process.log_path) or [""]
    words = words if len(words) > 1 and not process.log_path.startswith("/") else [process.log_path]
    done = remote.check(_TAIL, [str(n), *words], doing=f"read {process.log_path}")
    return tuple(done.text.splitlines())
