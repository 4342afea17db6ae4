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

The work is cut into tiles of ``BLOCK_T`` tokens of one row, the rows one after the other, a row's second pool after
its first. Every program takes the same number of tiles in a row (``tiles_per_program``), so that all SMs end together
whatever the batch. A program that holds a whole row writes its result; where a row is shared, each writes what it
has (running maximum, sum, weighted values), and the merge kernel joins them.

Inside a program a tile's bytes are asked for one tile ahead, decoded to bf16 once, and used by both products from
shared memory: S^T = KV Q^T with tokens on M and heads on N, so that 16 heads fill a tensor-core tile without padding,
then O^T += KV^T P^T.

Two ways to compute, one algorithm (online softmax over tiles of ``BLOCK_T`` tokens):
    CUDA tensors and triton    the kernels as above, with the config that ``CHOSEN`` names for this GPU, else with the
                               one that is the fastest of the list when a shape runs for the first time
    otherwise                  torch, one row after the other; there is no autotuning, so ``BLOCK_T`` of the FIRST
                               config in the list is the tile, and the rest of it has no effect. TRITON_INTERPRET=1
                               runs the Triton kernels on a CPU instead, also with the first config.

Source: own. The online softmax with partial results merged by log-sum-exp is the scheme of FlashAttention and
Flash-Decoding, equal shares of tiles that cross row borders are the scheme of stream-K (rules only); the page layout is
the one that serving engines use for DeepSeek-V4's fp8 KV cache.
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

    def _jit(fn: Any = None, **_: Any) -> Any:
        return fn if fn is not None else lambda fn: fn

    triton = SimpleNamespace(Config=_Config, autotune=_autotune, jit=_jit)
    tl = SimpleNamespace(constexpr=object)

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")

NOPE_DIM, ROPE_DIM, HEAD_DIM = 448, 64, 512
TOKEN_BYTES, SCALE_BYTES = 576, 8
VALUES_PER_SCALE = 64
UNIT_BYTES = 64
"""Places are counted in these: a token's 576 bytes and a page are whole numbers of them, and 31 bits reach 128 GiB."""
MERGE_AT_ONCE = 16
MOST_HEADS_SMALL = 32
SMALL_BYTES = 200_000
"""GPUs with less shared memory a program have no tensor cores that read both operands from it: not more heads there."""
MULTIPROCESSORS_INTERPRETED = 3  # makes the interpreter share rows between programs, as a GPU would
LOG2_E = math.log2(math.e)

PLAIN, CONVERT, BITS = 0, 1, 2
"""How e4m3 becomes bf16: in plain Triton (the interpreter), by the instruction (sm_89 and later), from its bits."""

Pool = tuple[torch.Tensor, torch.Tensor, int, "torch.Tensor | None"]
"""(kv_pool, indices_BT, page_size, topk_length_B or None)"""


CHOSEN: dict[tuple[int, int], dict[int, tuple[tuple[float, int], ...]]] = {
    (9, 0): {
        16: ((16, 0), (math.inf, 2)),
        32: ((2, 0), (16, 1), (math.inf, 3)),
        64: ((2, 0), (16, 2), (110, 3), (math.inf, 4)),
        128: ((2, 0), (45, 3), (math.inf, 4)),
    }
}
"""By compute capability and heads (rounded up): up to how many rows which config of the list, by its place from 0.

As ``python -m kernel.tuner`` found on an H200 at topk 512; a border lies at the geometric mean of two measured batches.
"""
N_CHOSEN_FROM = 5
"""The length of the list that CHOSEN speaks of: one of another length (a config forced, one added) is tuned instead."""


def config_for(capability: tuple[int, int], n_heads: int, n_rows: int) -> Any:
    """The config that CHOSEN names for this shape on such a GPU; None where it names none."""
    if len(CONFIGS) != N_CHOSEN_FROM:
        return None
    places = CHOSEN.get(capability, {}).get(_rounded_heads(n_heads), ())
    return next((CONFIGS[place] for most_rows, place in places if n_rows <= most_rows), None)


def _rounded_heads(n_heads: int) -> int:
    return max(16, 1 << (n_heads - 1).bit_length())


def _rows_bucket(n_rows: int) -> int:
    """Up to the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 …: what is tuned apart."""
    power = 1 << (n_rows - 1).bit_length()
    return power * 3 // 4 if n_rows <= power * 3 // 4 else power


def _fitting(configs: list[Any], arguments: dict[str, Any], **_: Any) -> list[Any]:
    """The configs that launch on this device and waste no heads; the smallest where none does."""
    limit = _shared_bytes_limit(arguments["q_ptr"].device)
    most_heads = _rounded_heads(arguments["n_heads"])
    if limit < SMALL_BYTES:
        most_heads = min(most_heads, MOST_HEADS_SMALL)
    fitting = [one for one in configs if shared_bytes_of(one) <= limit and one.kwargs["BLOCK_H"] <= most_heads]
    return fitting or [min(configs, key=shared_bytes_of)]


def shared_bytes_of(config: Any) -> int:
    """Shared memory of a program, at most: a tile of tokens and the heads in bf16, and the weights between them."""
    block_h, block_t = config.kwargs["BLOCK_H"], config.kwargs["BLOCK_T"]
    return 2 * HEAD_DIM * (block_t + block_h) + 2 * block_t * block_h + 1024


@triton.jit
def _bf16_of(words, scale, E4M3: tl.constexpr):
    """Four e4m3 a word [T, 16], times the scale of their row [T, 1]: [T, 64] in the type of ``scale``."""
    scales = tl.broadcast_to(scale, words.shape)
    if E4M3 == 1:
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            """{
            .reg .b16 l, h, a, b, c, d;
            .reg .b32 p, q, s, zero;
            .reg .f32 x, y, z, w;
            mov.b32 zero, 0x80008000;
            mov.b32 s, {$5, $5};
            mov.b32 {l, h}, $4;
            cvt.rn.f16x2.e4m3x2 p, l;
            cvt.rn.f16x2.e4m3x2 q, h;
            mov.b32 {a, b}, p;
            mov.b32 {c, d}, q;
            cvt.f32.f16 x, a;
            cvt.f32.f16 y, b;
            cvt.f32.f16 z, c;
            cvt.f32.f16 w, d;
            cvt.rn.bf16x2.f32 p, y, x;
            cvt.rn.bf16x2.f32 q, w, z;
            fma.rn.bf16x2 p, p, s, zero;
            fma.rn.bf16x2 q, q, s, zero;
            mov.b32 {$0, $1}, p;
            mov.b32 {$2, $3}, q;
            }""",
            "=h,=h,=h,=h,r,h",
            [words, scales],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )
    elif E4M3 == 2:
        # The seven bits of exponent and mantissa, put at the same place of a bf16, are the value times 2^-120.
        v0, v1, v2, v3 = tl.inline_asm_elementwise(
            """{
            .reg .b32 p, q, t, s, zero, bias;
            mov.b32 zero, 0x80008000;
            mov.b32 bias, 0x7b807b80;
            mov.b32 s, {$5, $5};
            prmt.b32 p, $4, 0, 0x1404;
            prmt.b32 q, $4, 0, 0x3424;
            and.b32 t, p, 0x80008000;
            shr.u32 p, p, 4;
            and.b32 p, p, 0x07f007f0;
            or.b32 p, p, t;
            and.b32 t, q, 0x80008000;
            shr.u32 q, q, 4;
            and.b32 q, q, 0x07f007f0;
            or.b32 q, q, t;
            fma.rn.bf16x2 p, p, bias, zero;
            fma.rn.bf16x2 q, q, bias, zero;
            fma.rn.bf16x2 p, p, s, zero;
            fma.rn.bf16x2 q, q, s, zero;
            mov.b32 {$0, $1}, p;
            mov.b32 {$2, $3}, q;
            }""",
            "=h,=h,=h,=h,r,h",
            [words, scales],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=1,
        )
    else:
        v0 = _e4m3_of(words & 0xFF) * scales
        v1 = _e4m3_of((words >> 8) & 0xFF) * scales
        v2 = _e4m3_of((words >> 16) & 0xFF) * scales
        v3 = _e4m3_of((words >> 24) & 0xFF) * scales
    return tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), (words.shape[0], 64))


@triton.jit
def _e4m3_of(byte):
    """fp32; the plain way."""
    exponent = (byte >> 3) & 15
    mantissa = (byte & 7).to(tl.float32)
    magnitude = tl.where(
        exponent == 0, mantissa * 0.001953125, (8.0 + mantissa) * tl.exp2((exponent - 10).to(tl.float32))
    )
    magnitude = tl.where((byte & 0x7F) == 0x7F, float("nan"), magnitude)
    return tl.where(byte >= 0x80, -magnitude, magnitude)


@triton.jit
def _scale_of(words, group: tl.constexpr, E4M3: tl.constexpr):
    """2^(byte - 127) of one of the 7 groups of 64: the byte is the exponent field, and 0 there means 2^-127."""
    byte = (words >> (8 * group)).to(tl.int32) & 0xFF
    if E4M3 == 0:
        return tl.where(byte == 0, 0x00400000, byte << 23).to(tl.float32, bitcast=True)
    return tl.where(byte == 0, 0x0040, byte << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _halves(words, E4M3: tl.constexpr):
    """The two bf16 of a word."""
    if E4M3 == 0:
        low = (words << 16).to(tl.float32, bitcast=True)
        return low, (words & -65536).to(tl.float32, bitcast=True)
    low = words.to(tl.int16).to(tl.bfloat16, bitcast=True)
    return low, (words >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _beside(left, right):
    """[T, C] and [T, C] to [T, 2C], without moving a number between threads."""
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (left.shape[0], 2 * left.shape[1]))


@triton.jit
def _decoded(raw, E4M3: tl.constexpr):
    """The bytes of a tile as [BLOCK_T, 512] in bf16: every product below is of these."""
    w0, w1, w2, w3, w4, w5, w6, rope_a, rope_b, scales = raw
    n01 = _beside(_bf16_of(w0, _scale_of(scales, 0, E4M3), E4M3), _bf16_of(w1, _scale_of(scales, 1, E4M3), E4M3))
    n23 = _beside(_bf16_of(w2, _scale_of(scales, 2, E4M3), E4M3), _bf16_of(w3, _scale_of(scales, 3, E4M3), E4M3))
    n45 = _beside(_bf16_of(w4, _scale_of(scales, 4, E4M3), E4M3), _bf16_of(w5, _scale_of(scales, 5, E4M3), E4M3))
    n6 = _bf16_of(w6, _scale_of(scales, 6, E4M3), E4M3)
    # A thread holds 16 numbers of each group of 64; so that it does of the rope too, that is read in two turns.
    a_low, a_high = _halves(rope_a, E4M3)
    b_low, b_high = _halves(rope_b, E4M3)
    a = tl.reshape(tl.join(a_low, a_high), (rope_a.shape[0], 4, 8))
    b = tl.reshape(tl.join(b_low, b_high), (rope_a.shape[0], 4, 8))
    rope = tl.reshape(tl.permute(tl.join(a, b), (0, 1, 3, 2)), (rope_a.shape[0], 64))
    return _beside(_beside(n01, n23), _beside(n45, _beside(n6, rope)))


@triton.jit
def _tokens_of(tile, n_tiles_first, indices_ptr, length, second_indices_ptr, second_length, end, BLOCK_T: tl.constexpr):
    """Places of a tile's tokens, -1 for none; past ``end`` there are none."""
    is_first = tile < n_tiles_first
    slots = tl.where(is_first, tile, tile - n_tiles_first) * BLOCK_T + tl.arange(0, BLOCK_T)
    source = indices_ptr
    if not is_first:
        source = second_indices_ptr
    n_slots = tl.where(tile < end, tl.where(is_first, length, second_length), 0)
    return tl.load(source + slots, mask=slots < n_slots, other=-1)


@triton.jit
def _bytes_of(
    token,
    is_first,
    kv_ptr,
    second_kv_ptr,
    page_units,
    second_page_units,
    page_shift,
    second_page_shift,
    HAS_SECOND: tl.constexpr,
):
    """What a tile consists of, still as bytes: seven groups and the rope in two turns, int32 [BLOCK_T, 16] each, and
    the scales, int64 [BLOCK_T, 1]. A slot without a token reads as zeros with scale 1: what lies there may be inf or
    NaN, and a weight of 0 would not silence it (0 x inf = NaN)."""
    is_token = (token >= 0)[:, None]
    place = tl.where(token >= 0, token, 0).to(tl.uint32)
    pool_ptr, units, shift = kv_ptr, page_units, page_shift
    if HAS_SECOND:  # noqa: SIM102  (one is known to the compiler, the other to the program)
        if not is_first:
            pool_ptr, units, shift = second_kv_ptr, second_page_units, second_page_shift
    page = place >> shift
    slot = place - (page << shift)
    unit = page * units + slot * 9
    scales_begin = 576 << shift
    begin = pool_ptr + unit.to(tl.uint64) * 64
    scales_at = begin + scales_begin - (slot * 568).to(tl.uint64)
    scales = tl.load(scales_at.to(tl.pointer_type(tl.int64))[:, None], mask=is_token, other=0x7F7F7F7F7F7F7F)
    row = begin.to(tl.pointer_type(tl.int32))[:, None]
    word = tl.arange(0, 16)[None, :]
    at = row + word
    w0 = tl.load(at, mask=is_token, other=0)
    w1 = tl.load(at + 16, mask=is_token, other=0)
    w2 = tl.load(at + 32, mask=is_token, other=0)
    w3 = tl.load(at + 48, mask=is_token, other=0)
    w4 = tl.load(at + 64, mask=is_token, other=0)
    w5 = tl.load(at + 80, mask=is_token, other=0)
    w6 = tl.load(at + 96, mask=is_token, other=0)
    at_rope = row + 112 + (word // 4 * 8 + word % 4)
    rope_a = tl.load(at_rope, mask=is_token, other=0)
    rope_b = tl.load(at_rope + 4, mask=is_token, other=0)
    return w0, w1, w2, w3, w4, w5, w6, rope_a, rope_b, scales


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_H": 16, "BLOCK_T": 32, "PER_SM": 2}, num_warps=4, num_stages=1),
        triton.Config({"BLOCK_H": 16, "BLOCK_T": 64, "PER_SM": 1}, num_warps=8, num_stages=1),
        triton.Config({"BLOCK_H": 16, "BLOCK_T": 128, "PER_SM": 1}, num_warps=8, num_stages=1),
        triton.Config({"BLOCK_H": 32, "BLOCK_T": 128, "PER_SM": 1}, num_warps=8, num_stages=1),
        triton.Config({"BLOCK_H": 64, "BLOCK_T": 32, "PER_SM": 1}, num_warps=8, num_stages=1),
    ],
    key=["rows_bucket", "n_heads", "topk", "second_topk", "n_multiprocessors"],
    prune_configs_by={"early_config_prune": _fitting},
)
# Triton compiles anew for an argument that is 1 or a multiple of 16: of these that would gain nothing.
@triton.jit(
    do_not_specialize=[
        *("n_rows", "n_heads", "topk", "second_topk", "n_multiprocessors", "rows_bucket"),
        *("page_units", "page_shift", "second_page_units", "second_page_shift"),
        *("indices_stride_b", "second_indices_stride_b"),
    ]
)
def sparse_mla_decode_kernel(
    q_ptr,  # bf16 [B, 1, H, D]
    kv_ptr,  # the pool's bytes
    indices_ptr,  # int32 [B, T]
    length_ptr,  # int32 [B]; read only if HAS_LENGTH
    second_kv_ptr,  # the same of a second pool; read only if HAS_SECOND
    second_indices_ptr,
    second_length_ptr,  # read only if HAS_SECOND_LENGTH
    sink_ptr,  # fp32 [H]; read only if HAS_SINK
    out_ptr,  # [B, 1, H, D], contiguous: rows that one program holds alone
    lse_ptr,  # fp32 [B, 1, H], contiguous, likewise
    acc_ptr,  # fp32 [parts, H, D]: weighted values, not yet divided, of rows that programs share
    max_sum_ptr,  # fp32 [parts, H, 2]: running maximum (base 2), sum of weights
    qk_scale,  # softmax scale × log2(e): the kernel works in base 2
    page_units,  # a page in units of 64 bytes, and its tokens as a power of two
    page_shift,
    second_page_units,
    second_page_shift,
    n_rows,
    n_heads,
    topk,
    second_topk,
    n_multiprocessors,
    rows_bucket,  # batch rounded up, see _rows_bucket: unused here, but the best config depends on it
    q_stride_b,
    q_stride_h,
    indices_stride_b,
    second_indices_stride_b,
    HAS_SECOND: tl.constexpr,
    HAS_LENGTH: tl.constexpr,
    HAS_SECOND_LENGTH: tl.constexpr,
    HAS_SINK: tl.constexpr,
    E4M3: tl.constexpr,
    BLOCK_H: tl.constexpr,  # heads of a program; those past n_heads are masked
    BLOCK_T: tl.constexpr,  # tokens of a tile
    PER_SM: tl.constexpr,  # programs that an SM runs at once
    EARLY: tl.constexpr,  # the merge kernel is launched while this one runs, and waits for its end
):
    """One program: BLOCK_H heads, a run of tiles."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    heads = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    program = tl.program_id(1)
    dims = tl.arange(0, 512)
    is_head = heads < n_heads
    n_tiles = tl.cdiv(topk, BLOCK_T)
    if HAS_SECOND:
        n_tiles += tl.cdiv(second_topk, BLOCK_T)
    n_slots = tl.maximum(n_multiprocessors * PER_SM // tl.num_programs(0), 1)
    tiles_per_program = tl.cdiv(n_rows * n_tiles, n_slots)
    first = program * tiles_per_program
    last = tl.minimum(first + tiles_per_program, n_rows * n_tiles)

    row_64 = (first // n_tiles).to(tl.int64)  # counted by hand: the interpreter's loop variable is a plain number
    for row in tl.range(first // n_tiles, tl.cdiv(last, n_tiles)):
        share_begin = tl.maximum(first - row * n_tiles, 0)
        share_end = tl.minimum(last - row * n_tiles, n_tiles)
        length = topk
        if HAS_LENGTH:
            length = tl.maximum(tl.minimum(tl.load(length_ptr + row), topk), 0)
        n_tiles_first = tl.cdiv(length, BLOCK_T)
        n_tiles_row = n_tiles_first
        second_length = 0
        if HAS_SECOND:
            second_length = second_topk
            if HAS_SECOND_LENGTH:
                second_length = tl.maximum(tl.minimum(tl.load(second_length_ptr + row), second_topk), 0)
            n_tiles_row += tl.cdiv(second_length, BLOCK_T)
        # A row shorter than its list is shared in the same proportions.
        begin = share_begin * n_tiles_row // n_tiles
        end = share_end * n_tiles_row // n_tiles
        row_indices = indices_ptr + row_64 * indices_stride_b
        row_second_indices = second_indices_ptr + row_64 * second_indices_stride_b

        token = _tokens_of(begin, n_tiles_first, row_indices, length, row_second_indices, second_length, end, BLOCK_T)
        token_1 = _tokens_of(
            begin + 1, n_tiles_first, row_indices, length, row_second_indices, second_length, end, BLOCK_T
        )
        token_2 = _tokens_of(
            begin + 2, n_tiles_first, row_indices, length, row_second_indices, second_length, end, BLOCK_T
        )
        raw = _bytes_of(
            token,
            begin < n_tiles_first,
            kv_ptr,
            second_kv_ptr,
            page_units,
            second_page_units,
            page_shift,
            second_page_shift,
            HAS_SECOND,
        )
        # A finite "nothing yet": −inf − −inf would be NaN in the rescaling below.
        maximum = tl.full([BLOCK_H], -1.0e30, tl.float32)
        total = tl.zeros([BLOCK_T, BLOCK_H], tl.float32)
        acc = tl.zeros([512, BLOCK_H], tl.float32)
        q_heads = q_ptr + row_64 * q_stride_b
        q = tl.load(q_heads + heads[None, :] * q_stride_h + dims[:, None], mask=is_head[None, :], other=0.0)
        if E4M3 == 0:  # the interpreter, whose bf16 dots are wrong
            q = q.to(tl.float32)
        kv = _decoded(raw, E4M3)
        for tile in tl.range(begin, end):
            is_token = token >= 0
            raw = _bytes_of(
                token_1,
                tile + 1 < n_tiles_first,
                kv_ptr,
                second_kv_ptr,
                page_units,
                second_page_units,
                page_shift,
                second_page_shift,
                HAS_SECOND,
            )
            score = tl.dot(kv, q)
            score = tl.where(is_token[:, None], score * qk_scale, -1.0e30)
            new_maximum = tl.maximum(maximum, tl.max(score, 0))
            rescale = tl.exp2(maximum - new_maximum)
            weight = tl.where(is_token[:, None], tl.exp2(score - new_maximum[None, :]), 0.0)
            total = total * rescale[None, :] + weight
            acc = tl.dot(tl.trans(kv), weight.to(kv.dtype), acc * rescale[None, :])
            maximum = new_maximum
            # kv is handed to the next iteration: as such the compiler keeps it in shared memory, once, for both
            # products. Decoded at the top of the loop it would move it through registers for each.
            kv = _decoded(raw, E4M3)
            token = token_1
            token_1 = token_2
            token_2 = _tokens_of(
                tile + 3, n_tiles_first, row_indices, length, row_second_indices, second_length, end, BLOCK_T
            )

        total_h = tl.sum(total, 0)
        at = heads[None, :] * 512 + dims[:, None]
        is_stored = is_head[None, :]
        if (share_begin == 0) & (share_end == n_tiles):
            factor, lse = _finished_factor(maximum, total_h, sink_ptr + heads, is_head, HAS_SINK)
            out = acc * factor[None, :]
            tl.store(out_ptr + row_64 * n_heads * 512 + at, out.to(out_ptr.dtype.element_ty), mask=is_stored)
            tl.store(lse_ptr + row_64 * n_heads + heads, lse, mask=is_head)
        else:
            part = row_64 + program  # rises by one at least from each part to the next, so no two have the same
            tl.store(acc_ptr + part * n_heads * 512 + at, acc, mask=is_stored)
            tl.store(max_sum_ptr + (part * n_heads + heads) * 2, maximum, mask=is_head)
            tl.store(max_sum_ptr + (part * n_heads + heads) * 2 + 1, total_h, mask=is_head)
        row_64 += 1


@triton.jit
def _finished_factor(maximum, total, sink_at, is_head, HAS_SINK: tl.constexpr):
    """(what the weighted values are multiplied by, lse) of heads whose tokens are all counted."""
    # "== 0" and not "> 0": a NaN sum is a NaN result, not an empty row.
    is_empty = total == 0.0
    safe_total = tl.where(is_empty, 1.0, total)
    lse = tl.where(is_empty, float("-inf"), maximum * 0.6931471805599453 + tl.log(safe_total))
    if HAS_SINK:
        sink = tl.load(sink_at, mask=is_head, other=0.0) * 1.4426950408889634
        reference = tl.maximum(maximum, sink)  # the sink may be far above every score
        weight = tl.exp2(maximum - reference)
        factor = weight / (weight * safe_total + tl.exp2(sink - reference))
    else:
        factor = 1.0 / safe_total
    return tl.where(is_empty, 0.0, factor), lse


@triton.jit(do_not_specialize=["n_heads", "n_tiles", "tiles_per_program"])
def sparse_mla_merge_kernel(
    acc_ptr,  # fp32 [parts, H, D]
    max_sum_ptr,  # fp32 [parts, H, 2]
    sink_ptr,  # fp32 [H]; read only if HAS_SINK
    out_ptr,  # [B, 1, H, D], contiguous
    lse_ptr,  # fp32 [B, 1, H], contiguous
    n_heads,
    n_tiles,
    tiles_per_program,
    HAS_SINK: tl.constexpr,
    AT_ONCE: tl.constexpr,  # parts of a row that are read at a time
    HEADS: tl.constexpr,  # of a program
    EARLY: tl.constexpr,  # launched while the kernel that makes the parts still runs
):
    """One program: some heads of one row, which programs shared. Joins their parts, then applies the sink."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = heads < n_heads
    first = row * n_tiles // tiles_per_program
    last = ((row + 1) * n_tiles - 1) // tiles_per_program
    if EARLY:
        # Every program waits, also one with nothing to join: what comes behind this kernel waits for it alone.
        tl.extra.cuda.gdc_wait()
    if first < last:
        dims = tl.arange(0, 512)
        maximum = tl.full([HEADS], -1.0e30, tl.float32)
        total = tl.zeros([HEADS], tl.float32)
        out = tl.zeros([HEADS, 512], tl.float32)
        for begin in tl.range(first, last + 1, AT_ONCE):
            program = begin + tl.arange(0, AT_ONCE)
            is_part = (program <= last)[:, None] & is_head[None, :]
            at = ((row + program) * n_heads)[:, None] + heads[None, :]
            part_maximum = tl.load(max_sum_ptr + at * 2, mask=is_part, other=-1.0e30)
            part_total = tl.load(max_sum_ptr + at * 2 + 1, mask=is_part, other=0.0)
            acc = tl.load(acc_ptr + at[:, :, None] * 512 + dims[None, None, :], mask=is_part[:, :, None], other=0.0)
            new_maximum = tl.maximum(maximum, tl.max(part_maximum, 0))
            rescale = tl.exp2(maximum - new_maximum)
            weight = tl.exp2(part_maximum - new_maximum[None, :])
            total = total * rescale + tl.sum(weight * part_total, 0)
            out = out * rescale[:, None] + tl.sum(weight[:, :, None] * acc, 0)
            maximum = new_maximum
        factor, lse = _finished_factor(maximum, total, sink_ptr + heads, is_head, HAS_SINK)
        at_out = (row * n_heads + heads)[:, None] * 512 + dims[None, :]
        tl.store(out_ptr + at_out, (out * factor[:, None]).to(out_ptr.dtype.element_ty), mask=is_head[:, None])
        tl.store(lse_ptr + row * n_heads + heads, lse, mask=is_head)


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
        page_size: tokens a page; a power of two.
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


def parts_of(config: Any, n_rows: int, n_heads: int, topks: list[int], n_multiprocessors: int) -> tuple[int, int, int]:
    """How the work is shared: (tiles a row, tiles a program, programs), for one block of heads."""
    block_h, block_t, per_sm = (config.kwargs[name] for name in ("BLOCK_H", "BLOCK_T", "PER_SM"))
    n_tiles = sum(-(-topk // block_t) for topk in topks)
    n_slots = max(1, n_multiprocessors * per_sm // -(-n_heads // block_h))
    tiles_per_program = -(-n_rows * n_tiles // n_slots)
    return n_tiles, tiles_per_program, -(-n_rows * n_tiles // tiles_per_program)


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
    """Launch the kernel, and the merge kernel where programs share rows."""
    n_rows, _, n_heads, _ = q.shape
    topks = [indices.shape[1] for _, indices, _, _ in pools]
    if sum(topks) == 0:
        out.zero_()
        lse.fill_(-math.inf)
        return
    n_multiprocessors = _n_multiprocessors(q.device)
    if config is None:
        config = CONFIGS[0] if INTERPRETED else config_for(_capability(q.device), n_heads, n_rows)
    most_parts = max(
        parts_of(one, n_rows, n_heads, topks, n_multiprocessors)[2] for one in ([config] if config else CONFIGS)
    )
    acc = torch.empty(n_rows + most_parts, n_heads, HEAD_DIM, dtype=torch.float32, device=q.device)
    max_sum = torch.empty(n_rows + most_parts, n_heads, 2, dtype=torch.float32, device=q.device)
    # The interpreter's fp32 → bf16 cuts instead of rounding, which doubles the error: there torch rounds.
    result = torch.empty_like(out, dtype=torch.float32) if INTERPRETED else out
    (pool, indices, page_size, length), *others = pools
    second_pool, second_indices, second_page_size, second_length = others[0] if others else (pool, indices, 1, None)

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        shared = SimpleNamespace(kwargs=chosen)
        n_programs = parts_of(shared, n_rows, n_heads, topks, n_multiprocessors)[2]
        return -(-n_heads // chosen["BLOCK_H"]), n_programs

    early = _launches_early(q.device)
    launch = sparse_mla_decode_kernel if config is None else sparse_mla_decode_kernel.fn
    launch[grid](
        q,
        pool,
        indices,
        indices if length is None else length,
        second_pool,
        second_indices,
        second_indices if second_length is None else second_length,
        lse if sink is None else sink,
        result,
        lse,
        acc,
        max_sum,
        scale * LOG2_E,
        page_bytes_of(page_size) // UNIT_BYTES,
        page_size.bit_length() - 1,
        page_bytes_of(second_page_size) // UNIT_BYTES,
        second_page_size.bit_length() - 1,
        n_rows,
        n_heads,
        topks[0],
        topks[1] if others else 0,
        n_multiprocessors,
        _rows_bucket(n_rows),
        q.stride(0),
        q.stride(2),
        indices.stride(0),
        second_indices.stride(0),
        HAS_SECOND=bool(others),
        HAS_LENGTH=length is not None,
        HAS_SECOND_LENGTH=second_length is not None,
        HAS_SINK=sink is not None,
        E4M3=_e4m3_way(q.device),
        EARLY=early,
        **(_arguments_of(config) if config else {}),
    )
    chosen = config or sparse_mla_decode_kernel.best_config
    n_tiles, tiles_per_program, _ = parts_of(chosen, n_rows, n_heads, topks, n_multiprocessors)
    if tiles_per_program % n_tiles:
        most = -(-n_tiles // tiles_per_program) + 1
        at_once = min(MERGE_AT_ONCE, 1 << (most - 1).bit_length())
        heads_at_once = max(1, min(4, 16 // at_once))
        sparse_mla_merge_kernel[(n_rows, -(-n_heads // heads_at_once))](
            acc,
            max_sum,
            lse if sink is None else sink,
            result,
            lse,
            n_heads,
            n_tiles,
            tiles_per_program,
            HAS_SINK=sink is not None,
            AT_ONCE=at_once,
            HEADS=heads_at_once,
            EARLY=early,
            num_warps=4,
            **({"launch_pdl": True} if early else {}),
        )
    if result is not out:
        out.copy_(result)


def _arguments_of(config: Any) -> dict[str, Any]:
    """A config as arguments of a launch; the interpreter takes its constants only."""
    return dict(config.kwargs) if INTERPRETED else dict(config.all_kwargs())


@functools.cache
def _n_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return MULTIPROCESSORS_INTERPRETED
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _shared_bytes_limit(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@functools.cache
def _launches_early(device: torch.device) -> bool:
    """Whether a kernel can be launched before the one that it depends on has ended."""
    return not INTERPRETED and device.type == "cuda" and _capability(device) >= (9, 0)


@functools.cache
def _e4m3_way(device: torch.device) -> int:
    if INTERPRETED or device.type != "cuda":
        return PLAIN
    return CONVERT if _capability(device) >= (8, 9) else BITS


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
        if page_size < 1 or page_size & (page_size - 1):
            raise ValueError(f"{which}page_size must be a power of two; got {page_size}")
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
