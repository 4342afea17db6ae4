"""CUDA graphs of a step, one for each bucket of rows. Used on CUDA only.

A graph replays fixed addresses, so every bucket has its own input tensors; a step fills the smallest bucket that
holds its rows, pads the rest, and replays. All graphs share one memory pool: only one runs at a time, and what they
allocate lives within a replay, save the token output, which is read before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernel.engine.rows import Rows

WARM_UP_RUNS = 2  # the first tunes and compiles, the second shows the allocator its steady state


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """One bucket: pinned host rows, their twins on the device, the graph, and its output (int64 [bucket])."""

    host: Rows
    device: Rows
    graph: torch.cuda.CUDAGraph
    next_tokens_B: torch.Tensor


class StepGraphs:
    """Captures ``step`` for all buckets, and runs rows through them."""

    def __init__(self, step: Callable[[Rows], torch.Tensor], *, buckets: list[int], topk: int) -> None:
        self._step = step
        self._topk = topk
        self._buckets = buckets
        self._captured: dict[int, CapturedStep] = {}

    def capture_all(self) -> None:
        """Tune, then capture, the largest bucket first, so that the smaller ones fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            self._captured[bucket] = self._capture(bucket, pool)

    def run(self, n_rows: int, fill: Callable[[Rows], None]) -> list[int]:
        """One step of the rows that ``fill`` writes: the next token of each. Waits for the GPU once, at the end."""
        captured = self._captured[next(bucket for bucket in self._buckets if bucket >= n_rows)]
        fill(captured.host)
        captured.device.buffer.copy_(captured.host.buffer, non_blocking=True)
        captured.graph.replay()
        return captured.next_tokens_B.tolist()[:n_rows]

    def _capture(self, bucket: int, pool: Any) -> CapturedStep:
        host = Rows.zeros(bucket, self._topk, pinned=True)
        device = Rows.zeros(bucket, self._topk, device="cuda")
        # Padding rows have empty token lists; tuning on those would time nothing. Full lists in the padding page do.
        device.lengths_B.fill_(self._topk)
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP_RUNS):
                self._step(device)
        torch.cuda.current_stream().wait_stream(side_stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            next_tokens_B = self._step(device)
        return CapturedStep(host=host, device=device, graph=graph, next_tokens_B=next_tokens_B)


def buckets_up_to(max_batch: int, prefill_chunk: int = 1) -> list[int]:
    """Rows a step may have: for decode 1, 2, 4, 8, then steps of 8 to 32 and of 16 up to ``max_batch``; beyond, for
    prompts, doublings of 128. ``max_batch`` and a larger ``prefill_chunk`` are always among them."""
    candidates = [1, 2, 4, 8, 16, 24, 32, *range(48, max_batch + 1, 16)]
    buckets = [bucket for bucket in candidates if bucket < max_batch] + [max_batch]
    rows = 128
    while rows < prefill_chunk:
        buckets += [rows] if rows > max_batch else []
        rows *= 2
    return buckets + ([prefill_chunk] if prefill_chunk > max_batch else [])
