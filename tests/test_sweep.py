"""Sweeps: what is typed becomes a grid or a clear refusal, and of its points those are marked that are worth time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.check.sweep import MAX_POINTS, expand, mark, parse_sweep, variant_name
from orchestrator.errors import UsageError
from orchestrator.verdicts import Constant, KernelConfig
from orchestrator.workspace import checked_variant_name
from tests.support.config_reports import report, seed_config, seed_report

NAMES = ("BLOCK_T", "DTYPE", "IS_CAUSAL")

PARSED: dict[str, tuple[list[str], dict[str, tuple[Constant, ...]]]] = {
    "a range has both its ends": (["num_stages=2..7"], {"num_stages": (2, 3, 4, 5, 6, 7)}),
    "a list": (["num_warps=4,8"], {"num_warps": (4, 8)}),
    "both, in the order typed, each value once": (["BLOCK_T=64,16..18,17"], {"BLOCK_T": (64, 16, 17, 18)}),
    "one value": (["num_stages=3"], {"num_stages": (3,)}),
    "spaces": (["num_stages = 2 .. 3, 5"], {"num_stages": (2, 3, 5)}),
    "knobs in the order typed": (["BLOCK_T=1", "num_warps=4"], {"BLOCK_T": (1,), "num_warps": (4,)}),
    "texts": (["DTYPE=tl.float16,tl.bfloat16"], {"DTYPE": ("tl.float16", "tl.bfloat16")}),
    "words of Python": (["IS_CAUSAL=True,False,None"], {"IS_CAUSAL": (True, False, None)}),
    "numbers": (["BLOCK_T=-1,0.5,1e3,.5e-1"], {"BLOCK_T": (-1, 0.5, 1000.0, 0.05)}),
}


@pytest.mark.parametrize("name", PARSED)
def test_what_is_typed(name: str) -> None:
    """Values come in the order typed."""
    words, expected = PARSED[name]
    parsed = parse_sweep(words, NAMES)
    assert parsed == expected
    assert list(parsed) == list(expected)
    assert [[type(value) for value in values] for values in parsed.values()] == [
        [type(value) for value in values] for values in expected.values()
    ]


REFUSED = {
    "unknown knob": (["BLOK_T=16"], "the kernel has no knob 'BLOK_T': try BLOCK_T"),
    "nothing like it": (["X=1"], "try num_warps, num_stages, num_ctas, maxnreg, BLOCK_T, DTYPE, IS_CAUSAL"),
    "twice": (["num_warps=4", "num_warps=8"], "num_warps is swept twice"),
    "empty range": (["num_stages=7..2"], "the range 7..2 of num_stages is empty: write 2..7"),
    "open range": (["num_stages=2.."], "num_stages=2.. is no value and no range"),
    "missing value": (["num_stages=2,,3"], "num_stages= is no value and no range"),
    "no values": (["num_stages="], "'num_stages=' names no values"),
    "no equals": (["num_stages"], "'num_stages' names no values"),
    "nothing": ([], "nothing to sweep"),
    "warps": (["num_warps=4,6"], "num_warps cannot be 6: it can be 1, 2, 4, 8, 16 or 32"),
    "a range of warps": (["num_warps=2..8"], "num_warps cannot be 3, 5, 6 and 7: it can be 1, 2, 4, 8, 16 or 32"),
    "no integer": (["num_warps=True"], "num_warps cannot be True"),
    "stages": (["num_stages=0"], "num_stages cannot be 0: it can be 1 to 64"),
    "registers": (["maxnreg=256"], "maxnreg cannot be 256: it can be 8 to 255"),
    "too many points": (["num_stages=1..64", "BLOCK_T=1..65"], "more than 4,096 points"),
    "a range without end": (["BLOCK_T=1..999999999999"], "more than 4,096 values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """In one line, with the value and what to write."""
    words, message = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        parse_sweep(words, NAMES)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_grid_is_allowed() -> None:
    """The limit itself is within it."""
    sweep = parse_sweep(["num_stages=1..64", "BLOCK_T=1..64"], NAMES)
    assert len(expand(seed_config(2), sweep)) == MAX_POINTS


def test_a_grid_is_every_combination() -> None:
    """The last knob varies fastest; what is not swept stays as in the base, a new name is added."""
    base = KernelConfig(constants={"BLOCK_T": 16, "BLOCK_H": 32}, num_warps=8, num_stages=1, maxnreg=128)
    points = expand(base, parse_sweep(["num_stages=2..3", "BLOCK_T=16,32", "DTYPE=tl.float16"], NAMES))
    assert [point.words for point in points] == [
        f"BLOCK_T={block_t} BLOCK_H=32 DTYPE=tl.float16 num_warps=8 num_stages={n_stages} maxnreg=128"
        for n_stages in (2, 3)
        for block_t in (16, 32)
    ]
    only = expand(base, parse_sweep(["maxnreg=64", "num_ctas=2", "num_warps=4"], NAMES))
    assert [(point.maxnreg, point.num_ctas, point.num_warps) for point in only] == [(64, 2, 4)]


# ---- marks


def test_duplicates_and_what_does_not_fit_are_marked() -> None:
    """3 is 4 and 5 is 6 on a kernel of the seed's shape; BLOCK_T 32 does not fit; the baseline's point is known."""
    sweep = parse_sweep(["BLOCK_T=16,32", "num_stages=2..7"], NAMES)
    points = expand(seed_config(2), sweep)
    reports = [
        seed_report(n, one.num_stages, block_t=int(str(one.constants["BLOCK_T"]))) for n, one in enumerate(points)
    ]
    rows = mark(reports, [seed_report(0, 2)])
    assert [row.words for row in rows[:6]] == ["= baseline", "new", "= 2", "new", "= 4", "new"]
    assert [row.words for row in rows[6:]] == ["does not fit"] * 6
    assert [row.number for row in rows] == list(range(1, 13))


def test_a_point_that_does_not_compile_is_marked() -> None:
    """It is no duplicate of another that does not."""
    rows = mark([seed_report(n, 2 + n, error="boom") for n in range(2)], [])
    assert [row.words for row in rows] == ["does not compile"] * 2


def test_points_are_compared_within_one_architecture() -> None:
    """The same digest for two architectures is two launches; where limits are not known a point is still compared."""
    reports = [seed_report(n, 3 + n, arch=arch, binary_digest="sha256:1") for arch in (90, 120, 99) for n in range(2)]
    assert [row.words for row in mark(reports, [])] == ["new", "= 1"] * 3


def test_equal_code_with_another_block_size_is_another_launch() -> None:
    """num_warps and meta-parameters count beside the binary."""
    same = {"binary_digest": "sha256:1", "shared_bytes": 0, "n_registers": 32}
    configs = (seed_config(2), seed_config(2, 8), seed_config(2, 4, 32), seed_config(3))
    rows = mark([report(n, config, 120, **same) for n, config in enumerate(configs)], [])
    assert [row.words for row in rows] == ["new", "new", "new", "= 1"]


# ---- names


def test_a_point_has_a_short_name() -> None:
    """Only what is swept is in it, the launch knobs first."""
    config = KernelConfig(constants={"BLOCK_T": 32, "DTYPE": "tl.float16"}, num_warps=8, num_stages=3)
    assert variant_name(config, ("BLOCK_T", "num_stages", "num_warps")) == "w8-s3-BLOCK_T32"
    assert variant_name(config, ("num_stages",)) == "s3"
    assert variant_name(config, ("DTYPE",)) == "DTYPEtl.float16"


@given(st.text(min_size=1), st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()))
def test_a_points_name_can_be_a_variants(name: str, value: Constant) -> None:
    """Whatever a knob is called and whatever its value is."""
    named = variant_name(KernelConfig(constants={name: value}), (name,))
    assert named.lower() == "baseline" or checked_variant_name(named) == named


def test_the_variants_own_config_is_no_new_point() -> None:
    """A grid over a variant holds the variant itself; the baseline's launch is named first."""
    rows = mark([seed_report(0, 2), seed_report(1, 5), seed_report(2, 7)], [seed_report(0, 2)], [seed_report(0, 5)])
    assert [row.words for row in rows] == ["= baseline", "= variant", "new"]
