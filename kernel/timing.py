"""Inputs that no cache can hold, CUDA graphs of calls, and rounds over all that is compared: time of one call.

Owns how the kernel is timed; knows neither files nor tables.

How:
    1. A graph holds at least 16 calls, and as many as it takes to gather twice the L2 cache: each call has its own
       token lists in one of two pools, and no token is in two lists, so a replay reads every token from memory again.
    2. All kernels of a call count (slices, merge, padding inside, and the gaps between them); the time of a replay is
       between two CUDA events, divided by its calls.
    3. Graphs of all things compared are captured, warmed up, and replayed in turns, every other round backwards, so
       that drift hits all alike. Then all are captured anew: where a graph's memory lies moves its time (0.3 % on
       an H200), so a graph is a replicate and a replay is not.
    4. The time of a graph is the median of its replays; the result is the median of the graphs, its interval the one
       by order statistics (of 6 graphs: smallest to largest, 96.9 %).
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernel import kv_pool
from kernel.cases import Inputs, Pool
from kernel.peers import Call

MIN_CALLS = 16
L2_MULTIPLE = 2
N_POOLS = 2
N_GRAPHS = 6
N_REPLAYS = 20
N_WARM_REPLAYS, MOST_WARM_REPLAYS = 5, 1000
WARM_US = 50_000.0
LEVEL = 0.95
PAGES_AT_ONCE = 1024

Replay = Callable[[], float]
"""Runs a graph once; µs of one call in it."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Of a call.

    Attributes:
        n_heads, n_rows: queries.
        topks: slots of a row's list in each pool.
        page_size: tokens a page.
    """

    n_heads: int
    n_rows: int
    topks: tuple[int, ...]
    page_size: int = 64

    @property
    def n_tokens(self) -> int:
        """Of one row, in all pools."""
        return sum(self.topks)

    @property
    def gathered_bytes(self) -> int:
        """Of one call."""
        return self.n_rows * self.n_tokens * (kv_pool.TOKEN_BYTES + kv_pool.SCALE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median; ``coverage``: how often such an interval holds the true one (0.97)."""

    median: float
    low: float
    high: float
    coverage: float
    n: int


def n_calls_of(shape: Shape, l2_bytes: int) -> int:
    """Calls of a graph; a multiple of the number of pools, so that each pool has as many."""
    wanted = max(MIN_CALLS, math.ceil(L2_MULTIPLE * l2_bytes / shape.gathered_bytes))
    return math.ceil(wanted / N_POOLS) * N_POOLS


def make_calls(shape: Shape, n_calls: int, seed: int, device: torch.device | str) -> list[Inputs]:
    """Inputs of ``n_calls`` calls, in two pools by turns, over all of which each token is named once.

    The same seed gives the same tensors on the same kind of device with the same torch.
    """
    draw = torch.Generator(device).manual_seed(seed)
    q = torch.randn(shape.n_rows, 1, shape.n_heads, kv_pool.HEAD_DIM, generator=draw, device=device).to(torch.bfloat16)
    sink = torch.randn(shape.n_heads, generator=draw, device=device)
    lists = [_lists(shape, topk, n_calls, draw, device) for topk in shape.topks]
    return [Inputs(q_B1HD=q, pools=pools, attention_sink_H=sink) for pools in zip(*lists, strict=True)]


def _lists(shape: Shape, topk: int, n_calls: int, draw: torch.Generator, device: torch.device | str) -> list[Pool]:
    """One (pool, indices, page size, no lengths) a call."""
    calls_a_pool = n_calls // N_POOLS
    n_slots = calls_a_pool * shape.n_rows * topk
    n_pages = math.ceil(n_slots / shape.page_size)
    pools = []
    for _ in range(N_POOLS):
        pool = _random_pool(n_pages, shape.page_size, draw, device)
        places = torch.randperm(n_pages * shape.page_size, generator=draw, device=device)[:n_slots]
        indices = places.to(torch.int32).view(calls_a_pool, shape.n_rows, topk)
        pools.append((pool, indices))
    return [(pools[i % N_POOLS][0], pools[i % N_POOLS][1][i // N_POOLS], shape.page_size, None) for i in range(n_calls)]


def _random_pool(n_pages: int, page_size: int, draw: torch.Generator, device: torch.device | str) -> torch.Tensor:
    """Packed by parts: packing all at once takes some ten times the memory of the pool."""
    pool = kv_pool.empty_pool(n_pages, page_size, device)
    for first in range(0, n_pages, PAGES_AT_ONCE):
        part = pool[first : first + PAGES_AT_ONCE]
        values = torch.randn(part.shape[0], page_size, kv_pool.HEAD_DIM, generator=draw, device=device)
        part.copy_(kv_pool.pack(values))
    return pool


def capture(calls: Sequence[Call]) -> Replay:
    """A CUDA graph of the calls in order."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def replay() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000 / len(calls)

    return replay


def time_calls(
    calls: Mapping[str, Sequence[Call]],
    *,
    record: Callable[[Sequence[Call]], Replay] = capture,
    n_graphs: int = N_GRAPHS,
    n_replays: int = N_REPLAYS,
) -> tuple[dict[str, list[list[float]]], dict[str, str]]:
    """(µs of one call, by name, graph and replay; what kept a name from being timed).

    A name that fails in one graph has no samples, and is left out of the graphs after it.

    Args:
        record: ``capture``, or what stands in for it where there is no GPU.
    """
    everything = [_Timed(name=name, calls=of_name) for name, of_name in calls.items()]
    for number in range(n_graphs):
        order = everything if number % 2 == 0 else everything[::-1]
        for timed in order:
            timed.attempt(timed.capture, record)
        for timed in order:  # after the captures, in which the GPU idles and lowers its clock
            timed.attempt(timed.warm_up)
        for turn in range(n_replays):
            for timed in order if turn % 2 == 0 else order[::-1]:
                timed.attempt(timed.sample)
        for timed in everything:
            timed.replay = None
        gc.collect()  # a graph keeps its memory until it is gone
    samples = {timed.name: timed.graphs for timed in everything if timed.problem is None}
    return samples, {timed.name: timed.problem for timed in everything if timed.problem is not None}


@dataclass(kw_only=True)
class _Timed:
    """One of what is compared: its calls, the graph of the moment, and µs of one call by graph and replay."""

    name: str
    calls: Sequence[Call]
    graphs: list[list[float]] = field(default_factory=list)
    replay: Replay | None = None
    problem: str | None = None

    def attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        """A step, unless one has failed: a failure is the result of this one, and the others go on."""
        if self.problem is not None:
            return
        try:
            step(*arguments)
        except Exception as error:
            self.problem = one_line(error)

    def capture(self, record: Callable[[Sequence[Call]], Replay]) -> None:
        self.replay = record(self.calls)
        self.graphs.append([])

    def warm_up(self) -> None:
        """For 50 ms of the GPU's time, and at least 5 replays; never more than 1,000."""
        assert self.replay is not None
        spent_us = 0.0
        for number in range(MOST_WARM_REPLAYS):
            if number >= N_WARM_REPLAYS and spent_us >= WARM_US:
                return
            spent_us += self.replay() * len(self.calls)

    def sample(self) -> None:
        assert self.replay is not None
        self.graphs[-1].append(self.replay())


def one_line(error: BaseException) -> str:
    """``ImportError: No module named 'flash_mla'``."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def interval_of(graphs: Sequence[Sequence[float]]) -> Interval:
    """Of the medians of the graphs.

    The narrowest pair of order statistics with the same number of values outside on both sides that holds the median
    in at least 95 % of samples; smallest and largest where there are too few values for that.
    """
    medians = sorted(statistics.median(replays) for replays in graphs)
    n = len(medians)
    outside, tail = 0, 0.5**n
    while outside + 1 < n - outside - 1:
        next_tail = tail + math.comb(n, outside + 1) * 0.5**n
        if 1 - 2 * next_tail < LEVEL:
            break
        outside, tail = outside + 1, next_tail
    return Interval(
        median=statistics.median(medians),
        low=medians[outside],
        high=medians[n - 1 - outside],
        coverage=max(0.0, 1 - 2 * tail),
        n=n,
    )
