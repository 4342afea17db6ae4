"""Named shapes and edge cases for the kernel, as data, and the random inputs that a case stands for.

Owns what is tried, not how it is judged (``check.py``). A case is small enough for the float64 reference; those with
``on_interpreter`` are small enough for Triton's interpreter too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

import torch

from kernel import kv_pool

NAN_BYTE = 0x7F  # e4m3's NaN
INFINITE_SCALE_BYTE = 255
RANDOM_CASE_WORK = 40_000
"""Rows × heads × slots of a random case, at most (one row in any case)."""
RANDOM_CASE_FORMS = ((False, False, False), (False, True, True), (True, False, True), (True, True, False))
"""(second pool, lengths, sink) of random cases. Not all eight: a kernel is compiled anew for each."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the kernel.

    Attributes:
        name: what the case is about.
        n_rows, n_heads, topk, page_size: shape of the call.
        n_pages: pages of the pool; the default gives more tokens than any list names.
        missing: which slots hold −1.
        lengths: topk_length of the rows, repeated as needed; None: not passed. May exceed topk.
        sink: which attention sink is passed.
        second_topk, second_page_size: a second pool, where second_topk is not None.
        poison: bytes that decode to NaN and infinity in every place which no list names, and in place 0, where a
            masked slot that is read at all is read.
        nan_token: one token that row 0 really attends to is NaN: the whole row must be NaN, and no other.
        magnitude: standard deviation of KV values; q has 1.
        on_interpreter: small enough for Triton's interpreter.
    """

    name: str
    n_rows: int = 2
    n_heads: int = 16
    topk: int = 64
    page_size: int = 64
    n_pages: int | None = None
    missing: Literal["none", "some", "first", "all", "one row"] = "none"
    lengths: tuple[int, ...] | None = None
    sink: Literal["none", "random", "huge", "minus infinity"] = "none"
    second_topk: int | None = None
    second_page_size: int = 2
    poison: bool = False
    nan_token: bool = False
    magnitude: float = 1.0
    on_interpreter: bool = True


Pool = tuple[torch.Tensor, torch.Tensor, int, "torch.Tensor | None"]
"""(kv_pool, indices_BT, page_size, topk_length_B or None)"""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tensors of one case; ``pools`` as ``reference.reference_decode`` takes them."""

    q_B1HD: torch.Tensor
    pools: tuple[Pool, ...]
    attention_sink_H: torch.Tensor | None


CASES: tuple[Case, ...] = (
    Case(name="plain"),
    Case(name="one row, one head, one token", n_rows=1, n_heads=1, topk=1),
    Case(name="DeepSeek-V4 shape, 16 heads", n_rows=4, topk=512, on_interpreter=False),
    Case(name="DeepSeek-V4 shape, 64 heads", n_rows=2, n_heads=64, topk=512, on_interpreter=False),
    Case(name="many rows", n_rows=33, topk=96, on_interpreter=False),
    Case(name="8 heads", n_heads=8),
    Case(name="24 heads", n_heads=24, n_rows=1),
    Case(name="40 heads", n_heads=40, n_rows=1, topk=16),
    Case(name="page size 1", page_size=1),
    Case(name="page size 2", page_size=2),
    Case(name="page size 256", page_size=256),
    Case(name="list that fills no tile", topk=37),
    Case(name="-1 in between", missing="some"),
    Case(name="-1 in the whole first tile", missing="first"),
    Case(name="-1 everywhere", missing="all"),
    Case(name="-1 everywhere, with sink", missing="all", sink="random"),
    Case(name="one row without tokens", missing="one row"),
    Case(name="lengths", n_rows=4, lengths=(0, 1, 17, 64)),
    Case(name="lengths past the list, and negative", lengths=(100, -3)),
    Case(name="lengths and -1", lengths=(40, 5), missing="some"),
    Case(name="sink", sink="random"),
    Case(name="sink far above every score", sink="huge"),
    Case(name="sink minus infinity", sink="minus infinity"),
    Case(name="two pools", second_topk=32, sink="random"),
    Case(name="two pools, lengths and -1", second_topk=48, lengths=(0, 9), missing="some"),
    Case(name="two pools, the first empty", second_topk=32, missing="all"),
    Case(name="NaN and infinity in masked slots", poison=True, missing="some", n_rows=3, lengths=(50, 64, 3)),
    Case(name="NaN in a token that counts", nan_token=True),
    Case(name="large scores", magnitude=40.0),
    Case(name="small values", magnitude=1e-3),
)


def random_cases(n_cases: int, seed: int) -> tuple[Case, ...]:
    """Cases of random shape: any number of heads up to 128, lists of 1 to 2048 slots, everything that may be passed.

    Rows × heads × slots is kept at what the float64 reference computes in a moment.
    """
    draw = random.Random(seed)
    return tuple(_random_case(number, draw) for number in range(n_cases))


def _random_case(number: int, draw: random.Random) -> Case:
    n_heads = draw.choice((draw.randint(1, 15), 16, 16, 32, 64, 128, draw.randint(1, 128)))
    topk = draw.choice((64, 128, 512, draw.randint(1, 200), draw.randint(1, 2048)))
    n_rows = max(1, min(draw.randint(1, 40), RANDOM_CASE_WORK // (n_heads * topk)))
    has_second, has_lengths, has_sink = draw.choice(RANDOM_CASE_FORMS)
    second_topk = draw.randint(1, 600) if has_second else None
    return Case(
        name=f"random {number}: {n_rows} rows, {n_heads} heads, topk {topk}"
        + ("" if second_topk is None else f" + {second_topk}"),
        n_rows=n_rows,
        n_heads=n_heads,
        topk=topk,
        page_size=draw.choice((1, 2, 64, 256)),
        missing=draw.choice(("none", "none", "some", "first", "one row")),
        lengths=tuple(draw.randint(0, topk) for _ in range(n_rows)) if has_lengths else None,
        sink=draw.choice(("random", "huge")) if has_sink else "none",
        second_topk=second_topk,
        second_page_size=draw.choice((2, 64)),
        poison=draw.random() < 0.3,
        magnitude=draw.choice((1.0, 1.0, 10.0, 0.01)),
        on_interpreter=False,
    )


def make_inputs(case: Case, seed: int, device: torch.device | str = "cpu") -> Inputs:
    """Random tensors for ``case``; the same seed gives the same tensors on every device."""
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(case.n_rows, 1, case.n_heads, kv_pool.HEAD_DIM, generator=draw).to(torch.bfloat16)
    pools = [_make_pool(case, case.topk, case.page_size, draw)]
    if case.second_topk is not None:
        pools.append(_make_second_pool(case, draw))
    return Inputs(
        q_B1HD=q.to(device),
        pools=tuple(
            (pool.to(device), indices.to(device), page_size, None if lengths is None else lengths.to(device))
            for pool, indices, page_size, lengths in pools
        ),
        attention_sink_H=_make_sink(case, draw, device),
    )


def _make_pool(case: Case, topk: int, page_size: int, draw: torch.Generator) -> Pool:
    n_pages = case.n_pages or -(-2 * topk // page_size) + 1
    values = torch.randn(n_pages, page_size, kv_pool.HEAD_DIM, generator=draw) * case.magnitude
    pool = kv_pool.pack(values)
    # Place 0 is never named: it is where an index of −1 reads when it is clamped and not masked.
    places = torch.stack(
        [torch.randperm(n_pages * page_size - 1, generator=draw)[:topk] + 1 for _ in range(case.n_rows)]
    )
    indices = places.to(torch.int32)
    _leave_out(case, indices, draw)
    lengths = None
    if case.lengths is not None:
        repeated = (case.lengths * case.n_rows)[: case.n_rows]
        lengths = torch.tensor(repeated, dtype=torch.int32)
    if case.poison:
        _poison(pool, page_size, indices, lengths)
    if case.nan_token:
        first = kv_pool.token_offset(int(indices[0, 0]), page_size)
        pool.view(-1)[first] = NAN_BYTE
        pool.view(-1)[first + kv_pool.NOPE_DIM : first + kv_pool.TOKEN_BYTES] = (
            0xFF  # the interpreter reads 0x7F as 480
        )
        indices[1:][indices[1:] == indices[0, 0]] = -1
    return pool, indices, page_size, lengths


def _make_second_pool(case: Case, draw: torch.Generator) -> Pool:
    pool, indices, page_size, _ = _make_pool(
        Case(name=case.name, n_rows=case.n_rows, missing="some", magnitude=case.magnitude),
        case.second_topk or 0,
        case.second_page_size,
        draw,
    )
    return pool, indices, page_size, None


def _leave_out(case: Case, indices_BT: torch.Tensor, draw: torch.Generator) -> None:
    if case.missing == "some":
        indices_BT[torch.rand(indices_BT.shape, generator=draw) < 0.3] = -1
    elif case.missing == "first":
        indices_BT[:, :32] = -1
    elif case.missing == "all":
        indices_BT[:] = -1
    elif case.missing == "one row":
        indices_BT[-1] = -1


def _poison(pool: torch.Tensor, page_size: int, indices_BT: torch.Tensor, lengths_B: torch.Tensor | None) -> None:
    """Make every place that no row counts decode to NaN (values) and infinity (scale 2^128)."""
    n_places = pool.shape[0] * page_size
    is_counted = torch.zeros(n_places, dtype=torch.bool)
    for row, places in enumerate(indices_BT):
        counted = places if lengths_B is None else places[: int(lengths_B[row])]
        is_counted[counted[counted >= 0].long()] = True
    at_token, at_scale = kv_pool.rows_of(torch.arange(n_places)[~is_counted], page_size)
    tokens = pool.view(-1, kv_pool.TOKEN_BYTES)
    tokens[at_token, : kv_pool.NOPE_DIM] = NAN_BYTE
    tokens[at_token[::2], : kv_pool.NOPE_DIM] = 0x7E  # the largest finite value, times an infinite scale
    tokens[at_token, kv_pool.NOPE_DIM :] = 0xFF  # bf16 NaN
    pool.view(-1, kv_pool.SCALE_BYTES)[at_scale] = INFINITE_SCALE_BYTE


def _make_sink(case: Case, draw: torch.Generator, device: torch.device | str) -> torch.Tensor | None:
    if case.sink == "none":
        return None
    sink = torch.randn(case.n_heads, generator=draw)
    if case.sink == "huge":
        sink += 60.0
    elif case.sink == "minus infinity":
        sink[:] = -torch.inf
    return sink.to(device)
