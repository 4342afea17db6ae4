"""What the inventory says of a kernel's arguments becomes the signature that Triton's launcher would make."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.check.arguments import config_constants, parse_type, signature
from orchestrator.check.lift import Lifted, lift
from orchestrator.errors import UsageError
from orchestrator.records import SourceFile
from orchestrator.verdicts import Constant, KernelConfig, Signature, arch_name, parse_arch


def kernel(parameters: str, decorators: str = "@triton.jit") -> Lifted:
    """A lifted kernel with these parameters."""
    text = f"import triton\nimport triton.language as tl\n{decorators}\ndef k({parameters}):\n    pass\n"
    return lift([SourceFile.of("k.py", text.encode())], "k", modules={})


def signed(parameters: str, *given: str, decorators: str = "@triton.jit", **arguments: Constant) -> Signature:
    """The signature; ``given`` are names that the config sets."""
    return signature(kernel(parameters, decorators), arguments, given_by_config=given, target="mla")


def refused(parameters: str, arguments: Mapping[str, Constant], decorators: str = "@triton.jit") -> str:
    """The text of the refusal."""
    with pytest.raises(UsageError) as caught:
        signature(kernel(parameters, decorators), arguments, given_by_config=(), target="mla")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# case → (parameter as written, what the inventory gives, its type, its constant, whether it is divisible by 16)
NO = "no constant"
ARGUMENTS: Mapping[str, tuple[str, Constant, str, Constant, bool]] = {
    "a pointer is aligned": ("p", "*bf16", "*bf16", NO, True),
    "marked so": ("p", "*bf16:16", "*bf16", NO, True),
    "a pointer that is not": ("p", "*bf16:1", "*bf16", NO, False),
    "a pointer to constants": ("p", "*kfp32", "*kfp32", NO, True),
    "torch's name": ("p", "*torch.float8_e4m3fn", "*fp8e4nv", NO, True),
    "Triton's name": ("p", "tl.int64", "i64", NO, False),
    "a number": ("n", "i32", "i32", NO, False),
    "a multiple of 16": ("n", "i64:16", "i64", NO, True),
    "always 1": ("n", "i32:1", "constexpr", 1, False),
    "a descriptor": ("n", "tensordesc<bf16[128, 64]>", "tensordesc<bf16[128, 64]>", NO, False),
    "the value 1": ("n", 1, "constexpr", 1, False),
    "the value 0": ("n", 0, "i32", NO, True),
    "a value": ("n", 17, "i32", NO, False),
    "a negative multiple": ("n", -32, "i32", NO, True),
    "a large value": ("n", 2**31, "i64", NO, True),
    "a larger value": ("n", 2**63 + 1, "u64", NO, False),
    "a fraction": ("n", 1.0, "fp32", NO, False),
    "true": ("n", True, "i1", NO, False),
    "null": ("n", None, "constexpr", None, False),
    "a default": ("n=32", NO, "i32", NO, True),
    "a default of None": ("n=None", NO, "constexpr", None, False),
    "a default that is overridden": ("n=None", "*fp32", "*fp32", NO, True),
    "an annotation": ("n: tl.int64", NO, "i64", NO, False),
    "an annotation in words": ("n: 'i32'", NO, "i32", NO, False),
    "Python's own": ("n: float", NO, "fp32", NO, False),
    "an annotation and a mark": ("n: int", "i64:16", "i32", NO, True),
    "an annotation and a value": ("n: int", 1, "i32", NO, False),
    "an annotation and a multiple": ("n: tl.int64", 16, "i64", NO, True),
    "an annotated fraction": ("n: float", 16, "fp32", NO, False),
    "an annotation and None": ("n: int = None", NO, "constexpr", None, False),
    "an annotation of nothing": ("p: tl.tensor", "*bf16", "*bf16", NO, True),
    "a pointer that is not written": ("p: tl.const", "*bf16", "*bf16", NO, True),
    "a constexpr": ("n: tl.constexpr", 3, "constexpr", 3, False),
    "a constexpr that is null": ("n: tl.constexpr", None, "constexpr", None, False),
    "a constexpr that is a type": ("n: tl.constexpr", "tl.bfloat16", "constexpr", "tl.bfloat16", False),
    "a constexpr that is text": ("n: tl.constexpr", "fp16", "constexpr", "fp16", False),
    "a constexpr's default": ("n: tl.constexpr = 'mean'", NO, "constexpr", "mean", False),
    "a constexpr's default of None": ("n: tl.constexpr = None", NO, "constexpr", None, False),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_becomes_what_the_launcher_makes_of_it(case: str) -> None:
    """Types with marks, values, annotations and defaults end as Triton's runtime would specialise them."""
    written, given, wanted, constant, is_divisible = ARGUMENTS[case]
    name = written[0]
    found = signed(written, **({} if given is NO else {name: given}))
    assert found.types == {name: wanted}
    assert found.constants == ({} if constant is NO else {name: constant})
    assert [type(value) for value in found.constants.values()] == ([] if constant is NO else [type(constant)])
    assert found.divisible_by_16 == ((name,) if is_divisible else ())


def test_what_may_not_be_specialised_is_not() -> None:
    """`do_not_specialize` takes the mark and the constant 1 away, `…_on_alignment` the mark alone."""
    decorators = "@triton.jit(do_not_specialize=['a', 'p'], do_not_specialize_on_alignment=['b', 'c'])"
    found = signed("a, b, c, p, q", decorators=decorators, a="i32:1", b="i32:16", c=1, p="*bf16", q="*bf16")
    assert found.types == {"a": "i32", "b": "i32", "c": "constexpr", "p": "*bf16", "q": "*bf16"}
    assert (found.constants, found.divisible_by_16) == ({"c": 1}, ("q",))
    assert signed("a", decorators=decorators, a=1).types == {"a": "i32"}
    assert signed("a", decorators=decorators, a=16).divisible_by_16 == ()


def test_an_exact_name_counts_before_patterns_and_these_in_their_order() -> None:
    """`*_ptr` gives every pointer a type but those that an earlier pattern or their own name gives another."""
    arguments: dict[str, Constant] = {"i*_ptr": "*i64", "*_ptr": "*bf16", "o_ptr": "*fp32", "stride_*": "i32:16"}
    found = signed("o_ptr, q_ptr, i_ptr, stride_n, stride_k: tl.constexpr = 1", **arguments)
    assert [*found.types.values()] == ["*fp32", "*bf16", "*i64", "i32", "constexpr"]
    assert found.constants == {"stride_k": 1}  # a type for strides is not meant for a constexpr
    assert list(found.types) == ["o_ptr", "q_ptr", "i_ptr", "stride_n", "stride_k"]  # the kernel's order
    assert signed("HAS_A: tl.constexpr, HAS_B: tl.constexpr", **{"HAS_*": False}).constants == {
        "HAS_A": False,
        "HAS_B": False,
    }


def test_the_config_wins_over_the_inventory() -> None:
    """A meta-parameter that the configs set is no constant of the signature, nor is num_warps."""
    parameters = "p, BLOCK: tl.constexpr, num_warps: tl.constexpr, D: tl.constexpr = 8"
    found = signed(parameters, "BLOCK", p="*bf16", BLOCK=16)
    assert (found.types["BLOCK"], found.types["num_warps"], found.constants) == ("constexpr", "constexpr", {"D": 8})
    config = KernelConfig(constants={"BLOCK": 32, "p": 1, "other": 2}, num_warps=8)
    assert config_constants(kernel(parameters), config) == {"BLOCK": 32, "num_warps": 8}


# ---- refused


def test_everything_that_is_missing_is_asked_for_at_once() -> None:
    """One refusal names the types and the values that are missing, why a heuristic's are, and gives a line to paste."""
    heuristics = "@triton.heuristics({'EVEN_K': lambda a: True})\n@triton.jit"
    text = refused(
        "q_ptr, n, stride_q, eps: float, D: tl.constexpr, EVEN_K: tl.constexpr, T: tl.constexpr = SIZE",
        {"n": "i32"},
        heuristics,
    )
    assert text == (
        "check cannot compile kernel k: it needs the types of q_ptr and stride_q and the values of D, EVEN_K and T "
        "(EVEN_K: computed by @triton.heuristics at launch): add them under targets.mla.check in inventory.yaml, with "
        'the types and values that the engine passes, such as: arguments: {q_ptr: "*bf16", stride_q: i32:16, D: 16, '
        "EVEN_K: false, T: 16}"
    )
    assert "needs the type of x:" in refused("x", {})
    assert "needs the value of D:" in refused("D: tl.constexpr", {})
    assert 'arguments: {"*stride*": i32:16, n: i32}' in refused("stride_a, stride_b, stride_c, stride_d, n", {})


REFUSALS: Mapping[str, tuple[dict[str, Constant], str]] = {
    "a name that is none": ({"pp_ptr": "*bf16"}, "no parameter is called pp_ptr (did you mean p_ptr?)"),
    "a name that is far off": ({"zebra": "*bf16"}, "no parameter is called zebra (it has p_ptr, n, D)"),
    "a pattern that fits nothing": ({"*_stride": "i32"}, "no parameter matches *_stride"),
    "no type": ({"n": "int33"}, 'n: "int33" is no type (wanted such as *bf16, *fp32, i32, i32:16, i32:1; did'),
    "no pointer type": ({"p_ptr": "*bf8"}, 'p_ptr: "*bf8" is no type'),
    "a mark that is none": ({"n": "i32:8"}, 'n: "i32:8" is no type'),
    "a mark of a fraction": ({"n": "fp32:16"}, 'n: "fp32:16" is no type'),
    "a type for a constexpr": ({"D": "*bf16"}, "D is a constexpr and takes a value, not the type *bf16"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused(case: str) -> None:
    """A name or pattern of no parameter and a text that is no type are named, the nearest one with it."""
    arguments, wanted = REFUSALS[case]
    text = refused("p_ptr, n, D: tl.constexpr", {"p_ptr": "*bf16", "n": "i32", "D": 1, **arguments})
    assert text.startswith(f"check.arguments of mla does not fit kernel k: {wanted}")
    assert text.endswith("correct targets.mla.check.arguments in inventory.yaml")


def test_types_that_are_none() -> None:
    """Only Triton's types are types: nothing that Triton would evaluate gets through."""
    for text in ("", "*", "**bf16", "bf16:", "i32:16:16", "tensordesc<bf16[a]>", "tensordesc<bf16[1],f()>", "x.y"):
        assert parse_type(text) is None, text


def test_architectures() -> None:
    """An architecture is read as people write it, and written in one way."""
    for text, arch in {"sm_120": 120, "120": 120, " SM90a ": 90, "sm_100f": 100, "sm_75": 75}.items():
        assert parse_arch(text) == arch
    for text in ("", "sm_", "ada", "12.0", "sm_9", "sm_1200", "sm_090", "sm_90b"):
        assert parse_arch(text) is None, text
    assert arch_name(120) == "sm_120"
