"""An autotune list that is written out is read as it stands; anything else is left to a Python that can run it."""

from __future__ import annotations

import pytest

from orchestrator.check.lift import lift
from orchestrator.check.plain_list import PlainList, read_plain_list
from orchestrator.records import SourceFile
from orchestrator.verdicts import KernelConfig
from tests.support.check_project import KERNEL

HEAD = "import os\nimport triton\nimport triton.language as tl\n\nWARPS = 4\n\n\n"


def read(decorator: str, head: str = HEAD) -> PlainList | None:
    """What is read of a kernel with this decorator, by way of ``lift``."""
    text = f"{head}{decorator}\n@triton.jit\ndef kernel(out, n, BLOCK: tl.constexpr):\n    tl.store(out, n)\n"
    return read_plain_list(lift([SourceFile.of("file.py", text.encode())], "kernel", modules={}).listing)


def config(**knobs: int | None) -> KernelConfig:
    """A config with BLOCK 16."""
    return KernelConfig(constants={"BLOCK": 16}, **knobs)  # type: ignore[arg-type]


def test_the_seeds_list() -> None:
    """Configs in order with their knobs, and the key."""
    lifted = lift([SourceFile.of("file.py", KERNEL.encode())], "sparse_mla_decode", modules={})
    assert read_plain_list(lifted.listing) == (
        (
            KernelConfig(constants={"BLOCK_T": 16}, num_warps=4, num_stages=2),
            KernelConfig(constants={"BLOCK_T": 32}, num_warps=4, num_stages=2),
            KernelConfig(constants={"BLOCK_T": 32}, num_warps=8, num_stages=2),
        ),
        ("n_heads", "topk"),
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('triton.Config({"BLOCK": 16})', config()),
        ('triton.Config({"BLOCK": 16}, 8, 5)', config(num_warps=8, num_stages=5)),
        ('triton.Config({"BLOCK": 16}, 8, num_stages=5)', config(num_warps=8, num_stages=5)),
        ('triton.Config({"BLOCK": 16}, num_ctas=2, maxnreg=128)', config(num_ctas=2, maxnreg=128)),
        ('triton.Config({"BLOCK": 16}, maxnreg=None)', config()),
        ('triton.Config({"BLOCK": 16}, num_warps=8, pre_hook=print)', config(num_warps=8)),
        (
            'triton.Config({"A": True, "B": -1, "C": 0.5, "D": "x", "E": None})',
            KernelConfig(constants={"A": True, "B": -1, "C": 0.5, "D": "x", "E": None}),
        ),
    ],
)
def test_a_config_is_read_as_triton_takes_it(entry: str, expected: KernelConfig) -> None:
    """Keywords and positions; what is left out has Triton's default; hooks run at launch and are none of its knobs."""
    assert read(f'@triton.autotune(configs=[{entry}], key=["n"])') == ((expected,), ("n",))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("from triton import Config, autotune, jit\n", "Config"),
        ("import triton as tr\n", "tr.Config"),
        ("from triton.runtime import Config as C\nConfig = C\n", "Config"),
    ],
)
def test_config_under_another_name(head: str, name: str) -> None:
    """However Triton's Config was imported."""
    found = read(f'@triton.autotune(configs=[{name}({{"BLOCK": 16}}, num_warps=8)], key=[])', HEAD + head)
    assert found == ((config(num_warps=8),), ())


def test_a_tuple_an_empty_list_and_no_key() -> None:
    """A tuple is a list, an empty list is known to be empty, and a key may be missing."""
    assert read('@triton.autotune(configs=(triton.Config({"BLOCK": 16}),), key=("n",))') == ((config(),), ("n",))
    assert read('@triton.autotune(configs=[], key=["n"])') == ((), ("n",))
    assert read('@triton.autotune(configs=[triton.Config({"BLOCK": 16})])') == ((config(),), None)


@pytest.mark.parametrize(
    "configs",
    [
        '[triton.Config({"BLOCK": b}) for b in (16, 32)]',
        '[triton.Config({"BLOCK": 16}, num_warps=WARPS)]',
        '[triton.Config({"BLOCK": 2 * 8})]',
        '[triton.Config({"BLOCK": 16}, num_warps=int(os.environ.get("W", "4")))]',
        '[triton.Config({"BLOCK": 16}, **{"num_warps": 8})]',
        '[triton.Config({"BLOCK": 16}, 4, 2, 1, 128)]',
        '[triton.Config({"BLOCK": 16}, num_consumer_groups=2)]',
        '[triton.Config(kwargs={"BLOCK": 16})]',
        '[triton.Config({"BLOCK": tl.float16})]',
        '[triton.Config({"BLOCK": 16}, num_warps=4.0)]',
        '[triton.Config({"BLOCK": 16}, num_warps=True)]',
        '[triton.Config([("BLOCK", 16)])]',
        '[triton.Config({16: "BLOCK"})]',
        '[triton.Config({"BLOCK": [16]})]',
        '[triton.Config({"BLOCK": 16}), *[]]',
        '[make({"BLOCK": 16})]',
        '[triton.Config({"BLOCK": 16})] + []',
        "CONFIGS",
    ],
)
def test_what_must_be_run_is_not_guessed(configs: str) -> None:
    """Anything computed, and anything that a config does not plainly say, is None: a process reads it instead."""
    head = HEAD + "def make(kwargs):\n    return triton.Config(kwargs)\n\n\nCONFIGS = [make({})]\n\n\n"
    assert read(f'@triton.autotune(configs={configs}, key=["n"])', head) is None


def test_a_computed_key_leaves_the_list_to_a_process() -> None:
    """Half a list is not read."""
    assert read('@triton.autotune(configs=[triton.Config({"BLOCK": 16})], key=sorted(["n"]))') is None


def test_a_kernel_without_a_list() -> None:
    """There is nothing to read."""
    assert read("@triton.heuristics({})") is None
