"""Sparse MLA decode over paged fp8 keys: a kernel file as a user has it, for the tests of ``orch check``.

Nothing imports it: the tests read its text. It gathers tokens behind an index load, dequantises them and feeds two
dots, so that num_stages moves the index load first and adds a buffer only at every second step.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1.0e30)
NOPE_WIDTH = tl.constexpr(448)  # fp8 with a scale for every 64
PADDED_WIDTH = tl.constexpr(512)
ROPE_WIDTH = tl.constexpr(64)  # bf16, behind the fp8
TOKEN_BYTES = tl.constexpr(576)
SCALE_BYTES = tl.constexpr(8)


@triton.jit
def _token_offsets(tokens, page_size, page_bytes):
    """Byte offsets of each token and of its scales: a page holds all its tokens, then all their scales."""
    page = (tokens // page_size).to(tl.int64) * page_bytes
    slot = (tokens % page_size).to(tl.int64)
    return page + slot * TOKEN_BYTES, page + page_size * TOKEN_BYTES + slot * SCALE_BYTES


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_H": 16, "BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_H": 32, "BLOCK_T": 16}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_H": 32, "BLOCK_T": 16}, num_warps=8, num_stages=2),
    ],
    key=["n_heads", "topk"],
)
@triton.jit
def sparse_mla_decode(
    query_ptr,
    pool_fp8_ptr,
    pool_u8_ptr,
    pool_bf16_ptr,
    index_ptr,
    length_ptr,
    out_ptr,
    lse_ptr,
    sm_scale,
    page_size,
    page_bytes,
    n_heads,
    topk,
    query_stride_b,
    query_stride_h,
    index_stride_b,
    out_stride_b,
    out_stride_s,
    out_stride_h,
    lse_stride_b,
    lse_stride_s,
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """One block of heads over one split of one request's tokens."""
    request = tl.program_id(0)
    split = tl.program_id(2)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = heads < n_heads
    columns = tl.arange(0, PADDED_WIDTH)
    rope_columns = tl.arange(0, ROPE_WIDTH)
    is_nope = columns < NOPE_WIDTH

    query_row = query_ptr + request * query_stride_b + heads[:, None] * query_stride_h
    query = tl.load(query_row + columns[None, :], mask=is_head[:, None] & is_nope[None, :], other=0.0)
    query_rope = tl.load(query_row + NOPE_WIDTH + rope_columns[None, :], mask=is_head[:, None], other=0.0)

    top = tl.full([BLOCK_H], MASKED, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    sum_nope = tl.zeros([BLOCK_H, PADDED_WIDTH], tl.float32)
    sum_rope = tl.zeros([BLOCK_H, ROPE_WIDTH], tl.float32)

    n_tokens = tl.minimum(tl.load(length_ptr + request), topk)
    n_per_split = tl.cdiv(tl.cdiv(n_tokens, BLOCK_T), SPLITS) * BLOCK_T
    first = split * n_per_split
    last = tl.minimum(first + n_per_split, n_tokens)
    for start in range(first, last, BLOCK_T):
        places = start + tl.arange(0, BLOCK_T)
        tokens = tl.load(index_ptr + request * index_stride_b + places, mask=places < last, other=-1)
        is_token = tokens >= 0
        is_place = places < last  # the index is filled from the front: beyond the length both are false
        at, scales_at = _token_offsets(tl.where(is_token, tokens, 0), page_size, page_bytes)
        is_value = is_token[:, None] & is_nope[None, :]
        packed = tl.load((pool_fp8_ptr + at)[:, None] + columns[None, :], mask=is_value, other=0.0)
        exponents = tl.load((pool_u8_ptr + scales_at)[:, None] + (columns // 64)[None, :], mask=is_value, other=127)
        rope_at = (at + NOPE_WIDTH) // 2
        rope = tl.load(pool_bf16_ptr + rope_at[:, None] + rope_columns[None, :], mask=is_token[:, None], other=0.0)
        nope = packed.to(tl.float32) * tl.exp2(exponents.to(tl.float32) - 127.0)
        nope = tl.where(is_value, nope, 0.0).to(tl.bfloat16)

        scores = tl.dot(query, tl.trans(nope)) + tl.dot(query_rope, tl.trans(rope))
        scores = tl.where(is_place[None, :], scores * (sm_scale * LOG2E), MASKED)
        new_top = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(top - new_top)
        weights = tl.where(is_place[None, :], tl.exp2(scores - new_top[:, None]), 0.0)
        total = total * shrink + tl.sum(weights, 1)
        sum_nope = sum_nope * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), nope)
        sum_rope = sum_rope * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), rope)
        top = new_top

    divisor = tl.where(total > 0, total, 1.0)
    out_row = out_ptr + request * out_stride_b + split * out_stride_s + heads[:, None] * out_stride_h
    is_out = is_head[:, None] & is_nope[None, :]
    tl.store(out_row + columns[None, :], (sum_nope / divisor[:, None]).to(tl.bfloat16), mask=is_out)
    out_rope = (sum_rope / divisor[:, None]).to(tl.bfloat16)
    tl.store(out_row + NOPE_WIDTH + rope_columns[None, :], out_rope, mask=is_head[:, None])
    lse = tl.where(total > 0, top / LOG2E + tl.log(divisor), float("-inf"))
    tl.store(lse_ptr + request * lse_stride_b + split * lse_stride_s + heads, lse, mask=is_head)
