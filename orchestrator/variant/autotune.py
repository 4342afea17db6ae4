"""Finds a kernel's ``@triton.autotune`` list in a parsed file, and reads its configs. Changes nothing.

Nothing is imported or evaluated. What a list that is computed would hold is therefore unknown here, and said so.

Source: parameter names and order of ``triton.Config`` and ``triton.autotune`` in ``triton/runtime/autotuner.py``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.errors import VariantError
from orchestrator.variant.source import Source

LAUNCH_KNOBS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Triton's own keyword knobs, valid for every kernel: they may be added where a config lacks them."""

POSITIONAL_KNOBS = ("num_warps", "num_stages", "num_ctas")
"""Those that may follow the dict without a keyword; later positions differ between Triton versions."""

_NOT_KNOBS = ("pre_hook", "ir_override")  # they carry code
_PLAIN_CALLS = frozenset({"range", "product", "itertools.product", "dict", "list", "tuple"})
_PLAIN_NODES = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.Starred,
    ast.keyword,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.ListComp,
    ast.comprehension,
    ast.Subscript,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)


@dataclass(frozen=True, slots=True)
class Config:
    """One ``triton.Config(…)`` call.

    Attributes:
        knobs: value expression of each meta-parameter and keyword knob, in the order written.
        extras: what is not a knob (``pre_hook``) or cannot be read (a computed dict), by a name for it.
    """

    call: ast.Call
    knobs: Mapping[str, ast.expr]
    extras: Mapping[str, ast.expr]


@dataclass(frozen=True, slots=True)
class Autotune:
    """The autotune list of one kernel.

    Attributes:
        kernel: name of the kernel.
        call: the ``autotune(…)`` call. argument: what it is given as ``configs``.
        entries: the list's entries where it is a plain list, here or in the module; None when it is computed.
        definition: the module-level list, where ``argument`` is its name and nothing else uses that name.
        template: the first ``Config`` call from which a computed list is made; None when there is none in the file.
    """

    kernel: str
    call: ast.Call
    argument: ast.expr
    entries: tuple[ast.expr, ...] | None
    definition: ast.List | ast.Tuple | None
    template: Config | None

    @property
    def is_in_place(self) -> bool:
        """Whether the list itself may be edited, without touching what others use."""
        return self.entries is not None and (
            self.definition is not None or isinstance(self.argument, ast.List | ast.Tuple)
        )

    @property
    def list_node(self) -> ast.expr:
        """The expression that an edit replaces: the list where that is safe, else the argument."""
        return self.definition if self.definition is not None else self.argument

    @property
    def configs(self) -> list[Config]:
        """The entries that are plain ``Config`` calls; empty for a computed list."""
        return [config for entry in self.entries or () if (config := read_config(entry)) is not None]

    @property
    def constructors(self) -> frozenset[str]:
        """How this list calls ``Config``, as source (``triton.Config``)."""
        configs = [*self.configs, *([self.template] if self.template is not None else [])]
        return frozenset(ast.unparse(config.call.func) for config in configs)


def locate(source: Source, kernel: str) -> Autotune:
    """Finds the autotune list of a kernel.

    Raises:
        VariantError: no such kernel, or no list that can be found; says what there is instead.
    """
    _resolve_aliases(source.tree)
    functions = [f for f in ast.walk(source.tree) if isinstance(f, ast.FunctionDef) and f.name == kernel]
    calls = [call for function in functions for call in _autotune_decorators(function)]
    calls = calls or list(_wrapping_calls(source.tree, kernel))
    if not calls:
        raise _no_autotune(source, kernel, functions)
    if len(calls) > 1:
        lines = ", ".join(str(call.lineno) for call in calls)
        raise VariantError(
            f"{source.file}: {kernel} has {len(calls)} autotune lists (lines {lines}); orch cannot tell which one runs",
            next_step="edit the working copy by hand with `orch variant edit`",
        )
    return _read_autotune(source, kernel, calls[0])


def read_config(entry: ast.expr) -> Config | None:
    """A list entry as a config; None when it is anything but a ``Config(…)`` call."""
    if not (isinstance(entry, ast.Call) and _called_name(entry) == "Config"):
        return None
    meta: dict[str, ast.expr] = {}
    own: dict[str, ast.expr] = {}
    extras: dict[str, ast.expr] = {}
    for position, value in enumerate(entry.args):
        if position == 0:
            _read_meta(value, meta, extras)
        elif position <= len(POSITIONAL_KNOBS) and not isinstance(value, ast.Starred):
            own[POSITIONAL_KNOBS[position - 1]] = value
        else:
            extras[f"argument {position + 1}"] = value
    for keyword in entry.keywords:
        if keyword.arg == "kwargs":
            _read_meta(keyword.value, meta, extras)
        elif keyword.arg is None or keyword.arg in _NOT_KNOBS:
            extras[keyword.arg or "**"] = keyword.value
        else:
            own[keyword.arg] = keyword.value
    return Config(entry, {**meta, **own}, extras)


def is_plain(node: ast.AST, constructors: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is made of values, names, operators and comprehensions: no lambda, no foreign call.

    Args:
        node: the expression.
        constructors: how ``Config`` may be called in it, as source.
    """
    if isinstance(node, ast.Call):
        is_allowed = ast.unparse(node.func) in _PLAIN_CALLS | constructors
        return is_allowed and all(is_plain(child, constructors) for child in (*node.args, *node.keywords))
    return isinstance(node, _PLAIN_NODES) and all(is_plain(child, constructors) for child in ast.iter_child_nodes(node))


def module_names(tree: ast.Module) -> set[str]:
    """Names that a module defines outside its functions and comprehensions."""
    names: set[str] = set()
    for node in _module_level(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


# ---- finding the call


def _called_name(call: ast.Call) -> str | None:
    """The last name of what is called, as its own module knows it: ``Config`` for ``tt.Config``."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def _autotune_decorators(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Autotune calls among a function's decorators, also inside another call (``@only_if(x, triton.autotune(…))``)."""
    for decorator in function.decorator_list:
        yield from _outermost_autotunes(decorator)


def _outermost_autotunes(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.Call) and _is_autotune(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _outermost_autotunes(child)


def _is_autotune(node: ast.AST) -> bool:
    """An ``autotune`` call under any module name, or a stand-in that takes ``configs=`` likewise."""
    if not isinstance(node, ast.Call):
        return False
    return _called_name(node) == "autotune" or any(keyword.arg == "configs" for keyword in node.keywords)


def _wrapping_calls(tree: ast.Module, kernel: str) -> Iterator[ast.Call]:
    """``tuned = triton.autotune(…)(kernel)``, found by the function's name or by the name it gets."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _is_autotune(node.func)):
            continue
        wrapped = {name.id for argument in node.args for name in ast.walk(argument) if isinstance(name, ast.Name)}
        if (kernel in wrapped or kernel in _targets_of(tree, node)) and isinstance(node.func, ast.Call):
            yield node.func


def _targets_of(tree: ast.Module, value: ast.expr) -> set[str]:
    """The names that an expression is assigned to."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value is value
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _resolve_aliases(tree: ast.Module) -> None:
    """Gives names imported under another name (``from triton import Config as C``) their own one, in the tree only."""
    renamed = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and alias.name in {"autotune", "Config"}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in renamed:
            node.func.id = renamed[node.func.id]


# ---- reading the list


def _read_autotune(source: Source, kernel: str, call: ast.Call) -> Autotune:
    argument = next((keyword.value for keyword in call.keywords if keyword.arg == "configs"), None)
    if argument is None and call.args and not isinstance(call.args[0], ast.Starred):
        argument = call.args[0]
    if argument is None:
        raise VariantError(
            f"{source.file}:{call.lineno}: the autotune of {kernel} does not name its configs here",
            next_step="edit the working copy by hand with `orch variant edit`",
        )
    literal, is_own = _plain_list(source.tree, argument)
    return Autotune(
        kernel=kernel,
        call=call,
        argument=argument,
        entries=None if literal is None else tuple(literal.elts),
        definition=literal if literal is not argument and is_own else None,
        template=_template(source.tree, argument),
    )


def _plain_list(tree: ast.Module, argument: ast.expr) -> tuple[ast.List | ast.Tuple | None, bool]:
    """The list that an argument stands for, and whether nothing else in the module uses it."""
    if isinstance(argument, ast.List | ast.Tuple):
        return argument, True
    if not isinstance(argument, ast.Name):
        return None, False
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == argument.id]
    n_written = sum(not isinstance(use.ctx, ast.Load) for use in uses)
    values = list(_assigned_values(tree, argument.id))
    if n_written != 1 or len(values) != 1 or not isinstance(values[0], ast.List | ast.Tuple):
        return None, False
    # a list that is read elsewhere may be changed there (CONFIGS.append), or serve another kernel
    others = [use for use in uses if isinstance(use.ctx, ast.Load) and use is not argument]
    return (values[0], not others) if not _is_changed_in_place(tree, argument.id) else (None, False)


def _is_changed_in_place(tree: ast.Module, name: str) -> bool:
    """Whether a method of the list is called or an entry of it assigned anywhere."""
    for node in ast.walk(tree):
        inner = node.value if isinstance(node, ast.Attribute | ast.Subscript) else None
        is_called = isinstance(node, ast.Attribute)
        is_stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if isinstance(inner, ast.Name) and inner.id == name and (is_called or is_stored):
            return True
    return False


def _assigned_values(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    for node in _module_level(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield node.value


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Everything outside functions, classes, lambdas and comprehensions; of those only the node itself."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(
            child,
            ast.FunctionDef
            | ast.AsyncFunctionDef
            | ast.ClassDef
            | ast.Lambda
            | ast.ListComp
            | ast.SetComp
            | ast.DictComp
            | ast.GeneratorExp,
        ):
            yield from _module_level(child)


def _template(tree: ast.Module, argument: ast.expr, seen: frozenset[str] = frozenset()) -> Config | None:
    """The first ``Config`` call inside an expression, or inside what its names stand for in this module."""
    nodes = list(ast.walk(argument))
    for node in nodes:
        if isinstance(node, ast.expr) and (config := read_config(node)) is not None:
            return config
    for name in [node.id for node in nodes if isinstance(node, ast.Name) and node.id not in seen]:
        for meaning in _meanings(tree, name):
            found = _template_below(tree, meaning, seen | {name})
            if found is not None:
                return found
    return None


def _template_below(tree: ast.Module, meaning: ast.AST, seen: frozenset[str]) -> Config | None:
    if isinstance(meaning, ast.expr):
        return _template(tree, meaning, seen)
    for node in ast.walk(meaning):
        if isinstance(node, ast.expr) and (config := read_config(node)) is not None:
            return config
    return None


def _meanings(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    yield from _assigned_values(tree, name)
    for node in _module_level(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            yield node


def _read_meta(value: ast.expr, meta: dict[str, ast.expr], extras: dict[str, ast.expr]) -> None:
    """The meta-parameters of a config's dict, written ``{"BLOCK": 16}`` or ``dict(BLOCK=16)``."""
    pairs: list[tuple[str | None, ast.expr]]
    if isinstance(value, ast.Dict):
        pairs = [
            (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None, entry)
            for key, entry in zip(value.keys, value.values, strict=True)
        ]
    elif isinstance(value, ast.Call) and _called_name(value) == "dict" and not value.args:
        pairs = [(keyword.arg, keyword.value) for keyword in value.keywords]
    else:
        pairs = [(None, value)]
    for name, entry in pairs:
        if name is None:
            extras["meta-parameters"] = value
        else:
            meta[name] = entry


# ---- why there is none


def _no_autotune(source: Source, kernel: str, functions: list[ast.FunctionDef]) -> VariantError:
    if not functions:
        names = kernel_names(source.tree)
        near = difflib.get_close_matches(kernel, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return VariantError(
            f"{source.file} has no kernel {kernel}",
            next_step=f"{hint}kernels there: {', '.join(names) or 'none'}; correct `kernel` in inventory.yaml",
        )
    launches = list(_launches_with_knobs(source.tree, kernel))
    if launches:
        return VariantError(
            f"{source.file}:{functions[0].lineno}: {kernel} has no @triton.autotune; its launch passes "
            f"{', '.join(launches)}",
            next_step="edit the launch in the working copy with `orch variant edit`; it counts as a change of code",
        )
    return VariantError(
        f"{source.file}:{functions[0].lineno}: {kernel} has no @triton.autotune, so it has no list of knobs to set",
        next_step="edit the working copy by hand with `orch variant edit`",
    )


def kernel_names(tree: ast.Module) -> list[str]:
    """Functions with a ``jit`` decorator, and every function where there is none."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    jitted = [f.name for f in functions if any("jit" in ast.unparse(d) for d in f.decorator_list)]
    return sorted(set(jitted or [f.name for f in functions]))


def _launches_with_knobs(tree: ast.Module, kernel: str) -> Iterator[str]:
    """``num_warps=4 (line 88)`` for each knob given where ``kernel[grid](…)`` is launched."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        if isinstance(node.func.value, ast.Name) and node.func.value.id == kernel:
            for keyword in node.keywords:
                if keyword.arg in LAUNCH_KNOBS:
                    yield f"{keyword.arg}={ast.unparse(keyword.value)} (line {keyword.value.lineno})"
