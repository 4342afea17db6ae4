"""A kernel lifted out of its file: the jitted function with all that it needs, as a small module of its own.

Takes the files of a target, gives one Python text that defines the kernel under its own name with a bare ``jit``, its
helpers, constants and the imports that are used. Works on syntax trees alone: nothing is imported or run here.

At the end of a second text, the listing, stand ``_orch_configs`` and ``_orch_key``, the arguments of the kernel's
autotune decorator, as expressions with what they need. Where such an expression is more than a plain value it is
guarded: when it cannot be evaluated, the name is absent, ``_orch_configs_error`` (``_orch_key_error``) says why, and
the kernel is still there.
Dropped: ``pre_hook``, ``prune_configs_by``, heuristics, other decorators, comments, docstrings, and annotations that
Triton does not read; so an edit of those, or one that moves the kernel to another line, leaves the text as it was.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.check.closure import Closure, Selection
from orchestrator.check.module_parts import Module, Part, names_used, parse, triton_annotation
from orchestrator.errors import VariantError
from orchestrator.records import SourceFile, digest_of
from orchestrator.verdicts import KernelSource

_LAUNCHER_ONLY = ("repr", "launch_metadata")
"""Arguments of ``jit`` that only the launcher reads."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        annotation: what Triton reads in it (``constexpr``, ``int32``, ``*fp32``); None when it reads nothing.
        default: as source text; None when there is none.
        is_specialised: Triton may specialise on its value (``do_not_specialize``).
        is_alignment_specialised: Triton may specialise on its divisibility by 16.
    """

    name: str
    annotation: str | None
    is_constexpr: bool
    default: str | None
    is_specialised: bool = True
    is_alignment_specialised: bool = True


@dataclass(frozen=True, slots=True)
class Lifted:
    """A kernel outside its file.

    Attributes:
        source: the kernel alone: the same whatever its autotune list says. listing: the kernel and its list.
        line: of the kernel's ``def`` in its file, 1 for the first.
        has_autotune: whether it has an autotune decorator; its list may still be impossible to evaluate.
        heuristics: constexprs that ``@triton.heuristics`` computes at launch, as far as its names can be read.
        dropped_decorators: names of decorators that are neither Triton's jit, autotune nor heuristics.
        imports: dotted modules beyond Triton and the standard library that the text cannot do without.
        list_imports: likewise, what the autotune list asks beside.
    """

    source: KernelSource
    listing: KernelSource
    parameters: tuple[Parameter, ...]
    line: int
    has_autotune: bool
    heuristics: tuple[str, ...] = ()
    dropped_decorators: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    list_imports: tuple[str, ...] = ()


def lift(files: Sequence[SourceFile], kernel: str, *, modules: Mapping[str, str | None]) -> Lifted:
    """Lifts a kernel out of the first of a target's files.

    Args:
        files: of the target; helpers that the kernel imports from the others are lifted with it.
        kernel: name of the jitted function, or of the variable that its tuned form is assigned to.
        modules: by name of a file, the dotted name by which the engine imports it; may lack files.

    Raises:
        VariantError: a file does not parse, there is no such kernel at the top level (says what there is), or two
            files define one name differently.
    """
    parsed = {file.name: parse(file, modules.get(file.name)) for file in files}
    home = parsed[files[0].name]
    part, function, decorators = _find(home, kernel)
    jit = next(decorator for decorator in decorators if _is_jit(home, decorator))
    autotune = next((call for decorator in decorators for call in _autotunes(decorator)), None)
    function.decorator_list = [_without_launcher(jit)]
    closure = Closure(parsed, home)
    kernel_selection = closure.of_part(home, part)
    lines = _header(home) + kernel_selection.lines()
    tuning, list_selections = _tuning(closure, home, autotune)
    return Lifted(
        source=_source(function.name, lines),
        listing=_source(function.name, [*lines, *tuning]),
        parameters=tuple(_parameters(function, jit)),
        line=function.lineno,
        has_autotune=autotune is not None,
        heuristics=tuple(_heuristics(home, decorators)),
        dropped_decorators=tuple(_dropped(home, decorators)),
        imports=tuple(_foreign_imports(kernel_selection)),
        list_imports=tuple(dotted for selection in list_selections for dotted in _foreign_imports(selection)),
    )


def _source(kernel: str, lines: Sequence[str]) -> KernelSource:
    text = "\n".join(lines) + "\n"
    return KernelSource(kind="source", kernel=kernel, text=text, digest=digest_of(text.encode()))


# ---- finding the kernel


def _find(module: Module, kernel: str) -> tuple[Part, ast.FunctionDef, list[ast.expr]]:
    """The kernel's part, its function, and all decorators, those of wrapping assignments first."""
    jitted = []
    for part in module.parts:
        function = part.original
        if isinstance(function, ast.FunctionDef):
            names, wrappers = _wrappers(module, function.name)
            decorators = [*wrappers, *function.decorator_list]
            if kernel in names and any(_is_jit(module, decorator) for decorator in decorators):
                jitted.append((part, function, decorators))
    if not jitted:
        raise _not_found(module, kernel)
    if len(jitted) > 1:
        lines = ", ".join(str(function.lineno) for _, function, _ in jitted)
        raise VariantError(
            f"{module.name} defines {kernel} {len(jitted)} times (lines {lines}); orch cannot tell which one runs",
            next_step="let `kernel` in inventory.yaml name one that is defined once",
        )
    part, _, decorators = jitted[0]
    assert isinstance(part.statement, ast.FunctionDef)
    return part, part.statement, decorators


def _wrappers(module: Module, function: str) -> tuple[set[str], list[ast.expr]]:
    """Names of a function, and what wraps it in assignments: ``tuned = triton.autotune(…)(function)``."""
    names, wrappers = {function}, []
    for part in module.parts:
        value = part.original.value if isinstance(part.original, ast.Assign) else None
        found = []
        while isinstance(value, ast.Call) and len(value.args) == 1:
            found.append(value.func)
            value = value.args[0]
        is_wrapped = isinstance(value, ast.Name) and value.id == function
        if is_wrapped and any(_is_jit(module, one) or list(_autotunes(one)) for one in found):
            names |= part.binds
            wrappers += found
    return names, wrappers


def _is_jit(module: Module, decorator: ast.expr) -> bool:
    """``jit`` of Triton under any name that it is imported by, called or bare; not that of another package."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    root, _, rest = ast.unparse(called).partition(".")
    dotted = ".".join([module.imported(root) or root, *([rest] if rest else [])])
    is_triton = dotted.startswith("triton.") or (dotted == "jit" and module.imported(root) is None)
    return dotted.rsplit(".", 1)[-1] == "jit" and is_triton and "gluon" not in dotted


def _autotunes(node: ast.expr) -> Iterator[ast.Call]:
    """The autotune call of a decorator, or a stand-in that takes ``configs=`` likewise; also inside another call."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call):
            is_stand_in = any(keyword.arg == "configs" for keyword in child.keywords)
            if is_stand_in or _last_name(child) == "autotune":
                yield child


def _last_name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rsplit(".", 1)[-1]


def _not_found(module: Module, kernel: str) -> VariantError:
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]
    top = {id(part.original) for part in module.parts}
    there = sorted({f.name for f in functions if id(f) in top and any(_is_jit(module, d) for d in f.decorator_list)})
    near = difflib.get_close_matches(kernel, there, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    hint += f"kernels there: {', '.join(there) or 'none'}; correct `kernel` in inventory.yaml"
    found = next((function for function in functions if function.name == kernel), None)
    if found is None:
        return VariantError(f"{module.name} has no kernel {kernel}", next_step=hint)
    if id(found) not in top:
        return VariantError(
            f"{module.name}:{found.lineno}: {kernel} is defined inside another function or class, and orch check "
            "lifts kernels of the top level only",
            next_step=hint,
        )
    return VariantError(f"{module.name}:{found.lineno}: {kernel} is not decorated with @triton.jit", next_step=hint)


# ---- what its decorators say


def _without_launcher(jit: ast.expr) -> ast.expr:
    if not isinstance(jit, ast.Call):
        return jit
    kept = [keyword for keyword in jit.keywords if keyword.arg not in _LAUNCHER_ONLY]
    return ast.Call(func=jit.func, args=[], keywords=kept) if kept else jit.func


def _parameters(function: ast.FunctionDef, jit: ast.expr) -> Iterator[Parameter]:
    whole = _names_in(jit, "do_not_specialize")
    alignment = _names_in(jit, "do_not_specialize_on_alignment")
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    for i, (argument, default) in enumerate(zip([*positional, *arguments.kwonlyargs], defaults, strict=True)):
        annotation = triton_annotation(argument.annotation)
        yield Parameter(
            name=argument.arg,
            annotation=annotation,
            is_constexpr=annotation == "constexpr",
            default=None if default is None else ast.unparse(default),
            is_specialised=not whole & {i, argument.arg},
            is_alignment_specialised=not (whole | alignment) & {i, argument.arg},
        )


def _names_in(jit: ast.expr, argument: str) -> set[object]:
    """Names and positions in a literal list that ``jit`` is given; a computed list counts as empty."""
    for keyword in jit.keywords if isinstance(jit, ast.Call) else []:
        if keyword.arg == argument and isinstance(keyword.value, ast.List | ast.Tuple | ast.Set):
            return {entry.value for entry in keyword.value.elts if isinstance(entry, ast.Constant)}
    return set()


def _heuristics(module: Module, decorators: Sequence[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and _last_name(decorator) == "heuristics":
            for value in [*decorator.args, *[keyword.value for keyword in decorator.keywords]]:
                yield from _keys(module, value)


def _keys(module: Module, value: ast.expr) -> Iterator[str]:
    """Keys of a dict, written here or under a name of the module."""
    if isinstance(value, ast.Name):
        for part in module.bindings.get(value.id, []):
            if isinstance(part.original, ast.Assign) and not isinstance(part.original.value, ast.Name):
                yield from _keys(module, part.original.value)
    elif isinstance(value, ast.Dict):
        yield from (key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
    elif isinstance(value, ast.Call) and _last_name(value) == "dict":
        yield from (keyword.arg for keyword in value.keywords if keyword.arg)


def _dropped(module: Module, decorators: Sequence[ast.expr]) -> Iterator[str]:
    for decorator in decorators:
        is_known = _is_jit(module, decorator) or _last_name(decorator) == "heuristics"
        if not is_known and not list(_autotunes(decorator)):
            yield ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


# ---- the autotune list


def _tuning(closure: Closure, home: Module, autotune: ast.Call | None) -> tuple[list[str], list[Selection]]:
    """The lines that give ``_orch_configs`` and ``_orch_key``, guarded where they could fail, and what they need."""
    text: list[str] = []
    selections: list[Selection] = []
    for position, (name, argument) in enumerate([("_orch_configs", "configs"), ("_orch_key", "key")]):
        expression = None if autotune is None else _argument(autotune, argument, position)
        if expression is None:
            continue
        expression = _WithoutHooks().visit(expression)
        selection = closure.of_names(home, names_used(ast.Expr(expression)))
        selections.append(selection)
        lines = [*selection.lines(), f"{name} = {ast.unparse(expression)}"]
        if _is_literal(expression):
            text += lines
            continue
        text += ["try:", *(f"    {line}" for line in "\n".join(lines).splitlines())]
        text.append(f"except Exception as error:\n    {name}_error = f'{{type(error).__name__}}: {{error}}'")
    return text, selections


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if len(call.args) > position else None


class _WithoutHooks(ast.NodeTransformer):
    """Drops the hooks of configs: they run at launch."""

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg == "pre_hook" else self.generic_visit(node)


def _is_literal(expression: ast.expr) -> bool:
    try:
        ast.literal_eval(expression)
    except ValueError:
        return False
    return True


# ---- the text


def _header(home: Module) -> list[str]:
    is_postponed = any(
        isinstance(part.original, ast.ImportFrom)
        and part.original.module == "__future__"
        and part.original.names[0].name == "annotations"
        for part in home.parts
    )
    return ["from __future__ import annotations"] if is_postponed else []


def _foreign_imports(selection: Selection) -> Iterator[str]:
    seen: Collection[str] = {"triton", *sys.stdlib_module_names}
    for dotted in selection.imported_modules():
        if dotted.split(".")[0] not in seen:
            yield dotted
