"""CUDA graphs of the decode step, one for each batch bucket. Used on CUDA only.

A graph replays fixed addresses, so every bucket has its own input tensors; a step fills the smallest bucket that
holds its sequences, pads the rest, and replays. All graphs share one memory pool: only one runs at a time, and what
they allocate lives within a replay, save the token output, which is read before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from kernel.engine.runner import DecodeInputs
from kernel.engine.scheduler import Sequence

WARM_UP_RUNS = 2  # the first tunes and compiles, the second shows the allocator its steady state


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """One bucket: pinned host tensors, their twins on the device, the graph, and its output (int64 [bucket])."""

    host: DecodeInputs
    device: DecodeInputs
    graph: torch.cuda.CUDAGraph
    next_tokens_B: torch.Tensor


class DecodeGraphs:
    """Captures ``step`` for all buckets, and runs sequences through them."""

    def __init__(self, step: Callable[[DecodeInputs], torch.Tensor], *, max_batch: int, topk: int) -> None:
        self._step = step
        self._topk = topk
        self._buckets = buckets_up_to(max_batch)
        self._captured: dict[int, CapturedStep] = {}

    def capture_all(self) -> None:
        """Tune, then capture, the largest bucket first, so that the smaller ones fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        for bucket in reversed(self._buckets):
            self._captured[bucket] = self._capture(bucket, pool)

    def run(self, sequences: list[Sequence]) -> list[int]:
        """One decode step of ``sequences``: the next token of each. Waits for the GPU once, at the end."""
        bucket = next(bucket for bucket in self._buckets if bucket >= len(sequences))
        captured = self._captured[bucket]
        captured.host.fill(sequences, self._topk)
        for field in fields(DecodeInputs):
            getattr(captured.device, field.name).copy_(getattr(captured.host, field.name), non_blocking=True)
        captured.graph.replay()
        return captured.next_tokens_B.tolist()[: len(sequences)]

    def _capture(self, bucket: int, pool: Any) -> CapturedStep:
        host = DecodeInputs.zeros(bucket, self._topk, pinned=True)
        device = DecodeInputs.zeros(bucket, self._topk, device="cuda")
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


def buckets_up_to(max_batch: int) -> list[int]:
    """1, 2, 4, 8, then steps of 8 to 32 and of 16 beyond; ``max_batch`` itself is always the last."""
    candidates = [1, 2, 4, 8, 16, 24, 32, *range(48, max_batch + 1, 16)]
    return [bucket for bucket in candidates if bucket < max_batch] + [max_batch]
