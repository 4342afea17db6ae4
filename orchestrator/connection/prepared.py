"""``PreparedShells``: remote shells that already wait for their script when ``run`` is called.

The command line of every ``run`` is the same, so it can be sent before anybody has asked. A prepared shell saves two
round trips (the channel, then sshd's leave to send input, which comes only after the exec) and the time that the
login's start files take. An unused one ends with the connection, having done nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import paramiko

N_PREPARED = 2
"""One is taken while the next is still on its way, so that runs that follow each other find one ready."""

OPEN_TIMEOUT_S = 30.0


class PreparedShells:
    """A few channels on which the bootstrap line already runs, replaced in the background as they are taken.

    Args:
        open_shell: opens a channel within so many seconds and starts the bootstrap on it.
        name: of the background thread.
    """

    def __init__(self, open_shell: Callable[[float], paramiko.Channel], name: str) -> None:
        self._open_shell = open_shell
        self._ready: deque[paramiko.Channel] = deque()
        self._changed = threading.Condition()
        self._n_wanted = 1  # a program that runs one script and leaves should not start three shells
        self._is_closed = False
        threading.Thread(target=self._keep_ready, name=name, daemon=True).start()

    def take(self) -> paramiko.Channel | None:
        """A waiting shell, now the caller's; None when none is ready."""
        with self._changed:
            self._n_wanted = N_PREPARED
            self._changed.notify()
            while self._ready:
                channel = self._ready.popleft()
                if not (channel.closed or channel.eof_received):  # a login's TMOUT ends an idle shell
                    return channel
                channel.close()
        return None

    def close(self) -> None:
        """Prepares no more. The channels end with their connection."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _keep_ready(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and len(self._ready) >= self._n_wanted:
                    self._changed.wait()
                if self._is_closed:
                    return
            try:
                channel = self._open_shell(OPEN_TIMEOUT_S)
            except (OSError, EOFError, paramiko.SSHException):
                # Refused (MaxSessions) or dead: a run that needs a channel finds out by itself and reports it.
                with self._changed:
                    if not self._is_closed:
                        self._changed.wait()
                continue
            with self._changed:
                self._ready.append(channel)
