"""The packed fp8 layout: every byte where it should be, nothing lost that the format can hold."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import kv_pool  # noqa: E402

pytestmark = pytest.mark.kernel
PAGE_SIZES = (1, 2, 64, 256)


def random_kv(*shape: int, magnitude: float = 1.0, seed: int = 0):
    """Normal values."""
    return torch.randn(*shape, 512, generator=torch.Generator().manual_seed(seed)) * magnitude


@pytest.mark.parametrize(("page_size", "expected"), [(1, 1152), (2, 1728), (64, 37440), (256, 149760)])
def test_page_bytes(page_size: int, expected: int) -> None:
    """A page is 584 bytes a token, padded to a multiple of 576."""
    assert kv_pool.page_bytes(page_size) == expected
    assert expected >= 584 * page_size
    assert expected % 576 == 0
    assert expected - 584 * page_size < 576


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e4])
def test_round_trip(page_size: int, magnitude: float) -> None:
    """Unpacking gives back the nope values to half a step of e4m3, and the rope values as bf16 rounds them."""
    n_pages = 5
    kv = random_kv(n_pages, page_size, magnitude=magnitude)
    pool = kv_pool.pack(kv)
    back = kv_pool.unpack(pool, page_size, torch.arange(n_pages * page_size), torch.float64)
    flat = kv.reshape(-1, 512).double()
    assert pool.shape == (n_pages, kv_pool.page_bytes(page_size))
    # e4m3: 3 bits after the point, so half a step is 2^-4 of the value, or of the group's smallest normal (2^-6 scaled)
    group_max = flat[:, :448].view(-1, 7, 64).abs().amax(2).repeat_interleave(64, 1)
    allowed = torch.maximum(flat[:, :448].abs() / 16, group_max / 224 * 2.0**-9)
    assert ((back - flat)[:, :448].abs() <= allowed).all()
    assert torch.equal(back[:, 448:], kv.reshape(-1, 512)[:, 448:].to(torch.bfloat16).double())


def test_what_the_format_holds_is_exact() -> None:
    """Values that went through the format once come back unchanged the second time."""
    places = torch.arange(64)
    once = kv_pool.unpack(kv_pool.pack(random_kv(1, 64)), 64, places, torch.float32)
    twice = kv_pool.unpack(kv_pool.pack(once[None]), 64, places, torch.float32)
    assert torch.equal(once, twice)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bytes_lie_where_the_offsets_say(page_size: int) -> None:
    """A token read byte by byte at its offsets, by the definition of e4m3 and UE8M0, is the token that was packed."""
    kv = random_kv(3, page_size)
    raw = bytes(kv_pool.pack(kv).view(-1).tolist())
    place = 2 * page_size + page_size // 2
    values = kv_pool.unpack(kv_pool.pack(kv), page_size, torch.tensor([place]), torch.float64)[0]
    token, scales = kv_pool.token_offset(place, page_size), kv_pool.scale_offset(place, page_size)
    assert token == 2 * kv_pool.page_bytes(page_size) + (page_size // 2) * 576
    for dim in (0, 63, 64, 447):
        assert values[dim].item() == e4m3(raw[token + dim]) * 2.0 ** (raw[scales + dim // 64] - 127)
    for dim in (448, 511):
        at = token + 448 + 2 * (dim - 448)
        (expected,) = struct.unpack("<f", b"\0\0" + raw[at : at + 2])
        assert values[dim].item() == expected


def e4m3(byte: int) -> float:
    """OCP's 8-bit float: 1 sign bit, 4 exponent bits with bias 7, 3 mantissa bits."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_append_changes_its_own_bytes_alone(page_size: int) -> None:
    """Appending one token writes its 576 and 7 bytes, equal to packing it, and no other byte of the pool."""
    pool = kv_pool.pack(random_kv(4, page_size))
    before = pool.clone()
    place = 2 * page_size + page_size - 1
    token = random_kv(1, seed=1)
    kv_pool.append(pool, page_size, torch.tensor([place]), token)
    changed = torch.zeros(pool.numel(), dtype=torch.bool)
    token_at, scale_at = kv_pool.token_offset(place, page_size), kv_pool.scale_offset(place, page_size)
    changed[token_at : token_at + 576] = True
    changed[scale_at : scale_at + 8] = True
    assert torch.equal(pool.view(-1)[~changed], before.view(-1)[~changed])
    read = kv_pool.unpack(pool, page_size, torch.tensor([place]), torch.float32)
    assert torch.equal(read, kv_pool.unpack(kv_pool.pack(token[None]), 1, torch.tensor([0]), torch.float32))


def test_scale_is_the_smallest_that_does_not_saturate() -> None:
    """A group with magnitude 448 × 2^n has the scale 2^n; the next larger number has twice that."""
    kv = torch.zeros(1, 3, 512)
    kv[0, 0, 0] = 448.0
    kv[0, 1, 0] = torch.nextafter(torch.tensor(448.0), torch.tensor(torch.inf))
    kv[0, 2, 0] = -448.0 * 2**-20
    raw = kv_pool.pack(kv).view(-1)
    assert [int(raw[kv_pool.scale_offset(place, 3)]) for place in range(3)] == [127, 128, 107]


def test_zeros_stay_zeros() -> None:
    """A token of zeros is packed with a valid scale and comes back as zeros."""
    pool = kv_pool.pack(torch.zeros(1, 2, 512))
    assert int(pool.view(-1)[kv_pool.scale_offset(0, 2)]) not in (0, 255)
    assert not kv_pool.unpack(pool, 2, torch.arange(2), torch.float32).any()


def test_extreme_bytes() -> None:
    """Byte 0x7f is NaN, scale byte 0 means 2^-127, scale byte 255 is infinite."""
    pool = kv_pool.empty_pool(1, 1)
    pool[0, 0], pool[0, 1], pool[0, 64] = 0x7F, 0x38, 0x38
    pool[0, 576 + 1] = 255
    values = kv_pool.unpack(pool, 1, torch.tensor([0]), torch.float64)[0]
    assert values[0].isnan()
    assert values[1].item() == 2.0**-127
    assert values[64].item() == torch.inf
