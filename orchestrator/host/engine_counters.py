"""Reads what the engine counts about itself: those lines of its Prometheus text that are asked for."""

from __future__ import annotations

from typing import Any, Dict

from . import engine_answers, http_get

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 23


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers ``lines``, those whose metric is named in ``names``; None where the engine does not answer 200.

    Then ``told`` has what it says elsewhere, asked as ``asked`` says.
    """
    status, body = http_get.get(request["url"], ANSWER_TIMEOUT_S, MAX_ANSWER_BYTES)
    if status != 200:
        return {"lines": None, "told": engine_answers.read(request["asked"])}
    lines = body.decode("utf-8", "replace").splitlines()
    wanted = [line for line in lines if line.partition("{")[0].partition(" ")[0] in request["names"]]
    return {"lines": wanted, "told": {}}
