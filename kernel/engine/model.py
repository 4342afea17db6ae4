"""The network: multi-head latent attention and a small MLP, with random weights from a seed.

Owns weights and arithmetic. It picks no tokens to attend to and owns no pages: ``runner.py`` hands it places, and an
``attend`` function that reads the pools.

Dimension key: N tokens of this call, E hidden, R query rank, H heads, D 512 (448 nope + 64 rope), V 32 (value width
of a head after up-projection), F MLP width.

A layer, in the absorbed form of latent attention (the up-projections of K are folded into the query, so that all
heads read one 512-wide latent; K and V are the same numbers):
    q  = rotate(norm(x) Wq_down Wq_up)            [N, H, 512]
    kv = rotate(norm(norm(x) Wkv))                [N, 512], quantised into the pool
    x += unrotate(attend(q)) Wv_up Wo             position enters the values through the shared rope part: turned back
    x += silu(norm(x) W_up) W_down

Weights: fp32 on a CPU, bf16 on CUDA. q goes to the kernel in bf16.

A token must not depend on what else is computed with it. A CPU's matrix product of few rows adds in another order than
one of many (seen on an AMD EPYC: below 4 rows, or an odd number for each of 2 threads), so rows are padded there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from kernel import kv_pool

QUERY_RANK = 64
VALUE_DIM = 32
ROPE_BASE = 10_000.0
CPU_ROWS = 8
"""On a CPU the number of rows is padded to a multiple of this."""

Attend = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, q bf16 [N, H, 512]) → bf16 [N, H, 512]; the tokens' own KV is in the pool already."""
Append = Callable[[int, torch.Tensor], None]
"""(layer, kv [N, 512]): write the tokens' KV into the pool."""


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One layer; matrices as [in, out]."""

    q_down_ER: torch.Tensor
    q_up_RQ: torch.Tensor  # Q = H × D
    kv_ED: torch.Tensor
    v_up_HDV: torch.Tensor
    o_OE: torch.Tensor  # O = H × V
    up_EF: torch.Tensor
    down_FE: torch.Tensor


class Model:
    """Random weights and the forward pass."""

    def __init__(
        self, *, layers: int, heads: int, hidden: int, vocab: int, max_model_len: int, seed: int, device: torch.device
    ) -> None:
        self.heads = heads
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        draw = torch.Generator().manual_seed(seed)

        def matrix(*shape: int) -> torch.Tensor:
            """Normal with variance 1 / fan-in; drawn on the CPU, so that every device has the same weights."""
            weights = torch.randn(*shape, generator=draw) * shape[-2] ** -0.5
            return weights.to(device, self.dtype)

        self._embedding_TE = (torch.randn(vocab, hidden, generator=draw)).to(device, self.dtype)
        self._layers = [
            LayerWeights(
                q_down_ER=matrix(hidden, QUERY_RANK),
                q_up_RQ=matrix(QUERY_RANK, heads * kv_pool.HEAD_DIM),
                kv_ED=matrix(hidden, kv_pool.HEAD_DIM),
                v_up_HDV=matrix(heads, kv_pool.HEAD_DIM, VALUE_DIM),
                o_OE=matrix(heads * VALUE_DIM, hidden),
                up_EF=matrix(hidden, hidden),
                down_FE=matrix(hidden, hidden),
            )
            for _ in range(layers)
        ]
        self._head_ET = matrix(hidden, vocab)
        self._cos_P, self._sin_P = _rotations(max_model_len, device)

    @torch.inference_mode()
    def next_tokens(
        self,
        tokens_N: torch.Tensor,
        positions_N: torch.Tensor,
        last_M: torch.Tensor | None,
        append: Append,
        attend: Attend,
    ) -> torch.Tensor:
        """Run the tokens through all layers; the greedy next token after those at rows ``last_M`` (None: after each).

        Returns:
            int64 [M]; the lowest id wins a tie.
        """
        n_tokens = tokens_N.shape[0]
        tokens_N, positions_N = self._padded(tokens_N), self._padded(positions_N)
        cos_N, sin_N = self._cos_P[positions_N], self._sin_P[positions_N]
        x_NE = self._embedding_TE[tokens_N]
        for number, layer in enumerate(self._layers):
            x_NE = x_NE + self._attention(number, layer, n_tokens, x_NE, cos_N, sin_N, append, attend)
            x_NE = x_NE + functional.silu(_norm(x_NE) @ layer.up_EF) @ layer.down_FE
        x_ME = x_NE[:n_tokens] if last_M is None else x_NE[last_M]
        logits_MT = _norm(self._padded(x_ME)) @ self._head_ET
        return logits_MT[: x_ME.shape[0]].float().argmax(dim=1)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """With rows of zeros behind, on a CPU; as it is on CUDA, where a graph's rows are padded already."""
        n_more = -rows.shape[0] % CPU_ROWS if self.device.type == "cpu" else 0
        return torch.cat([rows, rows.new_zeros(n_more, *rows.shape[1:])]) if n_more else rows

    def _attention(
        self,
        number: int,
        layer: LayerWeights,
        n_tokens: int,
        x_NE: torch.Tensor,
        cos_N: torch.Tensor,
        sin_N: torch.Tensor,
        append: Append,
        attend: Attend,
    ) -> torch.Tensor:
        normed_NE = _norm(x_NE)
        kv_ND = _norm((normed_NE @ layer.kv_ED).float())
        append(number, _rotated(kv_ND, cos_N, sin_N)[:n_tokens])
        q_NHD = ((normed_NE @ layer.q_down_ER) @ layer.q_up_RQ).view(-1, self.heads, kv_pool.HEAD_DIM)
        q_NHD = _rotated(q_NHD.float(), cos_N[:, None], sin_N[:, None]).to(torch.bfloat16)
        out_NHD = self._padded(attend(number, q_NHD[:n_tokens]))
        out_NHD = _rotated(out_NHD.float(), cos_N[:, None], -sin_N[:, None]).to(self.dtype)
        value_HNV = torch.bmm(out_NHD.transpose(0, 1), layer.v_up_HDV)
        return value_HNV.transpose(0, 1).reshape(x_NE.shape[0], -1) @ layer.o_OE


def _norm(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:])


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the last 64 numbers by each position's angles, as 32 pairs (i, i + 32); in place, fp32."""
    first, second = x[..., kv_pool.NOPE_DIM :].chunk(2, dim=-1)
    turned = first * cos - second * sin
    second.mul_(cos).add_(first * sin)
    first.copy_(turned)
    return x


def _rotations(n_positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position's 32 angles, fp32 [positions, 32]."""
    n_pairs = kv_pool.ROPE_DIM // 2
    frequencies = ROPE_BASE ** (-torch.arange(n_pairs, dtype=torch.float64) / n_pairs)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float().to(device), angles.sin().float().to(device)
