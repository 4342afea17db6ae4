"""Autotune blocks in the many ways in which kernels write them, each with what forcing one config must give.

Own text throughout. ``CASES``: name → (file before, settings, file after). The kernel is always ``k``.
"""

# ruff: noqa: E501 # files in string form read better unbroken

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A file, the knobs to set in its kernel ``k``, and the file that must come out."""

    before: str
    settings: dict[str, str]
    after: str


BODY = """
@triton.jit
def k(x_ptr, n, BLOCK_T: tl.constexpr, EVEN: tl.constexpr = True):
    # one program, one tile
    pid = tl.program_id(0)
    tl.store(x_ptr + pid * BLOCK_T, n)


def launch(x):
    k[(1,)](x, 1)
"""

SEED = (
    """import triton
import triton.language as tl

@triton.autotune(
    configs=[
        # smallest tile first
        triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),  # fits everywhere
        triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),
        triton.Config({"BLOCK_T": 32}, num_warps=8, num_stages=2),  # widest
        # end of list
    ],
    key=["n"],
)"""
    + BODY
)

V2 = {"num_stages": "3", "num_warps": "4", "BLOCK_T": "16"}


def seed_with(config: str) -> str:
    """The seed's file with its list forced to one config."""
    start = SEED.index("        triton.Config")
    end = SEED.index("        # end of list")
    return f"{SEED[:start]}        {config}  # fits everywhere\n{SEED[end:]}"


def block(decorator: str, before: str = "import triton\nimport triton.language as tl\n") -> str:
    """A file with one decorator line above the kernel."""
    return f"{before}\n\n{decorator}{BODY}"


CASES: dict[str, Case] = {
    "the seed's V2": Case(SEED, V2, seed_with('triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=3),')),
    "the seed's V1": Case(
        SEED, {"num_warps": "8"}, seed_with('triton.Config({"BLOCK_T": 16}, num_warps=8, num_stages=2),')
    ),
    "nothing but one config": Case(SEED, {}, seed_with('triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2),')),
    "on one line": Case(
        block("@triton.autotune(configs=[triton.Config({'BLOCK_T':16}), triton.Config({'BLOCK_T':32})], key=['n'])"),
        {"BLOCK_T": "64"},
        block("@triton.autotune(configs=[triton.Config({'BLOCK_T':64})], key=['n'])"),
    ),
    "a keyword knob added": Case(
        block("@triton.autotune([triton.Config({'BLOCK_T': 16})], key=[])"),
        {"num_stages": "5", "maxnreg": "128"},
        block("@triton.autotune([triton.Config({'BLOCK_T': 16}, num_stages=5, maxnreg=128)], key=[])"),
    ),
    "added in a list written over many lines": Case(
        block(
            "@triton.autotune(configs=[\n    triton.Config(\n        {\n            'A': 1,  # a\n            'BLOCK_T': 2,\n"
            "        },\n        num_warps=4,  # w\n        num_stages=2,  # s\n    ),\n    triton.Config({'C': 3}),\n], key=[])"
        ),
        {"C": "7", "num_ctas": "2"},
        block(
            "@triton.autotune(configs=[\n    triton.Config(\n        {\n            'A': 1,  # a\n            'BLOCK_T': 2,\n"
            "            'C': 7,\n"
            "        },\n        num_warps=4,  # w\n        num_stages=2,  # s\n        num_ctas=2,\n    ),\n], key=[])"
        ),
    ),
    "positional knobs": Case(
        block("@triton.autotune([triton.Config({'BLOCK_T': 16}, 4, 2), triton.Config({}, 8)], ['n'])"),
        {"num_stages": "3", "num_warps": "2"},
        block("@triton.autotune([triton.Config({'BLOCK_T': 16}, 2, 3)], ['n'])"),
    ),
    "the dict by keyword, as a call": Case(
        block("@triton.autotune(configs=[triton.Config(kwargs=dict(BLOCK_T=16, X=1), num_warps=4)], key=[])"),
        {"BLOCK_T": "32"},
        block("@triton.autotune(configs=[triton.Config(kwargs=dict(BLOCK_T=32, X=1), num_warps=4)], key=[])"),
    ),
    "imported by name": Case(
        block(
            "@autotune(configs=[Config({'BLOCK_T': 16}), Config({})], key=[])", "from triton import autotune, Config\n"
        ),
        {"BLOCK_T": "8"},
        block("@autotune(configs=[Config({'BLOCK_T': 8})], key=[])", "from triton import autotune, Config\n"),
    ),
    "imported under other names": Case(
        block("@at(configs=[C({'BLOCK_T': 16}), C({})], key=[])", "from triton import autotune as at, Config as C\n"),
        {"BLOCK_T": "8"},
        block("@at(configs=[C({'BLOCK_T': 8})], key=[])", "from triton import autotune as at, Config as C\n"),
    ),
    "the module under another name": Case(
        block("@tt.autotune(configs=[tt.Config({'BLOCK_T': 16}), tt.Config({})], key=[])", "import triton as tt\n"),
        {"BLOCK_T": "8"},
        block("@tt.autotune(configs=[tt.Config({'BLOCK_T': 8})], key=[])", "import triton as tt\n"),
    ),
    "heuristics between": Case(
        block("@triton.autotune([triton.Config({'BLOCK_T': 16})], [])\n@triton.heuristics({'EVEN': lambda a: True})"),
        {"BLOCK_T": "8"},
        block("@triton.autotune([triton.Config({'BLOCK_T': 8})], [])\n@triton.heuristics({'EVEN': lambda a: True})"),
    ),
    "a tuple": Case(
        block("@triton.autotune((triton.Config({'BLOCK_T': 16}), triton.Config({})), key=[])"),
        {"BLOCK_T": "8"},
        block("@triton.autotune((triton.Config({'BLOCK_T': 8}),), key=[])"),
    ),
    "a named list of its own": Case(
        block(
            "@triton.autotune(configs=LIST, key=[])",
            "LIST: list = [\n\ttriton.Config({'BLOCK_T': 16}),\n\tB,\n]  # L\n",
        ),
        {"BLOCK_T": "8"},
        block("@triton.autotune(configs=LIST, key=[])", "LIST: list = [\n\ttriton.Config({'BLOCK_T': 8}),\n]  # L\n"),
    ),
    "a named list that others use too": Case(
        block("@triton.autotune(configs=LIST, key=[])", "LIST = [triton.Config({'BLOCK_T': 16}), B]\nprint(LIST)\n"),
        {"BLOCK_T": "8"},
        block(
            "@triton.autotune(configs=[triton.Config({'BLOCK_T': 8})], key=[])",
            "LIST = [triton.Config({'BLOCK_T': 16}), B]\nprint(LIST)\n",
        ),
    ),
    "a comprehension": Case(
        block("@triton.autotune([triton.Config({'BLOCK_T': b}, num_warps=w) for b in (16, 32) for w in W], key=[])"),
        {"BLOCK_T": "8", "num_warps": "4"},
        block("@triton.autotune([triton.Config({'BLOCK_T': 8}, num_warps=4)], key=[])"),
    ),
    "a function of the same file": Case(
        block(
            "@triton.autotune(configs=make(), key=[])",
            "def make():\n    return [triton.Config({'BLOCK_T': b}, num_stages=1, pre_hook=h) for b in B]\ndef h(a): pass\n",
        ),
        {"BLOCK_T": "8", "num_stages": "2"},
        block(
            "@triton.autotune(configs=[triton.Config({'BLOCK_T': 8}, num_stages=2, pre_hook=h)], key=[])",
            "def make():\n    return [triton.Config({'BLOCK_T': b}, num_stages=1, pre_hook=h) for b in B]\ndef h(a): pass\n",
        ),
    ),
    "a list that begins with other lists": Case(
        block("@triton.autotune(configs=[*MORE, triton.Config({'BLOCK_T': 16})], key=[])"),
        {"BLOCK_T": "8"},
        block("@triton.autotune(configs=[triton.Config({'BLOCK_T': 8})], key=[])"),
    ),
    "applied as a call": Case(
        BODY + "\nfast = triton.autotune(configs=[triton.Config({'BLOCK_T': 16}), Z], key=[])(k)\n",
        {"BLOCK_T": "8"},
        BODY + "\nfast = triton.autotune(configs=[triton.Config({'BLOCK_T': 8})], key=[])(k)\n",
    ),
    "inside another decorator": Case(
        block("@only_if(CUDA, triton.autotune(configs=[triton.Config({'BLOCK_T': 16}), Z], key=[]))"),
        {"BLOCK_T": "8"},
        block("@only_if(CUDA, triton.autotune(configs=[triton.Config({'BLOCK_T': 8})], key=[]))"),
    ),
    "text, truth and absence": Case(
        block("@triton.autotune([triton.Config({'P': 'tf32', 'S': True, 'F': 0.5, 'G': 1})], key=[])"),
        {"P": "ieee", "S": "false", "F": "2", "G": "None"},
        block("@triton.autotune([triton.Config({'P': 'ieee', 'S': False, 'F': 2, 'G': None})], key=[])"),
    ),
    "one of several kernels": Case(
        block(
            "@triton.autotune([triton.Config({'BLOCK_T': 16}), Z], key=[])",
            block("@triton.autotune([Z, Z], [])").replace("def k(", "def other("),
        ),
        {"BLOCK_T": "8"},
        block(
            "@triton.autotune([triton.Config({'BLOCK_T': 8})], key=[])",
            block("@triton.autotune([Z, Z], [])").replace("def k(", "def other("),
        ),
    ),
    "in a class in a branch": Case(
        "if CUDA:\n    class A:\n        @triton.autotune(configs=[\n            triton.Config({'B': 1}),  # ü\n            Z], key=[])\n"
        "        @triton.jit\n        def k(x): pass\n",
        {"B": "2"},
        "if CUDA:\n    class A:\n        @triton.autotune(configs=[\n            triton.Config({'B': 2})  # ü\n            ], key=[])\n"
        "        @triton.jit\n        def k(x): pass\n",
    ),
}
