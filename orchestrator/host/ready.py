"""Waits for an engine on its own host for one window of time, so that the line carries one answer a window.

A 200 counts only when every listener on the port is a process of the engine: a stranger's 200 says nothing.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple

from . import engine_state, http_get, process_table, shared_memory

POLL_S = 0.02
MAX_ANSWER_BYTES = 300
N_LOG_LINES = 400


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers ``outcome``: ready, waiting (the window ended), dead, or stranger, with what proves it."""
    record = engine_state.read_record(request["state_dir"])
    if record is None or record["pid"] != request["pid"]:
        return {"outcome": "dead", "log": engine_state.log_tail(request["log_path"], N_LOG_LINES)}
    outcome, answer = _wait(request, record)
    if outcome == "waiting":  # one look a window, for an engine that dies while it starts
        alive = engine_state.members(request["state_dir"], record, process_table.processes())
        shared_memory.note(request["state_dir"], alive)
    found: Dict[str, Any] = {"outcome": outcome, "answer": answer, "now_s": time.time()}
    if outcome != "ready":  # a stranger explains more than our own death, which it may have caused
        strangers = _strangers(request, record)
        if strangers:
            found.update(outcome="stranger")
        found["listeners"] = strangers
        found["log"] = engine_state.log_tail(request["log_path"], N_LOG_LINES)
    return found


def _wait(request: Dict[str, Any], record: Dict[str, Any]) -> Tuple[str, Optional[str]]:
    deadline_s = time.monotonic() + request["window_s"]
    answer = None
    while True:
        alive = process_table.process(record["pid"])
        if alive is None or alive.start != record["start"]:
            return "dead", answer
        status, answer = _ask(request)
        if status == 200:
            listeners = _listeners(request, record)
            is_ours = all(listener["is_ours"] for listener in listeners)
            # nobody listens here, and yet something answered: another machine, or a forwarded port
            is_visible = bool(listeners) or not process_table.can_see_listeners()
            return ("ready" if is_ours and is_visible else "stranger"), answer
        if time.monotonic() >= deadline_s:
            return "waiting", answer
        time.sleep(POLL_S)


def _listeners(request: Dict[str, Any], record: Dict[str, Any]) -> List[Dict[str, Any]]:
    alive = engine_state.members(request["state_dir"], record, process_table.processes())
    place = record.get("listens") or {"port": request["port"], "pid": None}
    own = [one.pid for one in alive]
    return engine_state.describe_listeners(place["port"], ours=own, network_of=place["pid"])


def _strangers(request: Dict[str, Any], record: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [listener for listener in _listeners(request, record) if not listener["is_ours"]]


def _ask(request: Dict[str, Any]) -> Tuple[Optional[int], str]:
    """The status, and what to tell people about the answer."""
    status, body = http_get.get(request["url"], request["answer_timeout_s"], MAX_ANSWER_BYTES)
    text = body.decode("utf-8", "backslashreplace").split()
    return status, " ".join(text if status is None else [str(status), *text])
