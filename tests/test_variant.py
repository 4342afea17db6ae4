"""Variants: forcing one config changes only the list, and every other difference is found and named."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import VariantError
from orchestrator.records import Change, SourceFile, Variant, WorkingCopy, manifest_digest
from orchestrator.variant import changes, describe, make_variant, set_knobs, with_knobs
from tests.support.autotune_corpus import BODY, CASES, SEED, V2, block

# ---- setting knobs


@pytest.mark.parametrize("name", CASES)
def test_one_config_is_forced_and_everything_else_stays(name: str) -> None:
    """However a list is written, it becomes one config with the given knobs, in its own format."""
    case = CASES[name]
    assert set_knobs(case.before.encode(), "k", case.settings).decode() == case.after


@pytest.mark.parametrize("name", CASES)
def test_setting_knobs_is_isolated(name: str) -> None:
    """Comparing finds knobs alone in what was made by setting knobs; and doing it twice changes nothing more."""
    case = CASES[name]
    made = set_knobs(case.before.encode(), "k", case.settings)
    assert {change.kind for change in changes(case.before.encode(), made, "k.py", "k")} == {"knob"}
    assert set_knobs(made, "k", case.settings) == made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["crlf", "tabs", "bom", "no newline at the end", "form feed"])
def test_the_bytes_of_a_file_are_kept(form: str, name: str) -> None:
    """Line ends, tabs, a byte order mark and a missing last newline come through."""
    case = CASES[name]
    forms = {
        "crlf": lambda text: text.replace("\n", "\r\n").encode(),
        "tabs": lambda text: (
            text.replace("    pid", "\tpid").replace("    tl", "\ttl").replace("    #", "\t#").encode()
        ),
        "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
        "no newline at the end": lambda text: text.rstrip("\n").encode(),
        "form feed": lambda text: ("\x0c\n" + text).encode(),
    }
    shaped = forms[form]
    assert set_knobs(shaped(case.before), "k", case.settings) == shaped(case.after)


NO_AUTOTUNE = BODY.replace("x, 1)", "x, 1, num_warps=8, num_stages=2)")
AUTOTUNED = "@triton.autotune([triton.Config({'BLOCK_T': 16}, num_warps=4)], key=[])"

REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "unknown knob": (
        block(AUTOTUNED),
        {"BLOK_T": "1"},
        r"no config of k has a knob BLOK_T: did you mean BLOCK_T\? knobs:",
    ),
    "a knob of the launch": (block(AUTOTUNED), {"n": "1"}, r"a knob n \(the launch passes it, so a config may not\)"),
    "a knob of heuristics": (
        block(AUTOTUNED + "\n@triton.heuristics({'EVEN': f})"),
        {"EVEN": "True"},
        r"a knob EVEN \(it is computed by @triton.heuristics\)",
    ),
    "no number": (
        block(AUTOTUNED),
        {"num_warps": "four"},
        "num_warps=four is not a number, True, False, None or a quoted",
    ),
    "an expression": (block(AUTOTUNED), {"num_warps": "2*2"}, r"num_warps=2\*2 is not a number"),
    "code": (block(AUTOTUNED), {"BLOCK_T": "__import__('os')"}, "is not a number"),
    "a list": (block(AUTOTUNED), {"BLOCK_T": "[1]"}, r"BLOCK_T=\[1\] is not a number"),
    "text for a number": (block(AUTOTUNED), {"BLOCK_T": "'a'"}, "BLOCK_T takes a whole number, and 'a' is not"),
    "truth for a number": (block(AUTOTUNED), {"BLOCK_T": "True"}, "BLOCK_T takes a whole number, and True is not"),
    "three warps": (block(AUTOTUNED), {"num_warps": "3"}, "num_warps takes a power of two, and 3 is not"),
    "no warps": (block(AUTOTUNED), {"num_warps": "0"}, "num_warps takes a whole number from 1, and 0 is not"),
    "unset warps": (block(AUTOTUNED), {"num_warps": "None"}, "num_warps takes a whole number from 1, and None is not"),
    "no autotune": (BODY, {"num_warps": "8"}, "k has no @triton.autotune, so it has no list of knobs"),
    "knobs at the launch": (
        NO_AUTOTUNE,
        {"num_warps": "8"},
        r"k has no @triton.autotune; its launch passes num_warps=8 \(line 10\), num_stages=2 \(line 10\): edit the",
    ),
    "two lists": (block(AUTOTUNED) + block(AUTOTUNED), {"num_warps": "8"}, r"k has 2 autotune lists \(lines 5, 19\)"),
    "a comprehension with a knob not named": (
        block("@triton.autotune([triton.Config({'A': a}, num_warps=w) for a in B for w in W], key=[])"),
        {"A": "1"},
        "every knob must be set; missing: num_warps: --set num_warps=…",
    ),
    "a function of another file": (
        block("@triton.autotune(configs=elsewhere(), key=[])"),
        {"num_warps": "8"},
        "by something that this file does not define",
    ),
    "arguments not shown": (
        block("@triton.autotune(**SETTINGS)"),
        {"num_warps": "8"},
        "does not name its configs here",
    ),
    "a dict not shown": (
        block("@triton.autotune([triton.Config({**BASE, 'A': 1})], key=[])"),
        {"num_warps": "8", "B": "1"},
        "no config of k has a knob B",
    ),
    "knobs not shown": (
        block("@triton.autotune([triton.Config({'A': 1}, **MORE)], key=[])"),
        {"num_warps": "8"},
        r"does not show all of its knobs \(\*\*\), so num_warps cannot be added",
    ),
    "a hook that needs the loop": (
        block("@triton.autotune([triton.Config({'A': a}, pre_hook=hooks[a]) for a in B], key=[])"),
        {"A": "1"},
        "their pre_hook cannot be taken over",
    ),
    "not Python": ("def k(:\n", {"num_warps": "8"}, r"kernel.py:1: does not parse"),
    "another encoding": ("# coding: latin-1\n", {"num_warps": "8"}, "declares the encoding iso-8859-1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_set_is_refused_with_the_way_out(name: str) -> None:
    """A knob, value or list that cannot be handled is one clear line, and nothing is guessed."""
    text, knobs, message = REFUSED[name]
    with pytest.raises(VariantError, match=message):
        set_knobs(text.encode(), "k", knobs)


def test_an_unknown_kernel_lists_the_nearest() -> None:
    """The kernels of the file are named, nearest first."""
    with pytest.raises(VariantError, match=r"has no kernel kk: did you mean k\? kernels there: k;"):
        set_knobs(SEED.encode(), "kk", V2)


# ---- property: only the list changes

NAMES = st.sampled_from(["BLOCK_T", "BLOCK_D", "waves"])
CONFIG_TEXTS = st.builds(
    lambda quote, meta, own, space, comma: (
        f"triton.Config({{{(',' + space).join(f'{quote}{k}{quote}:{space}{v}' for k, v in meta.items())}}}"
        f"{''.join(f',{space}{k}={v}' for k, v in own.items())}{comma})"
    ),
    st.sampled_from("'\""),
    st.dictionaries(NAMES, st.integers(1, 512), min_size=1),
    st.dictionaries(st.sampled_from(["num_warps", "num_stages", "num_ctas"]), st.sampled_from([1, 2, 4, 8])),
    st.sampled_from(["", " ", "\n        ", "  # c\n        "]).map(lambda s: s if s.strip() == "" else " "),
    st.sampled_from(["", ",", ", ", ",  # last\n    "]),
)
JOINTS = st.sampled_from([", ", ",", ",\n    ", ",  # é\n    ", ",\n\n    # between\n    ", "\n    , "])
ENDS = st.sampled_from(["", " ", "\n", ",\n", ",  # end\n", ",\n    # end\n"])


@st.composite
def list_texts(draw: st.DrawFn) -> str:
    """A config list in some format."""
    text = "[" + draw(st.sampled_from(["", "\n    ", "  # head\n    "])) + draw(CONFIG_TEXTS)
    for entry in draw(st.lists(CONFIG_TEXTS, max_size=3)):
        text += draw(JOINTS) + entry
    return text + draw(ENDS) + "]"


@settings(max_examples=60, deadline=None)
@given(
    list_text=list_texts(),
    newline=st.sampled_from(["\n", "\r\n"]),
    is_named=st.booleans(),
    warps=st.sampled_from([1, 2, 16]),
)
def test_only_bytes_inside_the_list_change(list_text: str, newline: str, is_named: bool, warps: int) -> None:
    """In any format: bytes before and after the list stay, every other function stays, and the knobs are right."""
    head = "# é 𝄞\nimport triton\n\ndef f():\n    return [1, 2]  # keep\n\n"
    if is_named:
        before, after = f"{head}LIST = ", f"\n@triton.autotune(configs=LIST, key=['n'])  # here{BODY}"
    else:
        before, after = f"{head}@triton.autotune(key=['n'], configs=", f")  # here{BODY}"
    prefix, suffix = (part.replace("\n", newline).encode() for part in (before, after))
    content = prefix + list_text.replace("\n", newline).encode() + suffix
    made = set_knobs(content, "k", {"num_warps": str(warps)})
    assert made.startswith(prefix) and made.endswith(suffix)
    forced = made[len(prefix) : len(made) - len(suffix)].decode()
    assert forced.count("\r\n") == forced.count("\n") or newline == "\n"
    first = ast.parse(list_text, mode="eval").body.elts[0]  # type: ignore[attr-defined]
    (config,) = ast.parse(forced, mode="eval").body.elts  # type: ignore[attr-defined]
    assert ast.dump(config.args[0]) == ast.dump(first.args[0])
    own = {keyword.arg: ast.literal_eval(keyword.value) for keyword in config.keywords}
    assert own == {**{keyword.arg: ast.literal_eval(keyword.value) for keyword in first.keywords}, "num_warps": warps}
    assert _functions(made)[1:] == _functions(content)[1:] and len(_functions(made)) == 3
    assert all(change.kind == "knob" for change in changes(content, made, "k.py", "k"))


def _functions(content: bytes) -> list[str]:
    """The functions of a file, those without a list first told apart: the kernel comes first."""
    found = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.FunctionDef)]
    return [ast.dump(node) for node in sorted(found, key=lambda node: node.name != "k")]


# ---- naming differences

FILE = "k.py"


def found(base: str, edited: str, kernel: str | None = "k") -> list[tuple[str, str, str, str | None, str | None]]:
    """Every change as a plain tuple."""
    return [(c.kind, c.where, c.name, c.before, c.after) for c in changes(base.encode(), edited.encode(), FILE, kernel)]


def test_v2_against_the_seed_names_knobs_and_list() -> None:
    """The one knob that differs from the first config is named with both values, and so is the shorter list."""
    edited = CASES["the seed's V2"].after
    assert found(SEED, edited) == [
        ("knob", "config 0", "num_stages", "2", "3"),
        ("knob", "k", "configs", "3", "1"),
    ]
    assert found(SEED, SEED) == []


EDITS: dict[str, tuple[str, str, list[tuple[str, str, str]]]] = {
    "one knob of one config": ("=8, num_stages=2", "=8, num_stages=4", [("knob", "config 2", "num_stages")]),
    "a knob that was not set": ("num_warps=8, num_stages=2", "num_warps=8", [("knob", "config 2", "num_stages")]),
    "one config less": (
        '        triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),\n',
        "",
        [("knob", "config 1", "config"), ("knob", "k", "configs")],
    ),
    "one config more": (
        "        # end",
        "        triton.Config({'BLOCK_T': 8}),\n        # end",
        [("knob", "config 3", "config"), ("knob", "k", "configs")],
    ),
    "a comment inside the list": ("# widest", "# the widest", [("text", "k", "comments or white space")]),
    "another spelling of a value": ("num_warps=8", "num_warps=0x8", [("text", "k", "comments or white space")]),
    "another order of knobs": (
        "num_warps=8, num_stages=2",
        "num_stages=2, num_warps=8",
        [("knob", "config 2", "spelling")],
    ),
    "another constructor": (
        'triton.Config({"BLOCK_T": 32}, num_warps=8',
        'evil.Config({"BLOCK_T": 32}, num_warps=8',
        [("code", "config 2", "constructor")],
    ),
    "a config by another constructor": (
        "        # end",
        "        evil.Config({'BLOCK_T': 8}),\n        # end",
        [("knob", "k", "configs"), ("code", "config 3", "config")],
    ),
    "a hook in a config": ("num_warps=8, num", "pre_hook=h, num_warps=8, num", [("code", "config 2", "pre_hook")]),
    "a call in a knob": ("num_warps=8", "num_warps=patch(tl)", [("code", "config 2", "num_warps")]),
    "a lambda in a knob": ("num_warps=8", "num_warps=(lambda: 8)()", [("code", "config 2", "num_warps")]),
    "other lists in the list": (
        "        # end",
        "        *MORE,\n        # end",
        [("knob", "k", "configs"), ("code", "config 3", "config")],
    ),
    "the key": ('key=["n"]', 'key=["n", "x"]', [("code", "k", "decorators")]),
    "the body of the kernel": ("pid * BLOCK_T", "pid * BLOCK_T * 1", [("code", "k", "body")]),
    "the signature": ("n, BLOCK_T", "n, m, BLOCK_T", [("code", "k", "signature")]),
    "another function": ("x, 1)", "x, 2)", [("code", "launch", "body")]),
    "a decorator": ("@triton.jit", "@triton.jit(debug=True)", [("code", "k", "decorators")]),
    "a docstring": ("def launch(x):", 'def launch(x):\n    """Do."""', [("code", "launch", "docstring")]),
    "an import": ("import triton\n", "import triton, os\n", [("code", "module", "import triton → import triton, os")]),
    "a new function": ("def launch", "def more(): pass\n\n\ndef launch", [("code", "more", "function")]),
    "a function renamed": ("def launch", "def start", [("code", "launch", "function"), ("code", "start", "function")]),
    "a new statement": ("import triton\n", "import triton\nX = 1\n", [("code", "module", "X")]),
    "a comment": ("# one program", "# a program", [("text", "k", "comments or white space")]),
    "a blank line": ("\n\n\ndef launch", "\n\n\n\ndef launch", [("text", "module", "comments or white space")]),
    "white space in a function": ("(1,)", "(1, )", [("text", "launch", "comments or white space")]),
    "a comment behind the list": ("],\n    key", "],  # c\n    key", [("text", "k", "comments or white space")]),
    "the last newline": ("k[(1,)](x, 1)\n", "k[(1,)](x, 1)", [("text", "module", "comments or white space")]),
    "a knob and a comment": (
        "num_warps=8, num_stages=2),  # widest\n        # end of list\n    ],\n",
        "num_warps=8, num_stages=4),  # widest\n        # end of list\n    ],  # new\n",
        [("knob", "config 2", "num_stages"), ("text", "k", "comments or white space")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_every_edit_by_hand_is_named(name: str) -> None:
    """A difference is a knob only inside the kernel's list and only as a plain value; all else is code or text."""
    old, new, expected = EDITS[name]
    assert SEED.count(old) == 1, SEED.count(old)
    assert [change[:3] for change in found(SEED, SEED.replace(old, new))] == expected


def test_line_endings_alone_are_told_as_such() -> None:
    """A file that only went through another editor is no variant, and says why."""
    assert found(SEED, SEED.replace("\n", "\r\n")) == [("text", "module", "line endings", None, None)]


def test_a_moved_function_is_told_once() -> None:
    """Order counts as a change, and is not mistaken for a removal and an addition."""
    first, second = "def a():\n    return 1\n\n\n", "def b():\n    return 2\n\n\n"
    third = "def c():\n    return 3\n"
    assert found(first + second + third, second + first + third, None) == [("code", "b", "place", None, None)]


def test_a_definition_in_another_branch_is_a_change() -> None:
    """The same function under another condition is not the same."""
    base = "if A:\n    def f(): pass\nelse:\n    def g(): pass\n"
    edited = "if A:\n    def g(): pass\nelse:\n    def f(): pass\n"
    assert {change[1] for change in found(base, edited, None)} == {"f", "g"}
    assert found(base, base.replace("if A", "if B"), None)[0][:3] == ("code", "module", "if A: → if B:")


def test_a_method_is_named_with_its_class() -> None:
    """And so is a statement of a class and its head."""
    base = "class A(B):\n    x = 1\n    def f(self): return 1\n"
    assert found(base, base.replace("return 1", "return 2"), None)[0][:3] == ("code", "A.f", "body")
    assert found(base, base.replace("x = 1", "x = 2"), None)[0][:3] == ("code", "A", "x")
    assert found(base, base.replace("(B)", "(C)"), None)[0][:3] == ("code", "A", "class")


def test_a_shared_list_edited_in_place_is_not_isolated() -> None:
    """Its knobs are named, and so is the statement that another kernel uses too."""
    base = CASES["a named list that others use too"].before
    kinds = [change[:3] for change in found(base, base.replace("16", "8"))]
    assert kinds == [("knob", "config 0", "BLOCK_T"), ("code", "module", "LIST")]


def test_a_list_of_its_own_edited_in_place_is_isolated() -> None:
    """A named list that nothing else uses is the kernel's list."""
    base = CASES["a named list of its own"].before
    assert [change[:3] for change in found(base, base.replace("16", "8"))] == [("knob", "config 0", "BLOCK_T")]


def test_a_computed_list_is_told_as_a_whole() -> None:
    """A comprehension of plain values is knobs; what a function computes is code, in the function."""
    base = CASES["a comprehension"].before
    ((kind, where, name, before, after),) = found(base, base.replace("(16, 32)", "(16,)"))
    assert (kind, where, name) == ("knob", "k", "configs") and "(16, 32)" in str(before) and "(16,)" in str(after)
    assert found(base, base.replace("in W]", "in hack(W)]"))[0][0] == "code"
    assert found(base, base.replace("in W]", "in evil.range(W)]"))[0][0] == "code"
    base = CASES["a function of the same file"].before
    assert [change[:3] for change in found(base, base.replace("num_stages=1", "num_stages=3"))] == [
        ("code", "make", "body")
    ]


def test_another_kernels_list_is_code() -> None:
    """Knobs are those of the target's kernel only."""
    base = block("@triton.autotune([triton.Config({'A': 1})], [])").replace("def k(", "def other(") + block(AUTOTUNED)
    assert [c[:3] for c in found(base, base.replace("'A': 1", "'A': 2"))] == [("code", "other", "decorators")]


def test_without_the_kernel_everything_is_code() -> None:
    """When the kernel or its list is gone, nothing passes as a knob."""
    assert {
        change[0] for change in found(SEED, SEED.replace("def k(", "def kk(").replace("num_warps=8", "num_warps=2"))
    } == {"code"}


def test_a_file_that_is_not_python_is_one_change() -> None:
    """A tuned table or a CUDA source is compared as text."""
    change = Change("code", "t.json", "file", "content", '{"a": 1}', '{"a": 2}')
    assert changes(b'{"a": 1}\n', b'{"a": 2}\n', "t.json", None) == (change,)


# ---- variants


def variant_of(base: Sequence[SourceFile], files: Sequence[SourceFile], **flags: bool) -> Variant:
    """The variant V2 that these files make of this base."""
    digest = manifest_digest((file.name, file.digest) for file in base)
    working = WorkingCopy("mla", "V2", tuple(files), digest, "why", "2026-01-01T00:00:00Z")
    return make_variant(base, working, "k", **flags)


BASE = (SourceFile.of("k.py", SEED.encode()), SourceFile.of("ops/m.py", b"def m():\n    return 1\n"))


def edit(first: str = SEED, second: str = "def m():\n    return 1\n") -> tuple[SourceFile, ...]:
    """The base's files with other contents."""
    return (SourceFile.of("k.py", first.encode()), SourceFile.of("ops/m.py", second.encode()))


def test_an_isolated_variant_says_so() -> None:
    """Setting knobs gives an isolated variant whose sentence names every knob that differs."""
    variant = variant_of(BASE, with_knobs(BASE, "k", V2), only_knobs=True)
    assert variant.is_isolated and variant.edited_functions == ()
    assert describe(variant) == "isolated: num_stages 2 → 3, configs 3 → 1"


def test_a_variant_that_is_not_isolated_names_everything_else() -> None:
    """One sentence names knobs, functions, other files and comments."""
    text = SEED.replace("num_warps=8", "num_warps=2").replace("pid * BLOCK_T", "pid + BLOCK_T").replace("], \n", "")
    variant = variant_of(BASE, edit("# note\n" + text, "def m():\n    return 2\n\n\ndef more():\n    pass\n"))
    assert not variant.is_isolated and variant.edited_functions == ("k", "m", "more")
    assert describe(variant) == (
        "not isolated: config 2 num_warps 8 → 2; and it changes k.py: k (body), "
        "k.py: module (comments or white space), ops/m.py: m (body), ops/m.py: more (adds it)"
    )
    with pytest.raises(VariantError, match="setting knobs would change more than knobs: not isolated"):
        variant_of(BASE, variant.files, only_knobs=True)


def test_a_variant_that_changes_nothing_is_refused() -> None:
    """An untouched copy is no variant; a caller that only lists may allow it."""
    with pytest.raises(VariantError, match="variant V2 changes nothing"):
        variant_of(BASE, BASE)
    assert describe(variant_of(BASE, BASE, may_be_unchanged=True)).startswith("unchanged")
    assert not variant_of(BASE, BASE, may_be_unchanged=True).is_isolated


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"def k(:\n", r"k\.py:1: does not parse"),
        (b"x = 1\ny = (\n", r"k\.py:2: does not parse \('\(' was never closed\)"),
        (b"x = 1\n\xff\n", r"k\.py:2: byte 0xff is not UTF-8"),
        (b"\x7fELF\0\0", r"k\.py holds a NUL byte at 4"),
        (b"(" * 3000, r"k\.py:1: does not parse|nested too deep"),
    ],
)
def test_a_file_that_cannot_be_a_kernel_is_refused(content: bytes, message: str) -> None:
    """Broken, binary and wrongly encoded files are refused with file and line."""
    with pytest.raises(VariantError, match=message):
        variant_of(BASE, (SourceFile.of("k.py", content), BASE[1]))


def test_a_working_copy_of_another_base_is_refused() -> None:
    """Differences to a base that it was not made from would mean nothing."""
    working = WorkingCopy("mla", "V2", edit("x = 1\n"), "sha256:" + "0" * 64, "", "2026-01-01T00:00:00Z")
    with pytest.raises(VariantError, match="was made from baseline 000000000000, not from"):
        make_variant(BASE, working, "k")
    with pytest.raises(VariantError, match=r"has the files k\.py, its baseline k\.py, ops/m\.py"):
        variant_of(BASE, BASE[:1])
