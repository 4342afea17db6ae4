"""The thread that loads the kernel, builds the model and steps it; the mailbox into it, and the way back out.

The server's event loop puts messages in and never waits; the thread posts what a step made back to the loop in one
call a step. Nothing else is shared, save the metrics, which only this thread writes.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from kernel.engine.metrics import EngineMetrics
from kernel.engine.options import EngineOptions
from kernel.engine.pages import PageAllocator
from kernel.engine.scheduler import Progress, Scheduler, Sequence


@dataclass(frozen=True, kw_only=True)
class Message:
    """One order to the thread: ``add`` or ``cancel`` a sequence, or ``stop``."""

    kind: str
    sequence: Sequence | None = None


class Worker:
    """Owns the thread. All callbacks run on the event loop.

    Args:
        options: of the engine.
        loop: where callbacks run.
        on_loaded: module name and digest, once the kernel is imported.
        on_ready: once everything has run once.
        on_progress: what one step made.
        on_failure: the thread ended on its own: the traceback's text. Nothing follows.
    """

    def __init__(
        self,
        options: EngineOptions,
        loop: asyncio.AbstractEventLoop,
        *,
        on_loaded: Callable[[str, str], None],
        on_ready: Callable[[], None],
        on_progress: Callable[[list[Progress]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._options = options
        self._loop = loop
        self._on_loaded, self._on_ready = on_loaded, on_ready
        self._on_progress, self._on_failure = on_progress, on_failure
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._pages = PageAllocator(options.n_pages)
        self.metrics = EngineMetrics(kv_pages_total=self._pages.n_total)
        # A daemon: a kernel that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._thread.start()

    def add(self, sequence: Sequence) -> None:
        """Compute this sequence; ``on_progress`` follows."""
        self._inbox.put(Message(kind="add", sequence=sequence))

    def cancel(self, sequence: Sequence) -> None:
        """Stop computing it and free its pages, before the next step; harmless if it has ended."""
        self._inbox.put(Message(kind="cancel", sequence=sequence))

    def stop(self) -> None:
        """End the thread after the step that runs now."""
        self._inbox.put(Message(kind="stop"))

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within ``timeout_s``."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve(self._build())
        except BaseException:  # the thread's end must be seen, whatever ended it: the server reports it and exits
            self._post(self._on_failure, traceback.format_exc())

    def _build(self) -> Scheduler:
        os.environ.setdefault("OMP_NUM_THREADS", str(self._options.threads))  # read when torch is imported
        from kernel.engine.loading import load_module

        loaded = load_module(self._options.kernel_module)
        self._post(self._on_loaded, self._options.kernel_module, loaded.digest)

        from kernel.engine.runner import Runner

        runner = Runner(self._options, loaded.module)
        runner.warm_up()
        self._post(self._on_ready)
        return Scheduler(
            runner,
            self.metrics,
            pages=self._pages,
            page_size=self._options.page_size,
            max_batch=self._options.max_batch,
            prefill_chunk=self._options.prefill_chunk,
        )

    def _serve(self, scheduler: Scheduler) -> None:
        while self._read_inbox(scheduler):
            progress = scheduler.step()
            if progress:
                self._post(self._on_progress, progress)

    def _read_inbox(self, scheduler: Scheduler) -> bool:
        """Obey all messages, waiting for one while there is nothing to do; False means stop."""
        while True:
            try:
                message = self._inbox.get(block=scheduler.is_idle)
            except queue.Empty:
                return True
            if message.kind == "stop" or message.sequence is None:
                return False
            if message.kind == "add":
                scheduler.add(message.sequence)
            else:
                scheduler.cancel(message.sequence)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: the process is ending and nobody listens
            return
