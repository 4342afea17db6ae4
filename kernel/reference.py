"""What ``sparse_mla_decode`` computes, in float64, one head at a time: written to be read, and to be right.

Owns the meaning of the kernel. Nothing here is fast, and no trick of the kernel (tiles, slices, base 2, running
maxima) appears here: it would be tested against itself.

Dimension key: B rows, H heads, D 512, T slots of a token list, N tokens of one row that really count.

For one row and one head, with the tokens 1 … N that its lists name:
    score_n = scale × (q · kv_n)
    lse     = log Σ_n exp(score_n)                        natural log; −inf when N = 0
    out     = Σ_n exp(score_n) kv_n / (exp(lse) + exp(sink))    0 when N = 0; without a sink the last term is absent
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kernel import kv_pool


def reference_decode(
    q_B1HD: torch.Tensor,
    pools: Sequence[tuple[torch.Tensor, torch.Tensor, int, torch.Tensor | None]],
    *,
    attention_sink_H: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from each row to the tokens of its lists.

    Args:
        q_B1HD: [B, 1, H, 512], any float dtype.
        pools: one or more (kv_pool, indices_BT, page_size, topk_length_B or None); all of them are one softmax.
        attention_sink_H: [H], natural-log units.
        softmax_scale: 1/√512 when not given.

    Returns:
        (out float64 [B, 1, H, 512], lse float64 [B, 1, H]), on the CPU.
    """
    scale = kv_pool.HEAD_DIM**-0.5 if softmax_scale is None else softmax_scale
    n_rows, _, n_heads, _ = q_B1HD.shape
    out = torch.zeros(n_rows, 1, n_heads, kv_pool.HEAD_DIM, dtype=torch.float64)
    lse = torch.full((n_rows, 1, n_heads), -math.inf, dtype=torch.float64)
    for row in range(n_rows):
        kv_ND = torch.cat([row_tokens(row, *pool) for pool in pools])
        if kv_ND.shape[0] == 0:
            continue
        for head in range(n_heads):
            score_N = scale * (kv_ND @ q_B1HD[row, 0, head].cpu().double())
            denominator = lse[row, 0, head] = torch.logsumexp(score_N, dim=0)
            if attention_sink_H is not None:
                denominator = torch.logaddexp(denominator, attention_sink_H[head].cpu().double())
            out[row, 0, head] = torch.exp(score_N - denominator) @ kv_ND
    return out, lse


def row_tokens(
    row: int, pool: torch.Tensor, indices_BT: torch.Tensor, page_size: int, topk_length_B: torch.Tensor | None
) -> torch.Tensor:
    """float64 [N, 512]: the tokens of one row's list that count, in the list's order."""
    places = indices_BT[row].tolist()
    if topk_length_B is not None:
        places = places[: max(0, int(topk_length_B[row]))]
    counted = torch.tensor([place for place in places if place >= 0], dtype=torch.int64)
    return kv_pool.unpack(pool.cpu(), page_size, counted, torch.float64)
