"""The scheduler and the pages, with a source of tokens that computes nothing: who runs when, and what is freed."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from kernel.engine.metrics import EngineMetrics
from kernel.engine.pages import PageAllocator
from kernel.engine.scheduler import Chunk, Scheduler, Sequence
from kernel.engine.vocabulary import EOS_TOKEN_ID, text_of, tokens_of

pytestmark = pytest.mark.kernel


class CountingSource:
    """Token 100 + how many the sequence has; end-of-sequence where told. Remembers every call."""

    def __init__(self, eos_after: int | None = None) -> None:
        self.eos_after = eos_after
        self.prefills: list[list[tuple[int, int]]] = []
        self.decodes: list[int] = []

    def prefill(self, chunks: list[Chunk]) -> list[int]:
        self.prefills.append([(chunk.begin, chunk.end) for chunk in chunks])
        return [self._token(chunk.sequence) for chunk in chunks]

    def decode(self, sequences: list[Sequence]) -> list[int]:
        self.decodes.append(len(sequences))
        return [self._token(sequence) for sequence in sequences]

    def _token(self, sequence: Sequence) -> int:
        n_output = len(sequence.output)
        return EOS_TOKEN_ID if n_output == self.eos_after else 100 + n_output


def make_scheduler(source: CountingSource, *, n_pages: int = 9, max_batch: int = 4, prefill_chunk: int = 64):
    """A scheduler of page size 4, its pages and its metrics."""
    pages = PageAllocator(n_pages)
    metrics = EngineMetrics(kv_pages_total=pages.n_total)
    scheduler = Scheduler(source, metrics, pages=pages, page_size=4, max_batch=max_batch, prefill_chunk=prefill_chunk)
    return scheduler, pages, metrics


def sequence_of(n_prompt: int, max_tokens: int, *, ignore_eos: bool = True) -> Sequence:
    """A request of some size."""
    return Sequence(prompt=[1] * n_prompt, max_tokens=max_tokens, ignore_eos=ignore_eos)


def run_to_end(scheduler: Scheduler) -> list:
    """All progress until nothing is left."""
    progress = []
    for _ in range(1000):
        if scheduler.is_idle:
            return progress
        progress += scheduler.step()
    raise AssertionError("the scheduler never became idle")


def test_exactly_max_tokens() -> None:
    """A request yields as many tokens as it asked for, the last of them with the reason ``length``."""
    scheduler, pages, metrics = make_scheduler(CountingSource())
    scheduler.add(sequence_of(5, 3))
    progress = run_to_end(scheduler)
    assert [(step.token_id, step.finish_reason) for step in progress] == [(100, None), (101, None), (102, "length")]
    assert (metrics.prompt_tokens, metrics.generation_tokens, pages.n_used) == (5, 3, 0)


def test_end_of_sequence_stops_unless_ignored() -> None:
    """The end-of-sequence token ends a request and is not counted; with ignore_eos it is a token like others."""
    scheduler, pages, _ = make_scheduler(CountingSource(eos_after=1))
    scheduler.add(sequence_of(2, 5, ignore_eos=False))
    progress = run_to_end(scheduler)
    assert [(step.token_id, step.finish_reason) for step in progress] == [(100, None), (None, "stop")]
    assert pages.n_used == 0
    scheduler.add(sequence_of(2, 5))
    assert [step.token_id for step in run_to_end(scheduler)] == [100, EOS_TOKEN_ID, 102, 103, 104]


def test_requests_wait_for_pages_in_order() -> None:
    """What does not fit waits, in order, also when a smaller one behind it would fit; all get done."""
    scheduler, pages, metrics = make_scheduler(CountingSource(), n_pages=9)
    large, larger, small = sequence_of(12, 8), sequence_of(20, 8), sequence_of(1, 1)
    for sequence in (large, larger, small):
        scheduler.add(sequence)
    scheduler.step()
    assert (pages.n_used, metrics.requests_running, metrics.requests_waiting) == (5, 1, 2)
    run_to_end(scheduler)
    assert [len(sequence.output) for sequence in (large, larger, small)] == [8, 8, 1]
    assert pages.n_used == 0


def test_batch_limit() -> None:
    """Never more rows in a decode step than max_batch."""
    source = CountingSource()
    scheduler, _, _ = make_scheduler(source, n_pages=100, max_batch=3)
    for _ in range(7):
        scheduler.add(sequence_of(2, 4))
    run_to_end(scheduler)
    assert max(source.decodes) == 3


def test_sequences_join_between_steps() -> None:
    """A request that arrives while another decodes joins the very next steps."""
    source = CountingSource()
    scheduler, _, _ = make_scheduler(source)
    scheduler.add(sequence_of(2, 6))
    scheduler.step()
    scheduler.step()
    scheduler.add(sequence_of(2, 2))
    run_to_end(scheduler)
    assert source.decodes == [1, 1, 2, 1, 1]


def test_long_prompts_are_chunked() -> None:
    """A prompt over the budget is computed in pieces, while others decode; the budget is shared, oldest first."""
    source = CountingSource()
    scheduler, _, _ = make_scheduler(source, prefill_chunk=8)
    scheduler.add(sequence_of(18, 1))
    scheduler.add(sequence_of(3, 1))
    run_to_end(scheduler)
    assert source.prefills == [[(0, 8)], [(8, 16)], [(16, 18), (0, 3)]]


def test_cancel_frees_pages() -> None:
    """A cancelled request, running or waiting, leaves no page and no place behind; twice is harmless."""
    scheduler, pages, metrics = make_scheduler(CountingSource())
    running, waiting = sequence_of(20, 8), sequence_of(20, 8)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.step()
    scheduler.cancel(waiting)
    scheduler.cancel(running)
    scheduler.cancel(running)
    assert scheduler.is_idle
    assert (pages.n_used, metrics.requests_running, metrics.requests_waiting) == (0, 0, 0)


def test_places_are_the_pages_slots() -> None:
    """A sequence's places are its own: no two running sequences share one, none lies in the padding page."""
    scheduler, _, _ = make_scheduler(CountingSource())
    sequences = [sequence_of(6, 3), sequence_of(9, 2)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.step()
    places = [place for sequence in sequences for place in sequence.places.tolist()]
    assert len(places) == len(set(places)) == 4 * (3 + 3)
    assert min(places) >= 4


def test_pages_freed_twice_are_refused() -> None:
    """Freeing a page twice would give it to two sequences."""
    pages = PageAllocator(5)
    taken = pages.allocate(2)
    assert taken is not None
    pages.free(taken)
    with pytest.raises(ValueError, match="freed twice"):
        pages.free(taken)
    assert pages.allocate(5) is None


def test_every_token_has_visible_text() -> None:
    """No token id is shown as nothing or as white space, and text becomes its bytes."""
    assert all(text_of(token).strip() or token == 32 for token in range(4096))
    assert tokens_of("né") == [110, 195, 169]
