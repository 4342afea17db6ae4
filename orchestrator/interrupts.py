"""Ctrl-C, a closed terminal and a polite kill, all treated alike: stop, put everything back, say so.

``raise_on_signals`` turns SIGTERM and SIGHUP into KeyboardInterrupt, so that they take the same way out as Ctrl-C.
``shielded`` is put round the putting-back itself: a second Ctrl-C must not leave a host half restored.
``interruptible`` is put round calls of libraries that hold locks: KeyboardInterrupt can come between any two lines of
theirs, and a lock that stays held makes the putting-back hang.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_Handler = Callable[[int, FrameType | None], Any] | int | None
_T = TypeVar("_T")

_shields: list[tuple[str, list[int]]] = []
"""The ``shielded`` blocks that the main thread is in, innermost last: what each does, and the signals that came."""

_unseen: str | None = None
"""A signal whose KeyboardInterrupt may have got lost: Python drops one that is raised inside a callback of its own."""

_question: Callable[[], bool] | None = None
"""Asked at the first Ctrl-C instead of raising it; see ``asking``."""

LOOK_EVERY_S = 0.2


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def raise_on_signals() -> None:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does. SIGHUP stays ignored under nohup."""
    global _unseen
    _unseen = None
    _take_over()


def _take_over() -> dict[int, _Handler]:
    """Installs the one handler for every signal that is not ignored; the handlers that it replaced."""
    replaced = [n for n in _SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, _on_signal)]
    return {number: signal.signal(number, _on_signal) for number in replaced}


def _on_signal(number: int, _: FrameType | None) -> None:
    global _unseen
    if _shields:
        doing, came = _shields[-1]
        came.append(number)
        sys.stderr.write(f"orch: {doing}; this is not interrupted, one moment …\n")
        return
    if number == signal.SIGINT and _goes_on():
        return
    _unseen = signal.Signals(number).name
    raise KeyboardInterrupt(_unseen)


def _goes_on() -> bool:
    """Asks, at the first Ctrl-C inside ``asking`` only, whether to go on."""
    global _question
    question, _question = _question, None
    return question is not None and question()


@contextlib.contextmanager
def asking(question: Callable[[], bool]) -> Iterator[None]:
    """At the first Ctrl-C asks instead of raising; later ones raise, also one that comes while it asks.

    Args:
        question: whether to go on. It runs inside the signal's handler, between two steps of whatever is under way.
    """
    global _question
    _question = question
    try:
        yield
    finally:
        _question = None


@contextlib.contextmanager
def shielded(doing: str) -> Iterator[None]:
    """Holds signals off while ``doing`` ("putting the host back") is under way, and says so when one comes.

    The signal is not swallowed: it is raised at the end.
    """
    if not _is_main_thread():
        yield
        return
    global _unseen
    came: list[int] = []
    _shields.append((doing, came))  # first: from here on nothing is raised
    _unseen = None  # whoever puts something back has seen it
    replaced = _take_over()  # nothing where the program's own handler is in place
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        _shields.pop()
    if came:
        raise KeyboardInterrupt(signal.Signals(came[0]).name)


def interruptible(work: Callable[[], _T], abandon: Callable[[], None]) -> _T:
    """What ``work`` gives or raises; a signal breaks only the waiting for it, never ``work`` itself, and is never lost.

    It runs in a thread of its own. In another thread than the main one, or inside ``shielded``, no signal can break
    anything, and it is simply called.

    Args:
        abandon: called, in one more thread, when KeyboardInterrupt ended the waiting: should make ``work`` end soon.
            It may find that ``work`` has just ended.
    """
    if _shields or not _is_main_thread():
        return work()
    outcome: list[tuple[_T | None, BaseException | None]] = []
    is_over = _thread.allocate_lock()  # of C: a signal that breaks the waiting leaves it whole
    is_over.acquire()

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as exc:
            outcome.append((None, exc))
        finally:
            is_over.release()

    _thread.start_new_thread(run, ())
    global _unseen
    try:
        while not is_over.acquire(timeout=LOOK_EVERY_S):
            if _unseen is not None:
                raise KeyboardInterrupt(_unseen)
    except KeyboardInterrupt:
        _unseen = None
        _thread.start_new_thread(abandon, ())
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error it is what work gave
