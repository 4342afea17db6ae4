"""The float64 reference, against small sums worked out by hand and against torch's own attention."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import kv_pool  # noqa: E402
from kernel.reference import reference_decode  # noqa: E402

pytestmark = pytest.mark.kernel


def one_hot_pool(*scores: float):
    """A pool of page size 1 whose token n is scores[n] in dimension 500 (exact in bf16)."""
    kv = torch.zeros(len(scores), 1, 512)
    kv[:, 0, 500] = torch.tensor(scores)
    return kv_pool.pack(kv)


def one_hot_query(n_rows: int = 1, n_heads: int = 1):
    """Queries that read dimension 500 alone."""
    q = torch.zeros(n_rows, 1, n_heads, 512, dtype=torch.bfloat16)
    q[..., 500] = 1.0
    return q


def indices(*rows: list[int]):
    """Token lists."""
    return torch.tensor(rows, dtype=torch.int32)


def test_one_token() -> None:
    """A single token is the output itself, and lse is its score."""
    out, lse = reference_decode(one_hot_query(), [(one_hot_pool(3.0), indices([0]), 1, None)], softmax_scale=2.0)
    assert out[0, 0, 0, 500].item() == 3.0
    assert lse.item() == 6.0


def test_weights_are_softmax() -> None:
    """Two tokens with scores 0 and ln 3 (as bf16 has it) weigh 1 : e^score; lse is the log of the sum."""
    score = float(torch.tensor(math.log(3)).to(torch.bfloat16))
    out, lse = reference_decode(
        one_hot_query(), [(one_hot_pool(0.0, score), indices([0, 1]), 1, None)], softmax_scale=1.0
    )
    assert lse.item() == pytest.approx(math.log(1 + math.exp(score)), rel=1e-12)
    assert out[0, 0, 0, 500].item() == pytest.approx(score * math.exp(score) / (1 + math.exp(score)), rel=1e-12)


def test_sink_is_in_the_denominator_alone() -> None:
    """A sink as large as lse halves the output and leaves lse as it was."""
    pools = [(one_hot_pool(2.0), indices([0]), 1, None)]
    out, lse = reference_decode(one_hot_query(), pools, attention_sink_H=torch.tensor([2.0]), softmax_scale=1.0)
    assert out[0, 0, 0, 500].item() == pytest.approx(1.0, rel=1e-12)
    assert lse.item() == 2.0


def test_rows_without_tokens() -> None:
    """No valid token, by −1 or by length 0: out 0 and lse −inf, also with a sink; the other row is untouched."""
    pools = [(one_hot_pool(1.0), indices([-1, -1], [0, -1]), 1, None)]
    out, lse = reference_decode(one_hot_query(2), pools, attention_sink_H=torch.tensor([-math.inf]), softmax_scale=1.0)
    assert not out[0].any()
    assert lse.flatten().tolist() == [-math.inf, 1.0]
    out, lse = reference_decode(
        one_hot_query(), [(one_hot_pool(1.0), indices([0]), 1, torch.zeros(1, dtype=torch.int32))]
    )
    assert not out.any()
    assert lse.item() == -math.inf


def test_two_pools_are_one_softmax() -> None:
    """Splitting a list over two pools changes nothing."""
    both = reference_decode(one_hot_query(), [(one_hot_pool(1.0, 2.0, 3.0), indices([2, 0, 1]), 1, None)])
    apart = reference_decode(
        one_hot_query(),
        [(one_hot_pool(1.0, 2.0), indices([0, 1]), 1, None), (one_hot_pool(9.0, 3.0), indices([-1, 1]), 1, None)],
    )
    for one, other in zip(both, apart, strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_agrees_with_torch_attention() -> None:
    """On random tokens it equals torch's scaled_dot_product_attention in float64."""
    draw = torch.Generator().manual_seed(0)
    pool = kv_pool.pack(torch.randn(10, 16, 512, generator=draw))
    places = torch.randperm(160, generator=draw)[:100]
    q = torch.randn(1, 1, 4, 512, generator=draw).to(torch.bfloat16)
    out, _ = reference_decode(q, [(pool, places[None].to(torch.int32), 16, None)])
    kv = kv_pool.unpack(pool, 16, places, torch.float64)[None, None].expand(1, 4, -1, -1)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double().transpose(1, 2), kv, kv)
    assert torch.allclose(out, expected.transpose(1, 2), rtol=1e-9, atol=1e-12)
