"""How long a command on a host takes, and what of it is the line and what the login's start files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.connection.base import Remote

N_TIMES = 5
ROUND_TRIPS_OF_A_FRESH_SHELL = 3
"""A channel, leave to send input, the answer."""


@dataclass(frozen=True, slots=True)
class LineTimes:
    """Medians over ``N_TIMES``.

    Attributes:
        held_s: a line through a shell that waits on an open channel and back; None where there is no line.
        fresh_s: ``true`` in a shell of its own, with everything that the login runs first.
    """

    held_s: float | None
    fresh_s: float

    @property
    def start_files_s(self) -> float | None:
        """What starting the login's shell adds to every exec, beyond the line; never below 0."""
        if self.held_s is None:
            return None
        return max(0.0, self.fresh_s - ROUND_TRIPS_OF_A_FRESH_SHELL * self.held_s)


def time_line(remote: Remote) -> LineTimes:
    """Times an open host; runs ``true`` there and nothing else.

    Raises:
        LineLostError, RemoteTimeoutError: the line died meanwhile.
    """
    if remote.host.transport == "local":
        return LineTimes(None, _median_s(lambda: remote.run("true")))
    from orchestrator.connection.ssh import SshRemote

    assert isinstance(remote, SshRemote)
    held_s = statistics.median(remote.echo_times_s(N_TIMES))
    return LineTimes(held_s, _median_s(lambda: remote.run_fresh("true")))


def _median_s(act: Callable[[], object]) -> float:
    times_s = []
    for _ in range(N_TIMES):
        began_s = time.perf_counter()
        act()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)
