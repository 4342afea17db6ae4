"""What one step computes, as tensors, a row for each token: plain tensors on the CPU, a graph's inputs on CUDA.

A row is one token at the end of its context: it attends to the most recent ``topk`` places up to its own. The rows of
a decode step are the last tokens of sequences. On CUDA prompts are rows too: a layer writes the KV of all rows before
any of them attends, so the tokens of a prompt may see each other in one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernel.engine.scheduler import Chunk, Sequence


@dataclass(frozen=True, kw_only=True)
class Rows:
    """B rows with T slots each, all in one buffer, so that one copy brings them to the device.

    A padding row has token 0, position 0, place 0 (in the page kept for padding) and length 0.
    """

    buffer: torch.Tensor  # uint8: the five below, one after the other
    tokens_B: torch.Tensor  # int64
    positions_B: torch.Tensor  # int64
    places_B: torch.Tensor  # int64: where the new token's KV goes
    indices_BT: torch.Tensor  # int32: places to attend to
    lengths_B: torch.Tensor  # int32

    @classmethod
    def zeros(cls, n_rows: int, topk: int, *, device: torch.device | str = "cpu", pinned: bool = False) -> Rows:
        """All padding."""
        sizes = [8 * n_rows] * 3 + [4 * n_rows * topk, 4 * n_rows]
        buffer = torch.zeros(sum(sizes), dtype=torch.uint8, device=device, pin_memory=pinned)
        tokens, positions, places, indices, lengths = buffer.split(sizes)
        return cls(
            buffer=buffer,
            tokens_B=tokens.view(torch.int64),
            positions_B=positions.view(torch.int64),
            places_B=places.view(torch.int64),
            indices_BT=indices.view(torch.int32).view(n_rows, topk),
            lengths_B=lengths.view(torch.int32),
        )

    def fill_decode(self, sequences: list[Sequence], topk: int) -> None:
        """The last token of each sequence in the first rows, padding in the rest. CPU tensors only."""
        tokens, positions, places = self.tokens_B.numpy(), self.positions_B.numpy(), self.places_B.numpy()
        indices, lengths = self.indices_BT.numpy(), self.lengths_B.numpy()
        for row, sequence in enumerate(sequences):
            n_tokens = sequence.n_tokens
            window = sequence.places[max(0, n_tokens - topk) : n_tokens]
            tokens[row] = sequence.output[-1]
            positions[row] = n_tokens - 1
            places[row] = sequence.places[n_tokens - 1]
            indices[row, : len(window)] = window
            lengths[row] = len(window)
        self._pad(len(sequences))

    def fill_prompts(self, chunks: list[Chunk], topk: int) -> None:
        """Every token of the chunks, one chunk after the other, padding in the rest. CPU tensors only."""
        begin = 0
        for chunk in chunks:
            end = begin + chunk.end - chunk.begin
            at_N = np.arange(chunk.begin, chunk.end)
            self.tokens_B.numpy()[begin:end] = chunk.sequence.prompt[chunk.begin : chunk.end]
            self.positions_B.numpy()[begin:end] = at_N
            self.places_B.numpy()[begin:end] = chunk.sequence.places[chunk.begin : chunk.end]
            slots_NT = np.maximum(at_N - topk + 1, 0)[:, None] + np.arange(min(topk, chunk.end))
            # Slots past a row's own token are beyond its length; they only must lie within the sequence's places.
            slots_NT = np.minimum(slots_NT, len(chunk.sequence.places) - 1)
            self.indices_BT.numpy()[begin:end, : slots_NT.shape[1]] = chunk.sequence.places[slots_NT]
            self.lengths_B.numpy()[begin:end] = np.minimum(at_N + 1, topk)
            begin = end
        self._pad(begin)

    def _pad(self, n_used: int) -> None:
        for column in (self.tokens_B, self.positions_B, self.places_B, self.lengths_B):
            column.numpy()[n_used:] = 0
