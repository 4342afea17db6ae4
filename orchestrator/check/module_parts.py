"""A Python file as parts: each top-level statement with the names that it binds and the global names that it uses.

Statements inside a top-level ``if``, ``try`` or ``with`` are parts too, and know the branches they stand in. Pure: the
file is parsed, never imported, and nothing here knows what a kernel is beyond Triton's own annotations.
"""

from __future__ import annotations

import ast
import posixpath
import symtable
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from orchestrator.check.triton_types import TYPES
from orchestrator.errors import VariantError
from orchestrator.records import SourceFile

Branches = tuple[tuple[ast.stmt, str], ...]
"""Enclosing compound statements from the outermost in, each with the branch taken (``body``, ``orelse`` …)."""

_SPLIT = (ast.If, ast.Try, ast.With)
_FOREIGN_TYPES = ("torch.", "np.", "numpy.", "jnp.", "jax.")
_SHIMMED = {"triton": "triton", "tl": "triton.language"}
"""Names under which engines hand Triton on from a module of theirs (``from vllm.triton_utils import tl, triton``)."""


@dataclass(eq=False)
class Part:
    """One statement that can be taken out of its file. An ``import`` of several names is several parts.

    Attributes:
        original: as it stands in the file.
        binds: names that it binds, or whose value it changes (``CONFIGS.append(…)``).
    """

    original: ast.stmt
    binds: frozenset[str]
    branches: Branches

    @cached_property
    def statement(self) -> ast.stmt:
        """As it is taken out: without docstrings, and without annotations that Triton does not read."""
        return _plain(self.original)

    @cached_property
    def uses(self) -> frozenset[str]:
        """Global names that it reads, those inside its functions included."""
        return names_used(self.statement)


@dataclass(eq=False)
class Module:
    """One file of a target in parts.

    Attributes:
        name: of the file in the workspace. dotted: by which the engine imports it, where that is known.
        parts: in the order of the file. bindings: by name, the parts that bind it.
    """

    name: str
    dotted: str | None
    tree: ast.Module
    parts: list[Part]
    bindings: dict[str, list[Part]] = field(default_factory=dict)

    def absolute(self, statement: ast.ImportFrom) -> str | None:
        """Dotted name of what an import imports from; None for a relative one in a file of unknown name."""
        if not statement.level:
            return statement.module
        parts = (self.dotted or "").split(".")
        n_dropped = statement.level - (posixpath.basename(self.name) == "__init__.py")
        package = parts[: len(parts) - n_dropped]
        if self.dotted is None or not package:
            return None
        return ".".join([*package, *([statement.module] if statement.module else [])])

    def paths(self, statement: ast.ImportFrom) -> list[str]:
        """Files of the workspace that a relative import can mean."""
        if not statement.level:
            return []
        folder = posixpath.join(posixpath.dirname(self.name), *[".."] * (statement.level - 1))
        stem = posixpath.normpath(posixpath.join(folder, *(statement.module or "").split(".")))
        return [f"{stem}.py", posixpath.join(stem, "__init__.py")]

    def imported(self, name: str) -> str | None:
        """Dotted path that a name is imported from (``triton.language`` for ``tl``); None when it is not imported."""
        for part in self.bindings.get(name, []):
            path = import_path(part.statement)
            if path is not None:
                return path
        return None


def parse(file: SourceFile, dotted: str | None) -> Module:
    """Parses a file into its parts.

    Raises:
        VariantError: it is not Python; names file and line.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is the author's affair
            tree = ast.parse(file.content, filename=file.name)
            module = Module(file.name, dotted, tree, list(_parts(tree.body, ())))
    except SyntaxError as exc:
        raise VariantError(f"{file.name}:{exc.lineno or 1}: does not parse ({exc.msg})") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise VariantError(f"{file.name}: cannot be parsed ({str(exc) or type(exc).__name__})") from exc
    _index(module)
    return module


def names_used(*nodes: ast.stmt | ast.expr) -> frozenset[str]:
    """Global names that statements and expressions read, as Python's own compiler sees them."""
    text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in nodes)
    return frozenset(_globals(symtable.symtable(text, "part", "exec")))


def import_path(statement: ast.stmt) -> str | None:
    """Dotted path of what an import of one name binds; None for other statements and for relative imports."""
    if isinstance(statement, ast.Import):
        alias = statement.names[0]
        return alias.name if alias.asname else alias.name.split(".")[0]
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        return f"{statement.module}.{statement.names[0].name}"
    return None


def block_fields(statement: ast.stmt) -> dict[str, list[ast.stmt]]:
    """The branches of an ``if``, ``try`` or ``with``, by name; empty for any other statement."""
    if not isinstance(statement, _SPLIT):
        return {}
    blocks = {name: getattr(statement, name, []) for name in ("body", "orelse", "finalbody")}
    for i, handler in enumerate(getattr(statement, "handlers", [])):
        blocks[f"handler {i}"] = handler.body
    return blocks


def triton_annotation(annotation: ast.expr | None) -> str | None:
    """What Triton reads in a parameter's annotation (``constexpr``, ``int32``, ``*fp32``); None for nothing."""
    if annotation is None:
        return None
    text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
    if not isinstance(text, str) or text.startswith(_FOREIGN_TYPES):
        return None
    if "constexpr" in text:
        return "constexpr"
    word = text.strip().removeprefix("const ").strip()
    stars = "*" if word.startswith("*") or word.endswith("*") else ""
    word = word.strip("* ").rsplit(".", 1)[-1]
    return stars + word if word in TYPES else "const" if word == "const" else None


# ---- into parts


def _parts(statements: Iterable[ast.stmt], branches: Branches) -> Iterator[Part]:
    for statement in statements:
        blocks = block_fields(statement)
        for name, block in blocks.items():
            yield from _parts(block, (*branches, (statement, name)))
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                single = _single_import(statement, alias)
                bound = alias.asname or (alias.name if isinstance(single, ast.ImportFrom) else alias.name.split(".")[0])
                yield Part(single, frozenset({bound}), branches)
        elif not blocks and not (isinstance(statement, ast.AnnAssign) and statement.value is None):
            yield Part(statement, frozenset(_bound(statement)), branches)


def _single_import(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    """The import of one name; of Triton itself, where an engine hands it on from a module of its own."""
    if isinstance(statement, ast.Import):
        return ast.copy_location(ast.Import(names=[alias]), statement)
    is_triton = not statement.level and (statement.module or "").split(".")[0] == "triton"
    if alias.name in _SHIMMED and not is_triton:
        single: ast.stmt = ast.Import(names=[ast.alias(_SHIMMED[alias.name], _shim_alias(alias))])
    else:
        single = ast.ImportFrom(module=statement.module, names=[alias], level=statement.level)
    return ast.copy_location(single, statement)


def _shim_alias(alias: ast.alias) -> str | None:
    bound = alias.asname or alias.name
    return None if bound == _SHIMMED[alias.name] else bound


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds at the level of the module, and those whose value it changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    inner = {
        name.id
        for node in ast.walk(statement)
        if isinstance(node, ast.comprehension)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and node.id not in inner:
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from _base(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _base(node.value.func)


def _base(node: ast.expr) -> Iterator[str]:
    """``CONFIGS`` of ``CONFIGS.append`` and ``CONFIGS[0]``; nothing for a bare name."""
    base = node
    while isinstance(base, ast.Attribute | ast.Subscript):
        base = base.value
    if base is not node and isinstance(base, ast.Name):
        yield base.id


def _index(module: Module) -> None:
    """Fills the bindings. Changing a value binds its name only where an assignment made it: not ``os.environ[…] =``."""
    assigned = {
        node.id
        for part in module.parts
        if isinstance(part.original, ast.Assign | ast.AnnAssign)
        for node in ast.walk(part.original)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for part in module.parts:
        if isinstance(part.original, ast.Expr | ast.Assign | ast.AugAssign):
            part.binds &= assigned
        for name in part.binds:
            module.bindings.setdefault(name, []).append(part)


class _Plain(ast.NodeTransformer):
    """Drops what is never run: docstrings, and annotations that Triton does not read."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        arguments = node.args
        rest = [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest):
            if triton_annotation(argument.annotation) is None:
                argument.annotation = None
        node.returns = None
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node


def _plain(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if "constexpr" not in ast.unparse(statement.annotation):
            return ast.copy_location(ast.Assign(targets=[statement.target], value=statement.value), statement)
        return statement
    return _Plain().visit(statement)  # type: ignore[no-any-return]


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals(child)


def resolved(statement: ast.ImportFrom, module: Module, modules: Mapping[str, Module]) -> Module | None:
    """The file of the target that an import imports from; None when it is none of them."""
    for path in module.paths(statement):
        if path in modules:
            return modules[path]
    dotted = module.absolute(statement)
    return next((other for other in modules.values() if dotted and other.dotted == dotted), None)
