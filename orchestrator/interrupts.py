"""Ctrl-C, a closed terminal and a polite kill, all treated alike: stop, put everything back, say so.

``raise_on_signals`` turns SIGTERM and SIGHUP into KeyboardInterrupt, so that they take the same way out as Ctrl-C.
``shielded`` is put round the putting-back itself: a second Ctrl-C must not leave a host half restored.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_Handler = Callable[[int, FrameType | None], Any] | int | None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def raise_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does. SIGHUP stays ignored under nohup."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise_keyboard_interrupt)


def _raise_keyboard_interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def shielded(doing: str) -> Iterator[None]:
    """Holds signals off while ``doing`` ("putting the host back") is under way, and says so when one comes.

    The signal is not swallowed: it is raised at the end.
    """
    if not _is_main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        sys.stderr.write(f"orch: {doing}; this is not interrupted, one moment …\n")

    before: dict[int, _Handler] = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    if came:
        raise KeyboardInterrupt(signal.Signals(came[0]).name)
