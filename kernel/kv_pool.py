"""The packed fp8 KV layout: where each byte of a token lies, how it is packed, unpacked, and appended in place.

Owns the layout and nothing else: it allocates no pages and knows no sequences. ``sparse_mla_decode.py`` carries its
own copy of the five numbers below, since that file must stand alone; a test holds the two together.

Dimension key: P pages; S tokens of a page; N tokens anywhere; D 512 = 448 nope + 64 rope; G 7 groups of 64 nope
values, one scale each.

One page, in bytes:
    0                  page_size × 576   a token's 448 float8 (e4m3) values, then its 64 bfloat16 values
    page_size × 576    page_size × 8     a token's 7 scale bytes (byte b means 2^(b − 127)), then one unused byte
    …                  padding           up to a multiple of 576

So both parts can be addressed as rows: the whole pool as rows of 576 bytes (a token), and as rows of 8 (its scales).
A token's place is one number: page × page_size + slot.

Source: the page layout is the fp8 KV cache that serving engines use for DeepSeek-V4; the rounding rule is own.
"""

from __future__ import annotations

import torch

NOPE_DIM, ROPE_DIM = 448, 64
HEAD_DIM = NOPE_DIM + ROPE_DIM
VALUES_PER_SCALE = 64
N_SCALES = NOPE_DIM // VALUES_PER_SCALE
TOKEN_BYTES = NOPE_DIM + 2 * ROPE_DIM
SCALE_BYTES = 8
E4M3_MAX = 448.0
EXPONENT_BIAS = 127
SMALLEST_AMAX = 2.0**-100  # a group of zeros still needs a scale whose byte is in range
DTYPE = torch.uint8


def page_bytes(page_size: int) -> int:
    """Bytes of one page, padding included: a multiple of 576."""
    return -(-page_size * (TOKEN_BYTES + SCALE_BYTES) // TOKEN_BYTES) * TOKEN_BYTES


def token_offset(place: int, page_size: int) -> int:
    """Byte in the pool where the token's 576 bytes begin."""
    page, slot = divmod(place, page_size)
    return page * page_bytes(page_size) + slot * TOKEN_BYTES


def scale_offset(place: int, page_size: int) -> int:
    """Byte in the pool where the token's 8 scale bytes begin."""
    page, slot = divmod(place, page_size)
    return page * page_bytes(page_size) + page_size * TOKEN_BYTES + slot * SCALE_BYTES


def empty_pool(n_pages: int, page_size: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A pool of zero bytes, uint8 [P, page_bytes]: zero values with the scale 2^−127."""
    return torch.zeros(n_pages, page_bytes(page_size), dtype=DTYPE, device=device)


def pack(kv_PSD: torch.Tensor) -> torch.Tensor:
    """Pack whole pages.

    Args:
        kv_PSD: finite float values [P, S, 512].

    Returns:
        uint8 [P, page_bytes(S)]. Unused bytes and padding are zero.
    """
    n_pages, page_size, _ = kv_PSD.shape
    pool = empty_pool(n_pages, page_size, kv_PSD.device)
    places = torch.arange(n_pages * page_size, device=kv_PSD.device)
    append(pool, page_size, places, kv_PSD.reshape(-1, HEAD_DIM))
    return pool


def append(pool: torch.Tensor, page_size: int, places_N: torch.Tensor, kv_ND: torch.Tensor) -> None:
    """Write the KV of N tokens at their places, in place; no other byte changes. No host sync: fit for CUDA graphs.

    Args:
        pool: uint8 [P, page_bytes], contiguous.
        page_size: tokens a page.
        places_N: int [N]; distinct, or which of two writers wins is not defined.
        kv_ND: finite float values [N, 512]; a value past 448 × 2^127 is beyond the format.
    """
    nope_bytes, scale_bytes = _quantised(kv_ND[:, :NOPE_DIM].float())
    rope_bytes = kv_ND[:, NOPE_DIM:].to(torch.bfloat16).contiguous().view(torch.uint8)
    at_token, at_scale = rows_of(places_N, page_size)
    pool.view(-1, TOKEN_BYTES)[at_token] = torch.cat([nope_bytes, rope_bytes], dim=1)
    pool.view(-1, SCALE_BYTES)[at_scale] = scale_bytes


def unpack(pool: torch.Tensor, page_size: int, places_N: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values of N tokens, [N, 512] in ``dtype``; exact in fp32 and float64 (also NaN and infinite ones).

    Scale byte 255 is infinite: the byte is the exponent field of a float, and all ones mean infinity.
    """
    at_token, at_scale = rows_of(places_N, page_size)
    packed = pool.view(-1, TOKEN_BYTES)[at_token]
    exponents_NG = pool.view(-1, SCALE_BYTES)[at_scale][:, :N_SCALES]
    scale_NG = torch.exp2(exponents_NG.to(torch.float64) - EXPONENT_BIAS).to(torch.float32).to(dtype)
    nope = packed[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn).to(dtype)
    rope = packed[:, NOPE_DIM:].contiguous().view(torch.bfloat16).to(dtype)
    return torch.cat([nope * scale_NG.repeat_interleave(VALUES_PER_SCALE, dim=1), rope], dim=1)


def rows_of(places_N: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers of tokens in the pool seen as rows of 576 bytes, and of their scales in rows of 8 bytes; int64."""
    page = torch.div(places_N, page_size, rounding_mode="floor").long()
    slot = places_N - page * page_size
    first_row = page * (page_bytes(page_size) // TOKEN_BYTES)
    return first_row + slot, (first_row + page_size) * (TOKEN_BYTES // SCALE_BYTES) + slot


def _quantised(nope_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 bytes [N, 448] and scale bytes [N, 8] of fp32 values [N, 448].

    The scale is the smallest power of two that brings the group's largest magnitude to at most 448, so nothing
    saturates, and division by it is exact: the only loss is the rounding to e4m3 (4 significant bits).
    """
    groups_NGV = nope_ND.view(-1, N_SCALES, VALUES_PER_SCALE)
    amax_NG = groups_NGV.abs().amax(dim=2).clamp_min(SMALLEST_AMAX)
    mantissa_NG, exponent_NG = torch.frexp(amax_NG / E4M3_MAX)  # amax / 448 = mantissa × 2^exponent, 0.5 ≤ mantissa < 1
    exponent_NG = exponent_NG - (mantissa_NG == 0.5).int()  # an exact power of two needs no more than itself
    scaled_NGV = torch.ldexp(groups_NGV, -exponent_NG[:, :, None])
    nope_bytes = scaled_NGV.to(torch.float8_e4m3fn).view(torch.uint8).view(-1, NOPE_DIM)
    scale_bytes = torch.zeros(nope_bytes.shape[0], SCALE_BYTES, dtype=DTYPE, device=nope_ND.device)
    scale_bytes[:, :N_SCALES] = exponent_NG + EXPONENT_BIAS
    return nope_bytes, scale_bytes
