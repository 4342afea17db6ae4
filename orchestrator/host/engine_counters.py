"""Reads what the engine counts about itself: those lines of its Prometheus text that are asked for."""

from __future__ import annotations

from typing import Any, Dict

from . import http_get

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 23


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the lines whose metric is named in ``names``; None where the engine does not answer 200."""
    status, body = http_get.get(request["url"], ANSWER_TIMEOUT_S, MAX_ANSWER_BYTES)
    if status != 200:
        return {"lines": None}
    lines = body.decode("utf-8", "replace").splitlines()
    return {"lines": [line for line in lines if line.partition("{")[0].partition(" ")[0] in request["names"]]}
