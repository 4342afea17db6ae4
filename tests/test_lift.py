"""The kernel lifted out of its file: what comes with it, what stays behind, and what does not change the digest.

That a lifted module compiles is held where torch and Triton are: tests/kernel/.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from orchestrator.check.lift import Lifted, lift
from orchestrator.errors import VariantError
from orchestrator.records import SourceFile

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = "@triton.jit\ndef kernel(x_ptr, n, BLOCK: tl.constexpr):\n    tl.store(x_ptr, n)\n"


def lifted(text: str, kernel: str = "kernel", **others: str) -> Lifted:
    """The kernel of ``mla.py``; further files by name: ``ops__merge`` is ``ops/merge.py``, module ``pkg.ops.merge``."""
    texts = {"mla.py": text, **{f"{name.replace('__', '/')}.py": content for name, content in others.items()}}
    files = [SourceFile.of(name, content.encode()) for name, content in texts.items()]
    return lift(files, kernel, modules={name: f"pkg.{name[:-3].replace('/', '.')}" for name in texts})


def run(text: str, **modules: object) -> dict[str, object]:
    """What a lifted text defines when it runs with a stand-in for Triton."""

    class Standin:
        """Any attribute is another one, and a call gives back the function or the arguments."""

        constexpr = language = None

        def jit(self, function: object = None, **_: object) -> object:
            return function or self.jit

        def Config(self, *arguments: object, **knobs: object) -> tuple[object, ...]:
            return (*arguments, knobs)

    triton = Standin()
    names: dict[str, object] = {}
    body = ast.parse(text)
    body.body = [s for s in body.body if not ast.unparse(s).startswith(("import triton", "from triton"))]
    exec(compile(body, "lifted", "exec"), {**modules, "triton": triton, "tl": Standin()} | names, names)
    return names


def statements(found: Lifted) -> list[str]:
    """First lines of the lifted module's statements, decorators left out."""
    return [ast.unparse(s).splitlines()[-1 if isinstance(s, ast.FunctionDef) else 0] for s in _body(found)]


def _body(found: Lifted) -> list[ast.stmt]:
    return ast.parse(found.source.text).body


def names(found: Lifted) -> set[str]:
    """Every name that the lifted module binds at its top level, imports as they are written."""
    bound = set()
    for statement in _body(found):
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound.add(node.name)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound.add(ast.unparse(statement))
        elif isinstance(statement, ast.Assign):
            bound.update(ast.unparse(target) for target in statement.targets)
    return bound


# ---- what comes along


def test_a_kernel_takes_along_what_it_uses_and_nothing_else() -> None:
    """Helpers, constants, what those are computed from and the imports in use come along; launchers and torch don't."""
    text = HEAD + (
        "import math\n"
        "from triton.language.extra import libdevice as lib, cuda\n"
        "LOG2E: tl.constexpr = tl.constexpr(math.log2(math.e))\n"
        "UNUSED = torch.zeros(1)\n"
        "def double(x: torch.Tensor) -> torch.Tensor:\n    'Doubles.'\n    return x * 2\n"
        "WIDTH = tl.constexpr(double(16))\n"
        "@custom\n@triton.jit(noinline=True)\n"
        "def inner(x):\n    return lib.exp(x) * LOG2E\n"
        "@triton.jit\n"
        "def outer(x):\n    WIDE = WIDTH\n    return inner(x) + WIDE\n"
        "@triton.jit\n"
        "def kernel(x_ptr: torch.Tensor, n: int, BLOCK: tl.constexpr = 3):\n    tl.store(x_ptr, outer(n))\n"
        "def launch(x):\n    kernel[(1,)](torch.empty(3), 1)\n"
    )
    found = lifted(text)
    assert names(found) == {
        "import triton",
        "import triton.language as tl",
        "import math",
        "from triton.language.extra import libdevice as lib",
        "double",
        "WIDTH",
        "inner",
        "outer",
        "kernel",
    }
    assert "LOG2E: tl.constexpr = " in found.source.text and "Tensor" not in found.source.text
    assert "@custom" in found.source.text  # a helper's own decorators are its business
    assert (found.imports, found.has_autotune, found.line) == (
        (),
        False,
        text[: text.index("def kernel")].count("\n") + 1,
    )


def test_local_names_bring_nothing() -> None:
    """A parameter, a variable of the kernel or of a comprehension is not the module's name."""
    text = (
        HEAD
        + "x_ptr = torch.zeros(1)\nacc = torch.ones(1)\ni = torch.ones(2)\n"
        + ("@triton.jit\ndef kernel(x_ptr, N: tl.constexpr):\n    acc = [i for i in N]\n    tl.store(x_ptr, acc)\n")
    )
    assert names(lifted(text)) == {"import triton", "import triton.language as tl", "kernel"}


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("import triton as tr, torch\nimport triton.language as tl", "@tr.jit"),
        ("from triton import jit, language as tl", "@jit"),
        ("from triton.runtime.jit import jit as compile_it\nimport triton.language as tl", "@compile_it"),
        ("from vllm.triton_utils import HAS_TRITON, tl, triton", "@triton.jit"),
        ("try:\n    import triton, triton.language as tl\nexcept ImportError:\n    triton = tl = None", "@triton.jit"),
        ("if has():\n    import triton\n    import triton.language as tl", "@triton.jit(do_not_specialize=['n'])"),
    ],
)  # fmt: skip
def test_triton_is_found_under_any_name(imports: str, decorator: str) -> None:
    """Aliases, single names, an engine's own module that hands Triton on, and guarded imports end as plain imports."""
    found = lifted(f"{imports}\n{decorator}\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, n)\n")
    assert found.imports == () and "vllm" not in found.source.text and "try" not in found.source.text
    assert decorator in found.source.text
    assert found.parameters[1].is_specialised is ("do_not_specialize" not in decorator)


def test_a_kernel_inside_a_condition_is_taken_out_of_it() -> None:
    """A kernel under `if has_triton():` comes without the condition and without what that would import."""
    text = "import torch\nfrom torch.utils._triton import has_triton\nif has_triton():\n" + "".join(
        f"    {line}\n" for line in (HEAD + "SIZE = tl.constexpr(3)\n" + KERNEL.replace("n)", "n + SIZE)")).splitlines()
    )
    found = lifted(text + "else:\n    kernel = None\n")
    assert names(found) == {"import triton", "import triton.language as tl", "SIZE", "kernel"}
    assert found.line == 9


def test_a_name_that_a_condition_decides_keeps_the_condition() -> None:
    """Two definitions of a helper stay under their `if`, with what its test needs; the rest of both branches goes."""
    text = HEAD + (
        "import os\nFAST = os.environ.get('FAST') == '1'\n"
        "if FAST:\n    exp = tl.fast_exp\n    log = torch.log\n"
        "else:\n    @triton.jit\n    def exp(x):\n        return tl.exp(x)\n    log = torch.log2\n"
        "@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, exp(n))\n"
    )
    found = lifted(text)
    assert "if FAST:\n    exp = tl.fast_exp\nelse:" in found.source.text
    assert "import os" in names(found) and "torch" not in found.source.text


def test_a_try_that_decides_a_name_stays_whole() -> None:
    """`try: import … except ImportError:` keeps every statement: what may fail is the point of it."""
    text = HEAD + (
        "try:\n    import fancy\n    HAS_FANCY = tl.constexpr(True)\nexcept ImportError:\n"
        "    HAS_FANCY = tl.constexpr(False)\n"
        "@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, n + HAS_FANCY)\n"
    )
    found = lifted(text)
    assert "try:\n    import fancy\n    HAS_FANCY = tl.constexpr(True)\nexcept ImportError:" in found.source.text
    assert found.imports == ()  # it can do without


def test_the_nearer_of_two_places_in_triton() -> None:
    """Where a version check chooses between imports of Triton, the first that is no other vendor's is taken."""
    text = HEAD + (
        "from ours.versions import is_at_least, is_hip\n"
        "if is_at_least('3.0'):\n    try:\n        from triton.language.extra.libdevice import rsqrt\n"
        "    except ModuleNotFoundError:\n        from triton.language.extra.cuda.libdevice import rsqrt\n"
        "else:\n    from triton.language.math import rsqrt\n"
        "if is_hip():\n    from triton.language.extra.hip import libdevice\n"
        "else:\n    from triton.language.extra.cuda import libdevice\n"
        "@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, rsqrt(libdevice.exp(n)))\n"
    )
    found = lifted(text)
    assert found.imports == () and "language.math" not in found.source.text
    assert "extra.cuda import libdevice" in found.source.text and "hip" not in found.source.text


# ---- further files


def test_helpers_come_from_the_other_files_of_the_target() -> None:
    """Relative and absolute imports of the target's own files are followed, under other names and through a star."""
    merge = (
        HEAD
        + "from .base import *\n@triton.jit\ndef merge(x):\n    return half(x)\n"
        + "@triton.jit\ndef unused(x):\n    return x\n"
    )
    base = HEAD + "TWO = tl.constexpr(2)\n@triton.jit\ndef half(x):\n    return x / TWO\n"
    text = HEAD + (
        "from .ops.merge import merge as combine\nfrom pkg.ops.base import TWO\n"
        "@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, combine(n) * TWO)\n"
    )
    found = lifted(text, ops__merge=merge, ops__base=base)
    assert next(name for name in statements(found) if "import" not in name) == "TWO = tl.constexpr(2)"
    assert names(found) >= {"half", "merge", "combine", "kernel", "TWO"} and "unused" not in names(found)
    assert found.imports == ()


def test_what_is_in_no_file_is_imported_and_named() -> None:
    """A helper of another module stays an import, absolute, and the module is named as needed."""
    text = HEAD + "from .ops.base import half\n@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, half(n))\n"
    found = lifted(text)
    assert found.imports == ("pkg.ops.base",) and "from pkg.ops.base import half" in found.source.text
    above = lifted(text.replace("from .ops.base", "from .... "))
    assert above.imports == ("....",)  # nothing is known above the top: it is left as it is written


def test_one_name_with_two_meanings_is_refused() -> None:
    """Two files that both bring a helper of one name cannot become one module."""
    text = HEAD + (
        "from .other import double\n@triton.jit\ndef half(x):\n    return x / 2\n"
        "@triton.jit\ndef kernel(x_ptr, n):\n    tl.store(x_ptr, half(double(n)))\n"
    )
    other = HEAD + "@triton.jit\ndef half(x):\n    return x >> 1\n@triton.jit\ndef double(x):\n    return half(x) * 4\n"
    with pytest.raises(VariantError, match=r"mla\.py and other\.py define half differently"):
        lifted(text, other=other)


# ---- decorators


AUTOTUNED: Mapping[str, str] = {
    "written out": "@triton.autotune(configs=[triton.Config({'BLOCK': 16}, num_warps=4, pre_hook=hook)], key=['n'])\n"
    + KERNEL,
    "computed": "SIZES = [16]\n"
    "@triton.autotune([triton.Config({'BLOCK': b}, num_warps=w) for b in SIZES for w in [4]], ['n'],"
    " prune_configs_by={'early': hook})\n" + KERNEL,
    "appended": "configs = []\nfor b in [16]:\n    configs.append(triton.Config({'BLOCK': b}, num_warps=4))\n"
    "@triton.heuristics({'EVEN': lambda a: a['n'] % 2 == 0})\n@triton.autotune(configs=configs, key=['n'])\n" + KERNEL,
    "by a function": "def space():\n    return [triton.Config({'BLOCK': 16}, num_warps=4)]\n"
    "@libentry()\n@tuner(configs=space(), key=['n'], extra=hook())\n" + KERNEL,
    "wrapped": KERNEL.replace("kernel", "_plain")
    + "kernel = triton.autotune(configs=[triton.Config({'BLOCK': 16}, num_warps=4)], key=['n'])(_plain)\n",
}  # fmt: skip


@pytest.mark.parametrize("case", AUTOTUNED)
def test_the_autotune_list_comes_with_what_it_is_computed_from(case: str) -> None:
    """`_orch_configs` and `_orch_key` hold the list and the key, however they are written; hooks are left out."""
    found = lifted(HEAD + "hook = torch.cuda.synchronize\n" + AUTOTUNED[case])
    assert found.has_autotune and "hook" not in found.listing.text and "torch" not in found.listing.text
    assert "_orch" not in found.source.text and "Config" not in found.source.text
    defined = run(found.listing.text)
    assert (defined["_orch_configs"], defined["_orch_key"]) == ([({"BLOCK": 16}, {"num_warps": 4})], ["n"])
    assert callable(defined[found.source.kernel])
    decorators = next(s for s in _body(found) if isinstance(s, ast.FunctionDef) and s.name == found.source.kernel)
    assert [ast.unparse(d) for d in decorators.decorator_list] == ["triton.jit"]


def test_a_list_that_cannot_be_computed_leaves_the_kernel_whole() -> None:
    """A list that needs a GPU's package fails on its own: the kernel is there, the list is absent, and it says why."""
    text = HEAD + (
        "from nowhere_at_all import is_hopper\nWARPS = [2, 4] if is_hopper() else [8]\n"
        "@triton.autotune(configs=[triton.Config({'BLOCK': 1}, num_warps=w) for w in WARPS], key=['n'])\n" + KERNEL
    )
    found = lifted(text)
    defined = run(found.listing.text)
    assert (found.imports, found.list_imports) == ((), ("nowhere_at_all",))
    assert callable(defined["kernel"]) and "_orch_configs" not in defined
    assert defined["_orch_configs_error"] == "ModuleNotFoundError: No module named 'nowhere_at_all'"
    assert defined["_orch_key"] == ["n"]


def test_heuristics_and_foreign_decorators_are_named() -> None:
    """What a heuristic computes must be given, and what a decorator did is lost: both are named."""
    text = (
        HEAD
        + "RULES = {'EVEN': lambda a: True}\n@libentry()\n"
        + "@triton.heuristics(RULES)\n@triton.heuristics(values={'BIG': f})\n"
    )
    found = lifted(text + KERNEL)
    assert (found.heuristics, found.dropped_decorators) == (("EVEN", "BIG"), ("libentry",))
    assert "EVEN" not in found.source.text and "libentry" not in found.source.text


def test_the_parameters_are_read() -> None:
    """Annotations that Triton reads, defaults, and what may not be specialised."""
    text = HEAD + (
        "@triton.jit(do_not_specialize=['n', 2], do_not_specialize_on_alignment=['m'], repr=name_of, debug=False)\n"
        "def kernel(x: tl.tensor, n: tl.int64, k, m: 'i32', e: float = 1e-6, *,\n"
        "           D: tl.constexpr = None, T: 'tl.constexpr'):\n"
        "    pass\n"
    )
    found = lifted(text)
    rows = [(p.name, p.annotation, p.default, p.is_specialised, p.is_alignment_specialised) for p in found.parameters]
    assert rows == [
        ("x", None, None, True, True),
        ("n", "int64", None, False, False),
        ("k", None, None, False, False),
        ("m", "i32", None, True, False),
        ("e", "float", "1e-06", True, True),
        ("D", "constexpr", "None", True, True),
        ("T", "constexpr", None, True, True),
    ]
    assert [p.name for p in found.parameters if p.is_constexpr] == ["D", "T"]
    assert "name_of" not in found.source.text and "do_not_specialize_on_alignment=['m']" in found.source.text


# ---- the digest


def test_what_does_not_change_the_kernel_does_not_change_the_digest() -> None:
    """Comments, docstrings, layout, other functions, another line and another list give the same digest."""
    tuned = "@triton.autotune(configs=[triton.Config({'BLOCK': 16})], key=['n'])\n" + KERNEL
    first = lifted(HEAD + tuned)
    other = (
        HEAD
        + "# more\n\n\ndef launch():\n    pass\n"
        + tuned.replace(
            "    tl.store(x_ptr, n)", '    """Stores."""\n    # now\n    tl.store(\n        x_ptr,\n        n,\n    )'
        )
    )
    moved = lifted(other)
    assert moved.source.digest == first.source.digest and moved.line == first.line + 5
    assert lifted(HEAD + tuned.replace("x_ptr, n)", "x_ptr, n + 1)")).source.digest != first.source.digest
    other_list = lifted(HEAD + tuned.replace("16", "32"))
    assert other_list.source.digest == first.source.digest and other_list.listing.digest != first.listing.digest


def test_postponed_annotations_stay_postponed() -> None:
    """A file that postpones its annotations gives a module that does."""
    assert lifted("from __future__ import annotations\n" + HEAD + KERNEL).source.text.startswith("from __future__")
    assert "__future__" not in lifted(HEAD + KERNEL).source.text


# ---- refused


REFUSALS: Mapping[str, tuple[str, str, str]] = {
    "no such kernel": (
        HEAD + KERNEL,
        "kernal",
        "mla.py has no kernel kernal: did you mean kernel? kernels there: kernel; correct `kernel` in inventory.yaml",
    ),
    "not jitted": (HEAD + "def kernel(x):\n    pass\n", "kernel", "mla.py:4: kernel is not decorated with @triton.jit"),
    "of another language": (
        "from triton.experimental import gluon\n@gluon.jit\ndef kernel(x):\n    pass\n",
        "kernel",
        "mla.py:3: kernel is not decorated with @triton.jit: kernels there: none",
    ),
    "of another package": (
        "import numba\n@numba.jit\ndef kernel(x):\n    pass\n",
        "kernel",
        "mla.py:3: kernel is not decorated with @triton.jit",
    ),
    "nested": (
        HEAD + "def make():\n    @triton.jit\n    def kernel(x):\n        pass\n    return kernel\n",
        "kernel",
        "mla.py:6: kernel is defined inside another function or class, and orch check lifts kernels of the top level",
    ),
    "twice": (HEAD + KERNEL + KERNEL, "kernel", "mla.py defines kernel 2 times (lines 5, 8); orch cannot tell which"),
    "no Python": (HEAD + "def kernel(:\n", "kernel", "mla.py:4: does not parse (invalid syntax)"),
    "binary": ("\0", "kernel", "mla.py"),
    "too deep": (f"x = {'(' * 5000}1{')' * 5000}\n", "kernel", "mla.py"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_lifted_is_refused_in_one_line(case: str) -> None:
    """The refusal names file and line, and the kernels that there are instead."""
    text, kernel, wanted = REFUSALS[case]
    with pytest.raises(VariantError) as caught:
        lifted(text, kernel)
    assert str(caught.value).startswith(wanted) and "\n" not in str(caught.value)
