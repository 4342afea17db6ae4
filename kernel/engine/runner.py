"""Sequences → tensors → tokens: the one place where the scheduler's records meet the model, the pools and the kernel.

Owns the KV pools (one a layer, all with the same page numbers) and the choice of tokens: a step attends to the most
recent ``topk`` tokens of its context, its own included. Decode runs the kernel under test. Prefill runs it too on
CUDA, from the same CUDA graphs, a row for each prompt token: eager torch would spend its time on launches. On a CPU
prefill is dense attention in torch over the same packed pool, with the same window, so that a token's result does not
depend on whether it came from a prompt or a decode step, save for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from kernel import kv_pool
from kernel.engine.model import Model
from kernel.engine.options import EngineOptions
from kernel.engine.rows import Rows
from kernel.engine.scheduler import Chunk, Sequence

SOFTMAX_SCALE = kv_pool.HEAD_DIM**-0.5
QUERY_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class QueryBlock:
    """Q prompt tokens of one sequence, and the C context tokens that any of them attends to.

    ``hidden_Q1C``: the context tokens that a query must not see: later ones, and those out of its window.
    """

    n_queries: int
    places_C: torch.Tensor  # int32
    hidden_Q1C: torch.Tensor  # bool


class Runner:
    """Computes prefill chunks and decode steps."""

    def __init__(self, options: EngineOptions, kernel: ModuleType) -> None:
        self.device = _device(options.device)
        if self.device.type == "cpu":
            torch.set_num_threads(options.threads)
        self._kernel = kernel
        self._topk = options.topk
        self._page_size = options.page_size
        self._model = Model(
            layers=options.layers,
            heads=options.heads,
            hidden=options.hidden,
            vocab=options.vocab,
            max_model_len=options.max_model_len,
            seed=options.seed,
            device=self.device,
        )
        self._pools = [
            kv_pool.empty_pool(options.n_pages, options.page_size, self.device) for _ in range(options.layers)
        ]
        self._graphs = None
        if self.device.type == "cuda":
            from kernel.engine.graphs import StepGraphs, buckets_up_to

            buckets = buckets_up_to(options.max_batch, options.prefill_chunk)
            self._graphs = StepGraphs(self.step, buckets=buckets, topk=options.topk)

    def warm_up(self) -> None:
        """Run everything once: a prefill and a decode step on a CPU, every graph's tuning and capture on CUDA.

        Writes KV only to the page kept for padding.
        """
        if self._graphs is not None:
            self._graphs.capture_all()
        sequence = Sequence(prompt=[1], max_tokens=1, ignore_eos=True, places=np.zeros(2, np.int32))
        self.prefill([Chunk(sequence=sequence, begin=0, end=1)])
        sequence.output.append(1)
        self.decode([sequence])

    def decode(self, sequences: list[Sequence]) -> list[int]:
        """The next token of each; their last tokens' KV enters the pools."""
        if self._graphs is not None:
            return self._graphs.run(len(sequences), lambda rows: rows.fill_decode(sequences, self._topk))
        width = min(self._topk, max(sequence.n_tokens for sequence in sequences))
        rows = Rows.zeros(len(sequences), width)
        rows.fill_decode(sequences, self._topk)
        return self.step(rows).tolist()

    def step(self, rows: Rows) -> torch.Tensor:
        """One step on tensors alone, without a host sync on CUDA: what a CUDA graph captures. int64 [B]."""

        def append(layer: int, kv_BD: torch.Tensor) -> None:
            kv_pool.append(self._pools[layer], self._page_size, rows.places_B, kv_BD)

        def attend(layer: int, q_BHD: torch.Tensor) -> torch.Tensor:
            out_B1HD, _ = self._kernel.sparse_mla_decode(
                q_BHD[:, None],
                self._pools[layer],
                rows.indices_BT,
                page_size=self._page_size,
                topk_length_B=rows.lengths_B,
                softmax_scale=SOFTMAX_SCALE,
            )
            return out_B1HD[:, 0]

        return self._model.next_tokens(rows.tokens_B, rows.positions_B, None, append, attend)

    def prefill(self, chunks: list[Chunk]) -> list[int]:
        """Put the chunks' KV into the pools; the next token after each chunk."""
        if self._graphs is not None:
            ends = np.cumsum([chunk.end - chunk.begin for chunk in chunks])
            of_rows = self._graphs.run(int(ends[-1]), lambda rows: rows.fill_prompts(chunks, self._topk))
            return [of_rows[end - 1] for end in ends]
        tokens = [token for chunk in chunks for token in chunk.sequence.prompt[chunk.begin : chunk.end]]
        positions = np.concatenate([np.arange(chunk.begin, chunk.end) for chunk in chunks])
        places = np.concatenate([chunk.sequence.places[chunk.begin : chunk.end] for chunk in chunks])
        lengths = [chunk.end - chunk.begin for chunk in chunks]
        blocks = [self._query_block(block) for chunk in chunks for block in _blocks(chunk)]
        places_N = torch.from_numpy(places).to(self.device)

        def append(layer: int, kv_ND: torch.Tensor) -> None:
            kv_pool.append(self._pools[layer], self._page_size, places_N, kv_ND)

        def attend(layer: int, q_NHD: torch.Tensor) -> torch.Tensor:
            parts = zip(blocks, q_NHD.split([block.n_queries for block in blocks]), strict=True)
            return torch.cat([self._prefill_attention(layer, block, q) for block, q in parts])

        next_tokens = self._model.next_tokens(
            torch.tensor(tokens, device=self.device),
            torch.from_numpy(positions).to(self.device),
            torch.tensor(lengths, device=self.device).cumsum(0) - 1,
            append,
            attend,
        )
        return next_tokens.tolist()

    def _query_block(self, block: Chunk) -> QueryBlock:
        """What every layer needs of a block, put on the device once."""
        first = max(0, block.begin + 1 - self._topk)
        places_C = torch.from_numpy(block.sequence.places[first : block.end]).to(self.device)
        at_Q = torch.arange(block.begin, block.end, device=self.device)[:, None]
        at_C = torch.arange(first, block.end, device=self.device)
        hidden_Q1C = ((at_C > at_Q) | (at_C <= at_Q - self._topk))[:, None]
        return QueryBlock(n_queries=block.end - block.begin, places_C=places_C, hidden_Q1C=hidden_Q1C)

    def _prefill_attention(self, layer: int, block: QueryBlock, q_QHD: torch.Tensor) -> torch.Tensor:
        """Dense attention of one block's Q tokens over their C context tokens; bf16 [Q, H, 512]."""
        kv_CD = kv_pool.unpack(self._pools[layer], self._page_size, block.places_C, torch.float32)
        score_QHC = (q_QHD.float() @ kv_CD.T) * SOFTMAX_SCALE
        weight_QHC = score_QHC.masked_fill_(block.hidden_Q1C, -torch.inf).softmax(dim=2)
        return (weight_QHC @ kv_CD).to(torch.bfloat16)


def _blocks(chunk: Chunk) -> list[Chunk]:
    """The chunk in blocks of queries, so that early ones do not compute the scores of all that follows them."""
    begins = range(chunk.begin, chunk.end, QUERY_BLOCK)
    return [Chunk(sequence=chunk.sequence, begin=begin, end=min(begin + QUERY_BLOCK, chunk.end)) for begin in begins]


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
