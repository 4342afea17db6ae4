"""Cuts a module into the pieces by which differences are named, and aligns the pieces of two modules.

A piece is a function, or a statement of a module or class. Functions inside a function belong to it.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.variant.source import Source

Span = tuple[int, int]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece.

    Attributes:
        where: qualified name of the function or class; ``module`` for a statement outside.
        name: ``function``, or a short description of the statement.
        tree: the syntax tree as text: equal for equal code, whatever its format.
        text: the bytes, without the spans that are compared apart; empty for the head of a class or block, whose
            bytes count as space between units.
    """

    where: str
    name: str
    tree: str
    text: bytes
    node: ast.AST
    span: Span | None


def units(source: Source, apart: Sequence[Span]) -> list[Unit]:
    """All pieces of a module, in order.

    Args:
        source: its tree may have placeholders where something is compared apart.
        apart: the spans of what is compared apart.
    """
    return list(_Cutter(source, apart).cut(source.tree.body, "", "module"))


def between(source: Source, pieces: Iterable[Unit]) -> bytes:
    """The bytes that belong to no piece: comments, blank lines, heads of classes."""
    rest, offset = b"", 0
    for start, end in sorted(unit.span for unit in pieces if unit.span is not None):
        rest += source.content[offset:start]
        offset = end
    return rest + source.content[offset:]


def pairs(base: Sequence[Unit], edited: Sequence[Unit]) -> Iterator[tuple[Unit | None, Unit | None]]:
    """Each piece with its counterpart; None where there is none. A moved piece comes as removed and as added."""
    matcher = difflib.SequenceMatcher(None, [_key(u) for u in base], [_key(u) for u in edited], autojunk=False)
    for _, a, b, c, d in matcher.get_opcodes():
        if b - a == d - c and [u.where for u in base[a:b]] == [u.where for u in edited[c:d]]:
            yield from zip(base[a:b], edited[c:d], strict=True)
            continue
        yield from _pairs_by_name(base[a:b], edited[c:d])


def _pairs_by_name(base: Sequence[Unit], edited: Sequence[Unit]) -> Iterator[tuple[Unit | None, Unit | None]]:
    left = list(edited)
    for unit in base:
        match = next((other for other in left if (other.where, other.name) == (unit.where, unit.name)), None)
        if match is not None:
            left.remove(match)
        yield unit, match
    for other in left:
        yield None, other


def _key(unit: Unit) -> tuple[str, str, str]:
    return unit.where, unit.name, unit.tree


class _Cutter:
    def __init__(self, source: Source, apart: Sequence[Span]) -> None:
        self.source = source
        self.apart = apart

    def cut(self, body: Sequence[ast.stmt], prefix: str, context: str) -> Iterator[Unit]:
        """Pieces of a body; ``context`` (which branch of which block) is part of what must be equal."""
        where = prefix.removesuffix(".") or "module"
        for i, node in enumerate(body):
            if isinstance(node, FunctionNode):
                yield self._leaf(node, prefix + node.name, "function", context)
            elif isinstance(node, ast.ClassDef):
                yield self._head(node, prefix + node.name, "class", context)
                yield from self.cut(node.body, f"{prefix}{node.name}.", context)
            elif isinstance(node, _BLOCKS) and _holds_definitions(node):
                yield from self._block(node, prefix, where, context)
            else:
                is_docstring = i == 0 and context == "module" and _is_text(node)
                yield self._leaf(node, where, "docstring" if is_docstring else _in_words(node), context)

    def _block(self, node: ast.stmt, prefix: str, where: str, context: str) -> Iterator[Unit]:
        yield self._head(node, where, _in_words(node), context)
        kind = type(node).__name__.lower()
        for branch in ("body", "orelse", "finalbody"):
            yield from self.cut(getattr(node, branch, []), prefix, f"{context}/{kind}.{branch}")
        for handler in getattr(node, "handlers", []):
            yield from self.cut(handler.body, prefix, f"{context}/except")

    def _leaf(self, node: ast.stmt, where: str, name: str, context: str) -> Unit:
        start, end = self.source.span_with_decorators(node)
        text, offset = b"", start
        for a, b in sorted(self.apart):
            if start <= a and b <= end:
                text += self.source.content[offset:a] + b"\0"
                offset = b
        return Unit(
            where, name, f"{context}:{ast.dump(node)}", text + self.source.content[offset:end], node, (start, end)
        )

    def _head(self, node: ast.stmt, where: str, name: str, context: str) -> Unit:
        fields = [value for field, value in ast.iter_fields(node) if field not in {"body", "orelse", "finalbody"}]
        return Unit(where, name, f"{context}:{[_dump(value) for value in fields]}", b"", node, None)


def _dump(value: object) -> str:
    """A field of a node as text; of an exception clause only its type and name, for its body is cut apart."""
    if isinstance(value, list):
        return str([_dump(entry) for entry in value])
    if isinstance(value, ast.ExceptHandler):
        return f"except {_dump(value.type)} {value.name}"
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)


def _holds_definitions(node: ast.AST) -> bool:
    return any(isinstance(child, FunctionNode | ast.ClassDef) for child in ast.walk(node))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _in_words(node: ast.stmt) -> str:
    """A few words for a statement: what it assigns or imports, or its beginning."""
    if isinstance(node, ast.Assign):
        return ", ".join(ast.unparse(target) for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return ast.unparse(node.target)
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 48 else text[:47] + "…"
