"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    """Returns as soon as the condition holds; fails the test when it does not within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {timeout_s:g} s"
        time.sleep(0.01)
