"""Forked children, one for each job, and the promise that none outlives this program.

Does not know what a job is: it has an ``id``, and a function turns it into an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

from .failures import reason_in

Answer = dict[str, Any]
Work = Callable[[Any, Path], Answer]

_PR_SET_PDEATHSIG = 1
_SHOWN_LOG_CHARACTERS = 8192
_LARGEST_FILE_BYTES = 1 << 28


class Stopped(Exception):
    """A signal asked this program to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class ReaderGone(Exception):
    """Nobody reads the answers any more."""


class StopSignals:
    """INT, TERM and HUP as a descriptor that becomes readable, so that nothing is interrupted half-way.

    A handler that raised could do so between a fork and the note that there is a child.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> StopSignals:
        """Start listening."""
        self.readable, self._writable = socket.socketpair()
        self.readable.setblocking(False)
        self._writable.setblocking(False)
        signal.set_wakeup_fd(self._writable.fileno())
        for number in self.NUMBERS:
            signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is given back: the program ends after this."""

    def raise_if_any(self) -> None:
        """Raises: Stopped: when a signal has come."""
        with contextlib.suppress(BlockingIOError):
            for number in self.readable.recv(64):
                if number in self.NUMBERS:
                    raise Stopped(number)

    @classmethod
    def forget(cls) -> None:
        """In a child: signals end it as they end any program."""
        signal.set_wakeup_fd(-1)
        for number in cls.NUMBERS:
            signal.signal(number, signal.SIG_DFL)


class Pool:
    """Runs jobs in children, at most ``n_workers`` at once.

    Args:
        work: is called in the child with the job and the path of the child's log, where everything lands that is
            printed there, by the compiler's C++ too. Its answer must survive JSON.
        deadline_s: a child that runs longer is killed, with all that it started.
        folder: for the logs. reader: descriptor of the answers; when its other end closes, ``run`` raises.
    """

    def __init__(
        self, work: Work, *, n_workers: int, deadline_s: float, folder: Path, signals: StopSignals, reader: int
    ) -> None:
        self._work = work
        self._n_workers = max(1, n_workers)
        self._deadline_s = deadline_s
        self._folder = folder
        self._signals = signals
        self._reader = reader
        self._children: dict[int, Child] = {}

    def run(
        self, jobs: Iterable[dict[str, Any]], is_wanted: Callable[[dict[str, Any]], bool]
    ) -> Generator[tuple[dict[str, Any], Answer], None, None]:
        """Jobs with their answers as they come. No child is left when this ends, however it ends.

        Args:
            is_wanted: asked again after every answer; a job that is not wanted any more is not started, or ended.

        Raises:
            Stopped: a signal has come.
            ReaderGone: nobody reads the answers any more.
        """
        waiting = deque(jobs)
        try:
            while waiting or self._children:
                while waiting and len(self._children) < self._n_workers:
                    job = waiting.popleft()
                    if is_wanted(job):
                        self._start(job)
                for child in self._wait() if self._children else ():
                    del self._children[child.answer_fd]
                    yield child.job, child.end()
                for child in [one for one in self._children.values() if not is_wanted(one.job)]:
                    del self._children[child.answer_fd]
                    child.kill()
        finally:
            for child in self._children.values():
                child.kill()

    def _start(self, job: dict[str, Any]) -> None:
        child = Child(job, self._work, self._folder / f"job-{job['id']}.log", self._deadline_s)
        self._children[child.answer_fd] = child

    def _wait(self) -> list[Child]:
        """Children that are through: ended, or over their deadline."""
        poll = select.poll()
        poll.register(self._signals.readable, select.POLLIN)
        poll.register(self._reader, 0)  # errors and hang-ups are always told
        for answer_fd in self._children:
            poll.register(answer_fd, select.POLLIN)
        next_deadline = min(child.deadline for child in self._children.values())
        ready = dict(poll.poll(max(0.0, next_deadline - time.monotonic()) * 1000 + 1))
        self._signals.raise_if_any()
        if self._reader in ready:
            raise ReaderGone
        ended = [child for answer_fd, child in self._children.items() if answer_fd in ready and child.read()]
        return ended + [child for child in self._children.values() if child.is_late() and child not in ended]


class Child:
    """One job in a process and a process group of its own, begun at once."""

    def __init__(self, job: dict[str, Any], work: Work, log: Path, deadline_s: float) -> None:
        self.job = job
        self.deadline_s = deadline_s
        self.deadline = time.monotonic() + deadline_s
        self._log = log
        self._text = b""
        self.answer_fd, write_fd = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _be_child(job, work, log, write_fd)
        os.close(write_fd)
        with contextlib.suppress(OSError):  # the child does it too: whoever is first
            os.setpgid(self._pid, self._pid)

    def read(self) -> bool:
        """Take what has come; whether that was the end."""
        piece = os.read(self.answer_fd, 1 << 16)
        self._text += piece
        return not piece

    def is_late(self) -> bool:
        """Whether it is over its deadline."""
        return time.monotonic() > self.deadline

    def kill(self) -> int:
        """End it and all that it started; its wait status."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        os.close(self.answer_fd)
        return os.waitpid(self._pid, 0)[1]

    def end(self) -> Answer:
        """Its answer, or why there is none."""
        was_late = self.is_late()
        status = self.kill()
        self._show_log()
        try:
            return dict(json.loads(self._text))
        except ValueError:
            if was_late:
                return {"error": f"did not end within {self.deadline_s:g} s, killed", "error_kind": "deadline"}
            return {"error": _how_it_died(status, reason_in(self._log)), "error_kind": "crash"}

    def _show_log(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(self._log.read_text(errors="replace")[-_SHOWN_LOG_CHARACTERS:])
            sys.stderr.flush()


def _how_it_died(status: int, reason: str | None) -> str:
    if os.WIFSIGNALED(status):
        how = f"crashed with {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        how = f"ended with exit code {os.WEXITSTATUS(status)} and no answer"
    return how if reason is None else f"{how}: {reason}"


def _be_child(job: dict[str, Any], work: Work, log: Path, write_fd: int) -> None:
    """Everything the child does; never returns."""
    try:
        os.setpgid(0, 0)
        # A kill of this program that it cannot see coming must not leave an endless loop behind.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))  # an endless loop prints
        StopSignals.forget()
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        text = json.dumps(work(job, log)).encode()
        sys.stdout.flush()
        while text:
            text = text[os.write(write_fd, text) :]
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
