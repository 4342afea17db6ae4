"""One decode step of sparse multi-head latent attention: the Triton kernels, their launcher, and the same in torch.

One self-contained file, because this file is what gets pulled, edited and pushed: it imports nothing from its
neighbours. It owns the attention of one step and nothing else: it never picks tokens, never writes the KV pool.

Dimension key (names of tensors end in it):
    B  rows: one query token each, usually one running sequence each
    H  query heads; all of them read the same K and V (multi-query attention over a latent)
    D  512 numbers of a head: 448 without position ("nope"), then 64 with rotary position ("rope")
    T  slots of a row's token list ("topk"); a slot holds a token's place in the pool, or −1 for none
    P  pages of the pool

KV pool: uint8 [P, page_bytes]. A page holds ``page_size`` tokens: 576 bytes each (448 float8 e4m3, then 64 bfloat16),
then 8 bytes each (7 scale bytes, one for each 64 of the 448; byte b means 2^(b − 127); 1 byte unused), then padding
to a multiple of 576. K and V are the same 512 numbers. A token's place is page × page_size + slot.

Two ways to compute, one algorithm (online softmax over tiles of ``BLOCK_T`` tokens):
    CUDA tensors and triton    the autotuned kernel over slices of the token list, then the merge kernel
    otherwise                  torch, one row after the other; there is no autotuning, so ``BLOCK_T`` of the FIRST
                               config in the list is the tile, and num_warps and num_stages have no meaning and no
                               effect. TRITON_INTERPRET=1 runs the Triton kernels on a CPU instead, also with the
                               first config.

Source: own. The online softmax with partial results merged by log-sum-exp is the scheme of FlashAttention and
Flash-Decoding (rule only); the page layout is the one that serving engines use for DeepSeek-V4's fp8 KV cache.
"""

from __future__ import annotations

import functools
import math
import os
from types import SimpleNamespace
from typing import Any

import torch

try:
    import triton
    import triton.language as tl

    HAVE_TRITON = True
except ImportError:  # no triton wheel (macOS): keep the config list readable, so that the torch path has its tile
    HAVE_TRITON = False

    class _Config:
        """Stands in for ``triton.Config``: records what it was given."""

        def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **other: Any) -> None:
            self.kwargs, self.num_warps, self.num_stages, self.other = kwargs, num_warps, num_stages, other

    def _autotune(configs: list[_Config], key: list[str], **other: Any) -> Any:
        return lambda fn: SimpleNamespace(fn=fn, configs=configs, keys=key)

    triton = SimpleNamespace(Config=_Config, autotune=_autotune, jit=lambda fn: fn)
    tl = SimpleNamespace(constexpr=object)

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")

NOPE_DIM, ROPE_DIM, HEAD_DIM = 448, 64, 512
TOKEN_BYTES, SCALE_BYTES = 576, 8
VALUES_PER_SCALE = 64
MIN_TOKENS_PER_SPLIT = 32
MAX_SPLITS = 16
PROGRAMS_PER_MULTIPROCESSOR = 2
MULTIPROCESSORS_INTERPRETED = 4  # makes the interpreter walk several splits, as a GPU would
LOG2_E = math.log2(math.e)

Pool = tuple[torch.Tensor, torch.Tensor, int, "torch.Tensor | None"]
"""(kv_pool, indices_BT, page_size, topk_length_B or None)"""


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=8, num_stages=2),
    ],
    key=["rows_bucket", "n_heads", "topk", "page_size", "n_splits", "HAS_LENGTH", "BLOCK_H"],
)
@triton.jit
def sparse_mla_decode_kernel(
    q_ptr,  # bf16 [B, 1, H, D]
    nope_ptr,  # the pool's bytes, three times: as fp8 e4m3 …
    rope_ptr,  # … as bf16 …
    scale_ptr,  # … and as bytes
    indices_ptr,  # int32 [B, T]
    length_ptr,  # int32 [B]; read only if HAS_LENGTH
    acc_ptr,  # fp32 [B, all splits, H, D]: weighted values, not yet divided
    max_sum_ptr,  # fp32 [B, all splits, H, 2]: running maximum (base 2), sum of weights
    qk_scale,  # softmax scale × log2(e): the kernel works in base 2
    page_size,
    page_bytes,
    n_heads,
    topk,
    n_splits,  # slices of this pool's token list …
    first_split,  # … and where they begin in acc and max_sum
    rows_bucket,  # batch rounded up to a power of two: unused here, but the best config depends on it
    q_stride_b,
    q_stride_h,
    indices_stride_b,
    acc_stride_b,
    acc_stride_s,
    max_sum_stride_b,
    max_sum_stride_s,
    HAS_LENGTH: tl.constexpr,
    BLOCK_H: tl.constexpr,  # at least 16, which tl.dot needs; heads past n_heads are masked
    COMPUTE: tl.constexpr,  # type fed to the dots: bf16; fp32 under the interpreter, whose bf16 dots are wrong
    BLOCK_T: tl.constexpr,
):
    """One program: one row, BLOCK_H heads, one slice of the row's token list."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    split = tl.program_id(2)
    is_head = heads < n_heads
    # The 448 nope numbers sit in a tile of 512 (tiles are powers of two), the 64 rope numbers in one of their own:
    # one fused tile of 512 would need 128 KiB of shared memory at BLOCK_T 32, more than sm_120 has.
    nope_dims = tl.arange(0, 512)
    rope_dims = tl.arange(0, 64)
    is_nope = nope_dims < 448

    q_heads = q_ptr + row * q_stride_b + heads[:, None] * q_stride_h
    q_nope = tl.load(q_heads + nope_dims[None, :], mask=is_head[:, None] & is_nope[None, :], other=0.0).to(COMPUTE)
    q_rope = tl.load(q_heads + 448 + rope_dims[None, :], mask=is_head[:, None], other=0.0).to(COMPUTE)

    length = topk
    if HAS_LENGTH:
        length = tl.maximum(tl.minimum(tl.load(length_ptr + row), topk), 0)
    split_tokens = tl.cdiv(tl.cdiv(length, BLOCK_T), n_splits) * BLOCK_T
    begin = split * split_tokens
    end = tl.minimum(begin + split_tokens, length)

    # A finite "nothing yet": −inf − −inf would be NaN in the rescaling below.
    maximum = tl.full([BLOCK_H], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc_nope = tl.zeros([BLOCK_H, 512], tl.float32)
    acc_rope = tl.zeros([BLOCK_H, 64], tl.float32)

    for tile in tl.range(begin, end, BLOCK_T):
        slots = tile + tl.arange(0, BLOCK_T)
        token = tl.load(indices_ptr + row * indices_stride_b + slots, mask=slots < end, other=-1)
        is_token = token >= 0
        token = tl.where(is_token, token, 0)
        page_at = (token // page_size).to(tl.int64) * page_bytes
        slot = token % page_size
        token_at = page_at + slot * 576
        scale_at = page_at + page_size * 576 + slot * 8

        # Masked slots load as 0 with scale 1: a slot that holds inf or NaN must not reach the PV product, where a
        # weight of 0 would not silence it (0 × inf = NaN).
        nope_mask = is_token[:, None] & is_nope[None, :]
        nope = tl.load(nope_ptr + token_at[:, None] + nope_dims[None, :], mask=nope_mask, other=0.0)
        scale_byte = tl.load(scale_ptr + scale_at[:, None] + (nope_dims // 64)[None, :], mask=nope_mask, other=127)
        rope_at = (token_at + 448) // 2  # in bf16 elements
        v_rope = tl.load(rope_ptr + rope_at[:, None] + rope_dims[None, :], mask=is_token[:, None], other=0.0)
        v_rope = v_rope.to(COMPUTE)

        # The byte is the exponent field of a float; 0 there would be 0.0, and means the subnormal 2^−127.
        if COMPUTE == tl.bfloat16:  # noqa: SIM300  (COMPUTE is a value, not a constant)
            scale_bits = tl.where(scale_byte == 0, 0x0040, scale_byte.to(tl.int16) << 7).to(tl.int16)
            scale = scale_bits.to(tl.bfloat16, bitcast=True)
        else:
            scale_bits = tl.where(scale_byte == 0, 0x00400000, scale_byte.to(tl.int32) << 23).to(tl.int32)
            scale = scale_bits.to(tl.float32, bitcast=True)
        v_nope = nope.to(COMPUTE) * scale  # exact in bf16: 4 significant bits times a power of two

        score = tl.dot(q_nope, tl.trans(v_nope)) + tl.dot(q_rope, tl.trans(v_rope))
        score = tl.where(is_token[None, :], score * qk_scale, -1.0e30)
        new_maximum = tl.maximum(maximum, tl.max(score, 1))
        rescale = tl.exp2(maximum - new_maximum)
        weight = tl.where(is_token[None, :], tl.exp2(score - new_maximum[:, None]), 0.0)
        total = total * rescale + tl.sum(weight, 1)
        acc_nope = acc_nope * rescale[:, None] + tl.dot(weight.to(COMPUTE), v_nope)
        acc_rope = acc_rope * rescale[:, None] + tl.dot(weight.to(COMPUTE), v_rope)
        maximum = new_maximum

    acc_heads = acc_ptr + row * acc_stride_b + (first_split + split) * acc_stride_s + heads[:, None] * 512
    tl.store(acc_heads + nope_dims[None, :], acc_nope, mask=is_head[:, None] & is_nope[None, :])
    tl.store(acc_heads + 448 + rope_dims[None, :], acc_rope, mask=is_head[:, None])
    max_sum_heads = max_sum_ptr + row * max_sum_stride_b + (first_split + split) * max_sum_stride_s + heads * 2
    tl.store(max_sum_heads, maximum, mask=is_head)
    tl.store(max_sum_heads + 1, total, mask=is_head)


@triton.jit
def sparse_mla_merge_kernel(
    acc_ptr,  # fp32 [B, splits, H, D]
    max_sum_ptr,  # fp32 [B, splits, H, 2]
    sink_ptr,  # fp32 [H]; read only if HAS_SINK
    out_ptr,  # [B, 1, H, D], contiguous
    lse_ptr,  # fp32 [B, 1, H], contiguous
    n_heads,
    n_splits,
    acc_stride_b,
    acc_stride_s,
    max_sum_stride_b,
    max_sum_stride_s,
    HAS_SINK: tl.constexpr,
):
    """One program: one head of one row. Joins the slices of all pools, then applies the sink."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, 512)
    pairs = max_sum_ptr + row * max_sum_stride_b + head * 2
    accs = acc_ptr + row * acc_stride_b + head * 512 + dims

    maximum = tl.load(pairs)
    for split in range(1, n_splits):
        maximum = tl.maximum(maximum, tl.load(pairs + split * max_sum_stride_s))
    reference = maximum  # what the weights are relative to; the sink may be far above every score
    if HAS_SINK:
        sink = tl.load(sink_ptr + head) * 1.4426950408889634
        reference = tl.maximum(maximum, sink)

    total = 0.0
    relative_total = 0.0
    out = tl.zeros([512], tl.float32)
    for split in range(n_splits):
        split_maximum = tl.load(pairs + split * max_sum_stride_s)
        split_total = tl.load(pairs + split * max_sum_stride_s + 1)
        total += tl.exp2(split_maximum - maximum) * split_total
        weight = tl.exp2(split_maximum - reference)
        relative_total += weight * split_total
        out += weight * tl.load(accs + split * acc_stride_s)
    denominator = relative_total
    if HAS_SINK:
        denominator += tl.exp2(sink - reference)

    # "== 0" and not "> 0": a NaN sum is a NaN result, not an empty row.
    is_empty = total == 0.0
    out = tl.where(is_empty, 0.0, out / tl.where(is_empty, 1.0, denominator))
    lse = maximum * 0.6931471805599453 + tl.log(tl.where(is_empty, 1.0, total))
    tl.store(out_ptr + (row * n_heads + head) * 512 + dims, out.to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + row * n_heads + head, tl.where(is_empty, float("-inf"), lse))


CONFIGS = sparse_mla_decode_kernel.configs
"""The autotune list above, read back: the torch path takes its tile from the first."""


def sparse_mla_decode(
    q_B1HD: torch.Tensor,
    kv_pool: torch.Tensor,
    indices_BT: torch.Tensor,
    *,
    page_size: int,
    topk_length_B: torch.Tensor | None = None,
    attention_sink_H: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    second_kv_pool: torch.Tensor | None = None,
    second_indices_BT: torch.Tensor | None = None,
    second_page_size: int | None = None,
    second_topk_length_B: torch.Tensor | None = None,
    out_B1HD: torch.Tensor | None = None,
    lse_B1H: torch.Tensor | None = None,
    config: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from one query token a row to the pool tokens that its list names.

    Deterministic: the same inputs give the same bits (no atomics), also with another batch around a row on the torch
    path. On CUDA nothing waits for the GPU; it is safe under CUDA-graph capture once the same shapes have run before:
    with more than one config the first call of a shape benchmarks them, which inside a capture fails. Sums are fp32;
    on CUDA the softmax weights are rounded to bf16 for the PV product (relative error of ``out`` about 1.6e-3).

    Args:
        q_B1HD: bf16 [B, 1, H, 512]; the last dimension contiguous.
        kv_pool: uint8 [P, page_bytes], contiguous; layout in the module's docstring.
        indices_BT: int32 [B, T]; −1 anywhere means "no token". Places outside the pool are not checked.
        page_size: tokens a page.
        topk_length_B: int32 [B]; only the first so many slots of a row count. All of them when not given.
        attention_sink_H: fp32 [H], natural-log units: adds exp(sink) to the denominator, and nothing to ``lse``.
        softmax_scale: 1/√512 when not given.
        second_kv_pool: a further pool with its own ``second_indices_BT`` [B, T2], ``second_page_size`` and
            ``second_topk_length_B``; both pools are one softmax. Give the first three together or none.
        out_B1HD: bf16 [B, 1, H, 512], contiguous, to write into; allocated when not given.
        lse_B1H: fp32 [B, 1, H], contiguous, likewise.
        config: run this ``triton.Config`` and tune nothing; its BLOCK_T is the tile on every path.

    Returns:
        (out, lse). ``lse`` is the natural-log sum of exp(score), without the sink. A row without a valid token has
        out 0 and lse −inf.

    Raises:
        ValueError: a shape, dtype or layout is not as above; the text names the argument.
    """
    pools: list[Pool] = [(kv_pool, indices_BT, page_size, topk_length_B)]
    if second_kv_pool is not None and second_indices_BT is not None and second_page_size is not None:
        pools.append((second_kv_pool, second_indices_BT, second_page_size, second_topk_length_B))
    elif any(x is not None for x in (second_kv_pool, second_indices_BT, second_page_size, second_topk_length_B)):
        raise ValueError("second_kv_pool, second_indices_BT and second_page_size: give all three or none")
    _check_arguments(q_B1HD, pools, attention_sink_H)
    scale = HEAD_DIM**-0.5 if softmax_scale is None else softmax_scale
    n_rows, _, n_heads, _ = q_B1HD.shape
    out = _output(out_B1HD, "out_B1HD", q_B1HD, (n_rows, 1, n_heads, HEAD_DIM), torch.bfloat16)
    lse = _output(lse_B1H, "lse_B1H", q_B1HD, (n_rows, 1, n_heads), torch.float32)
    if n_rows == 0:
        return out, lse
    compute = _decode_triton if HAVE_TRITON and (q_B1HD.is_cuda or INTERPRETED) else _decode_torch
    compute(q_B1HD, pools, attention_sink_H, scale, out, lse, config)
    return out, lse


def page_bytes_of(page_size: int) -> int:
    """Bytes of one page of ``page_size`` tokens, padding included."""
    return -(-page_size * (TOKEN_BYTES + SCALE_BYTES) // TOKEN_BYTES) * TOKEN_BYTES


def block_h_of(n_heads: int) -> int:
    """Heads a program works on: the next power of two, no fewer than ``tl.dot``'s 16, no more than 32."""
    return max(16, min(32, 1 << (n_heads - 1).bit_length()))


def n_splits_of(n_rows: int, n_head_blocks: int, topk: int, n_multiprocessors: int) -> int:
    """Slices of each row's token list: enough programs to fill the GPU, but no slice under 32 tokens.

    A power of two up to 16, known on the host from shapes alone: the list's real length is never read.
    """
    wanted = PROGRAMS_PER_MULTIPROCESSOR * n_multiprocessors // max(1, n_rows * n_head_blocks)
    most = min(wanted, -(-topk // MIN_TOKENS_PER_SPLIT), MAX_SPLITS)
    return 1 << max(0, most.bit_length() - 1)


# ---- Triton


def _decode_triton(
    q: torch.Tensor,
    pools: list[Pool],
    sink: torch.Tensor | None,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    config: Any,
) -> None:
    """Launch one split kernel a pool into common partial results, then the merge kernel."""
    n_rows, _, n_heads, _ = q.shape
    block_h = block_h_of(n_heads)
    n_head_blocks = -(-n_heads // block_h)
    splits = [n_splits_of(n_rows, n_head_blocks, p[1].shape[1], _n_multiprocessors(q.device)) for p in pools]
    acc = torch.empty(n_rows, sum(splits), n_heads, HEAD_DIM, dtype=torch.float32, device=q.device)
    max_sum = torch.empty(n_rows, sum(splits), n_heads, 2, dtype=torch.float32, device=q.device)
    # The interpreter's fp32 → bf16 cuts instead of rounding, which doubles the error: there torch rounds.
    merged = torch.empty_like(out, dtype=torch.float32) if INTERPRETED else out
    first_split = 0
    for (pool, indices, page_size, length), n_splits in zip(pools, splits, strict=True):
        launch, chosen = _launch_form(config)
        launch[(n_rows, n_head_blocks, n_splits)](
            q,
            pool.view(torch.float8_e4m3fn),
            pool.view(torch.bfloat16),
            pool,
            indices,
            indices if length is None else length,
            acc,
            max_sum,
            scale * LOG2_E,
            page_size,
            page_bytes_of(page_size),
            n_heads,
            indices.shape[1],
            n_splits,
            first_split,
            1 << (n_rows - 1).bit_length(),
            q.stride(0),
            q.stride(2),
            indices.stride(0),
            acc.stride(0),
            acc.stride(1),
            max_sum.stride(0),
            max_sum.stride(1),
            HAS_LENGTH=length is not None,
            BLOCK_H=block_h,
            COMPUTE=tl.float32 if INTERPRETED else tl.bfloat16,
            **chosen,
        )
        first_split += n_splits
    sparse_mla_merge_kernel[(n_rows, n_heads)](
        acc,
        max_sum,
        max_sum if sink is None else sink,
        merged,
        lse,
        n_heads,
        first_split,
        acc.stride(0),
        acc.stride(1),
        max_sum.stride(0),
        max_sum.stride(1),
        HAS_SINK=sink is not None,
        num_warps=4,
    )
    if merged is not out:
        out.copy_(merged)


def _launch_form(config: Any) -> tuple[Any, dict[str, Any]]:
    """The autotuner, or the bare kernel with one config's arguments."""
    if INTERPRETED:
        return sparse_mla_decode_kernel.fn, dict((config or CONFIGS[0]).kwargs)
    if config is not None:
        return sparse_mla_decode_kernel.fn, config.all_kwargs()
    return sparse_mla_decode_kernel, {}


@functools.cache
def _n_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS_INTERPRETED
    return torch.cuda.get_device_properties(device).multi_processor_count


# ---- torch


def _decode_torch(
    q: torch.Tensor,
    pools: list[Pool],
    sink: torch.Tensor | None,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    config: Any,
) -> None:
    """The same tiled online softmax in torch: one row after the other, BLOCK_T tokens a tile.

    Rows are not batched together, as programs on a GPU are not: a row's result does not depend on its neighbours.
    Tokens are read from lists on the host, so on CUDA (without triton) this waits for the GPU.
    """
    block_t = int((config or CONFIGS[0]).kwargs["BLOCK_T"])
    for row in range(q.shape[0]):
        q_HD = q[row, 0].float() * scale
        maximum_H = q_HD.new_full((q.shape[2],), -math.inf)
        total_H = torch.zeros_like(maximum_H)
        acc_HD = torch.zeros_like(q_HD)
        for pool, indices, page_size, length in pools:
            end = indices.shape[1] if length is None else max(0, min(int(length[row]), indices.shape[1]))
            tokens = indices[row, :end]
            tokens = tokens[tokens >= 0]  # a slot without a token is dropped: neither weight nor value
            at_token, at_scale = _places(tokens, page_size)
            for tile in range(0, tokens.numel(), block_t):
                kv_TD = _dequantised(pool, at_token[tile : tile + block_t], at_scale[tile : tile + block_t])
                score_HT = q_HD @ kv_TD.T
                new_maximum_H = torch.maximum(maximum_H, score_HT.amax(1))
                rescale_H = torch.exp(maximum_H - new_maximum_H)
                weight_HT = torch.exp(score_HT - new_maximum_H[:, None])
                total_H = total_H * rescale_H + weight_HT.sum(1)
                acc_HD = torch.addmm(acc_HD * rescale_H[:, None], weight_HT, kv_TD)
                maximum_H = new_maximum_H
        out[row, 0], lse[row, 0] = _finished(maximum_H, total_H, acc_HD, sink)


def _places(tokens: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers of each token in the pool seen as rows of 576 bytes, and as rows of 8 bytes (its scales)."""
    page = torch.div(tokens, page_size, rounding_mode="floor").long()
    slot = tokens - page * page_size
    pieces = page_bytes_of(page_size) // TOKEN_BYTES
    at_token = page * pieces + slot
    at_scale = (page * pieces + page_size) * (TOKEN_BYTES // SCALE_BYTES) + slot
    return at_token, at_scale


def _dequantised(pool: torch.Tensor, at_token: torch.Tensor, at_scale: torch.Tensor) -> torch.Tensor:
    """The 512 fp32 numbers of each token. Tables are looked up: torch's own fp8 conversion is 4 times slower here."""
    value_table, scale_table = _tables(pool.device)
    packed = torch.index_select(pool.view(-1, TOKEN_BYTES), 0, at_token)
    exponents = torch.index_select(pool.view(-1, SCALE_BYTES), 0, at_scale)[:, : NOPE_DIM // VALUES_PER_SCALE]
    n_tokens = packed.shape[0]
    kv = torch.empty(n_tokens, HEAD_DIM, dtype=torch.float32, device=pool.device)
    nope = torch.index_select(value_table, 0, packed[:, :NOPE_DIM].reshape(-1).int())
    scale = torch.index_select(scale_table, 0, exponents.reshape(-1).int())
    torch.mul(
        nope.view(n_tokens, -1, VALUES_PER_SCALE),
        scale.view(n_tokens, -1, 1),
        out=kv[:, :NOPE_DIM].view(n_tokens, -1, VALUES_PER_SCALE),
    )
    kv[:, NOPE_DIM:] = packed[:, NOPE_DIM:].view(torch.bfloat16)
    return kv


@functools.cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What each byte means as e4m3, and as a scale (2^−127 … 2^127; 255 is infinite, as the bits are)."""
    every_byte = torch.arange(256, dtype=torch.uint8)
    values = every_byte.view(torch.float8_e4m3fn).float()
    scales = torch.exp2(every_byte.double() - 127).float()
    return values.to(device), scales.to(device)


def _finished(
    maximum_H: torch.Tensor, total_H: torch.Tensor, acc_HD: torch.Tensor, sink_H: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse of one row. ``== 0`` and not ``> 0``: a NaN sum is a NaN result, not an empty row."""
    is_empty_H = total_H == 0
    lse_H = maximum_H + torch.log(total_H)  # −inf + −inf where empty
    share_H = 1 / total_H
    if sink_H is not None:
        share_H = share_H * torch.sigmoid(lse_H - sink_H)  # l / (l + exp(sink)), without overflow
    out_HD = (acc_HD * share_H[:, None]).masked_fill(is_empty_H[:, None], 0.0)
    return out_HD.to(torch.bfloat16), lse_H


# ---- arguments


def _check_arguments(q: torch.Tensor, pools: list[Pool], sink: torch.Tensor | None) -> None:
    if q.dim() != 4 or q.shape[1] != 1 or q.shape[3] != HEAD_DIM or q.dtype != torch.bfloat16 or q.stride(3) != 1:
        raise ValueError(f"q_B1HD must be bf16 [B, 1, H, 512], last dimension contiguous; got {_shape(q)}")
    if sink is not None and (tuple(sink.shape) != (q.shape[2],) or sink.dtype != torch.float32):
        raise ValueError(f"attention_sink_H must be fp32 [{q.shape[2]}]; got {_shape(sink)}")
    for which, (pool, indices, page_size, length) in zip(("", "second_"), pools, strict=False):
        if page_size < 1:
            raise ValueError(f"{which}page_size must be at least 1; got {page_size}")
        page_bytes = page_bytes_of(page_size)
        if pool.dtype != torch.uint8 or pool.shape[1:] != (page_bytes,) or not pool.is_contiguous():
            raise ValueError(f"{which}kv_pool must be uint8 [P, {page_bytes}], contiguous; got {_shape(pool)}")
        if indices.dim() != 2 or indices.shape[0] != q.shape[0] or indices.dtype != torch.int32:
            raise ValueError(f"{which}indices_BT must be int32 [{q.shape[0]}, T]; got {_shape(indices)}")
        if indices.stride(1) != 1:
            raise ValueError(f"{which}indices_BT must have a contiguous last dimension; strides {indices.stride()}")
        if length is not None and (tuple(length.shape) != (q.shape[0],) or length.dtype != torch.int32):
            raise ValueError(f"{which}topk_length_B must be int32 [{q.shape[0]}]; got {_shape(length)}")


def _output(
    given: torch.Tensor | None, name: str, q: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    if given is None:
        return torch.empty(shape, dtype=dtype, device=q.device)
    if tuple(given.shape) != shape or given.dtype != dtype or not given.is_contiguous():
        raise ValueError(f"{name} must be {dtype} {list(shape)}, contiguous; got {_shape(given)}")
    return given


def _shape(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
