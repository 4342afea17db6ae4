"""Asks a running engine single values about itself: out of a JSON answer, or from the labels of a metric.

Only the value that is asked for leaves the host: such answers may hold keys and passwords beside it. An engine that
does not answer, answers something else or has no such value makes it None.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Optional, Sequence, Union

from . import http_get

Value = Union[str, int, float, None]

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 23
MAX_TEXT = 300
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read(asked: Sequence[Dict[str, Any]]) -> Dict[str, Value]:
    """The values by ``name``; each ``url`` is asked once.

    Args:
        asked: ``name`` and ``url``, and either ``keys`` (from the outside of the JSON to the inside) or ``metric`` and
            ``label``.
    """
    bodies: Dict[str, Optional[bytes]] = {}
    found: Dict[str, Value] = {}
    for one in asked:
        url = one["url"]
        if url not in bodies:
            status, body = http_get.get(url, ANSWER_TIMEOUT_S, MAX_ANSWER_BYTES)
            bodies[url] = body if status == 200 else None
        answer = bodies[url]
        if answer is None:
            found[one["name"]] = None
        elif "label" in one:
            found[one["name"]] = _label(answer, one["metric"], one["label"])
        else:
            found[one["name"]] = _value(answer, one["keys"])
    return found


def _value(body: bytes, keys: Sequence[Union[str, int]]) -> Value:
    """The text or number at a place of a JSON document; a truth value is text."""
    try:
        value = json.loads(body.decode("utf-8"))
        for key in keys:
            value = value[key]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number and abs(value) < 1 << 62 else None


def _label(body: bytes, metric: str, name: str) -> Value:
    """The value of a label of the first series of a metric."""
    lines: List[str] = body.decode("utf-8", "replace").splitlines()
    series = next((line for line in lines if line.startswith(metric + "{")), "")
    return next((_text(value) for label, value in _LABEL.findall(series) if label == name), None)


def _text(value: str) -> Optional[str]:
    return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode("utf-8") or None
