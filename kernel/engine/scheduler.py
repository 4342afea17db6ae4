"""Who runs in the next step. Continuous batching: sequences join and leave between steps.

Owns the waiting line, the running set and the pages; knows no torch and no HTTP. Used by the worker's thread alone.

One step:
    1. admit from the head of the line while the batch has room and the pages suffice. A sequence gets all pages of
       its prompt and its whole output at once, so a running sequence can never starve for pages and none is ever
       thrown out; the price is that fewer run than could. Strictly first come, first served.
    2. prefill: up to ``prefill_chunk`` prompt tokens, oldest first; a prompt that ends here yields its first token.
    3. decode: one token for every sequence whose prompt was complete before this step.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kernel.engine.metrics import EngineMetrics
from kernel.engine.pages import PageAllocator
from kernel.engine.vocabulary import EOS_TOKEN_ID


@dataclass(eq=False, kw_only=True)
class Sequence:
    """One request as the engine computes it.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: output tokens at most, at least one.
        ignore_eos: go on past the end-of-sequence token.
        pages: its pages, while it runs.
        places: place of each of its tokens in the pools (page × page_size + slot), while it runs.
        n_prefilled: prompt tokens whose KV is in the pools.
        output: tokens made so far.
    """

    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    pages: list[int] = field(default_factory=list)
    places: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    n_prefilled: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def is_prefilled(self) -> bool:
        """Whether the whole prompt is in the pools."""
        return self.n_prefilled == len(self.prompt)

    @property
    def n_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Prompt tokens ``begin`` … ``end`` − 1 of one sequence, to be computed now."""

    sequence: Sequence
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a step did for one sequence: a new token, its end, or both.

    Attributes:
        sequence: of which.
        token_id: None when it ended without a token to show (end-of-sequence).
        finish_reason: ``length``, ``stop``, or None while it goes on.
    """

    sequence: Sequence
    token_id: int | None
    finish_reason: str | None


class TokenSource(Protocol):
    """What the scheduler needs of the runner."""

    def prefill(self, chunks: list[Chunk]) -> list[int]:
        """Compute the chunks; the next token after each (meaningful where a prompt ends)."""

    def decode(self, sequences: list[Sequence]) -> list[int]:
        """The next token of each."""


class Scheduler:
    """Sequences in, tokens out, one step at a time."""

    def __init__(
        self,
        source: TokenSource,
        metrics: EngineMetrics,
        *,
        pages: PageAllocator,
        page_size: int,
        max_batch: int,
        prefill_chunk: int,
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._pages = pages
        self._page_size = page_size
        self._max_batch = max_batch
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._running and not self._waiting

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the line. It must fit the pool at all: the server has checked that."""
        self._waiting.append(sequence)
        self._publish()

    def cancel(self, sequence: Sequence) -> None:
        """Forget a sequence and free its pages; nothing happens if it has ended already."""
        if sequence in self._running:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._publish()

    def step(self) -> list[Progress]:
        """Admit, prefill, decode; what came of it."""
        self._admit()
        decoding = [sequence for sequence in self._running if sequence.is_prefilled]
        progress = self._prefill() + self._decode(decoding)
        self._publish()
        return progress

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            sequence = self._waiting[0]
            n_places = len(sequence.prompt) + sequence.max_tokens
            pages = self._pages.allocate(-(-n_places // self._page_size))
            if pages is None:
                return
            slots = np.arange(self._page_size, dtype=np.int32)
            sequence.pages = pages
            sequence.places = (np.asarray(pages, np.int32)[:, None] * self._page_size + slots).reshape(-1)
            self._running.append(self._waiting.popleft())

    def _prefill(self) -> list[Progress]:
        chunks, budget = [], self._prefill_chunk
        for sequence in self._running:
            if not sequence.is_prefilled and budget > 0:
                end = min(len(sequence.prompt), sequence.n_prefilled + budget)
                chunks.append(Chunk(sequence=sequence, begin=sequence.n_prefilled, end=end))
                budget -= end - sequence.n_prefilled
        if not chunks:
            return []
        started = time.perf_counter()
        tokens = self._source.prefill(chunks)
        self._metrics.prefill_step_seconds.observe(time.perf_counter() - started)
        self._metrics.prompt_tokens += sum(chunk.end - chunk.begin for chunk in chunks)
        for chunk in chunks:
            chunk.sequence.n_prefilled = chunk.end
        ended = [
            (chunk.sequence, token) for chunk, token in zip(chunks, tokens, strict=True) if chunk.sequence.is_prefilled
        ]
        return [self._take(sequence, token) for sequence, token in ended]

    def _decode(self, sequences: list[Sequence]) -> list[Progress]:
        if not sequences:
            return []
        started = time.perf_counter()
        tokens = self._source.decode(sequences)
        self._metrics.decode_step_seconds.observe(time.perf_counter() - started)
        self._metrics.decode_rows += len(sequences)
        return [self._take(sequence, token) for sequence, token in zip(sequences, tokens, strict=True)]

    def _take(self, sequence: Sequence, token: int) -> Progress:
        """Give a sequence its new token, and end it where it ends."""
        if token == EOS_TOKEN_ID and not sequence.ignore_eos:
            self._release(sequence)
            return Progress(sequence=sequence, token_id=None, finish_reason="stop")
        sequence.output.append(token)
        self._metrics.generation_tokens += 1
        finish_reason = None
        if len(sequence.output) == sequence.max_tokens:
            self._release(sequence)
            finish_reason = "length"
        return Progress(sequence=sequence, token_id=token, finish_reason=finish_reason)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pages.free(sequence.pages)
        sequence.pages = []

    def _publish(self) -> None:
        self._metrics.requests_running = len(self._running)
        self._metrics.requests_waiting = len(self._waiting)
        self._metrics.kv_pages_used = self._pages.n_used
