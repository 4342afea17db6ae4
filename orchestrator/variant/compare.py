"""Names every difference between a file and its base, by comparing syntax trees. Trusts no claim about the edit.

Differences in the kernel's autotune list are compared config by config. Everything else is compared piece by piece
with that list blanked out in both, so a change cannot hide behind a knob.
"""

from __future__ import annotations

import ast
import difflib
import posixpath
from collections.abc import Iterator, Sequence

from orchestrator.errors import VariantError
from orchestrator.records import Change
from orchestrator.variant.autotune import Autotune, locate
from orchestrator.variant.compare_lists import ListComparer
from orchestrator.variant.source import Source, decoded, parse, same
from orchestrator.variant.units import FunctionNode, Span, Unit, between, pairs, units

FUNCTION_PARTS = frozenset({"function", "signature", "decorators", "docstring", "body", "place"})
"""Names of code changes whose ``where`` is a function."""

SPACE = "comments or white space"


def changes(base: bytes, edited: bytes, file: str, kernel: str | None) -> tuple[Change, ...]:
    """Every difference between two states of one file.

    Args:
        base, edited: the bytes; UTF-8.
        file: its name; only ``*.py`` is parsed, any other text that differs is one change of code.
        kernel: the kernel whose autotune list holds the knobs; None for a file without it.

    Returns:
        Knobs first, then code, then text; empty when the bytes are equal.

    Raises:
        VariantError: one of them is binary, not UTF-8, or does not parse.
    """
    if base == edited:
        return ()
    if posixpath.splitext(file)[1] != ".py":
        return (_content_change(file, decoded(base, file), decoded(edited, file)),)
    return _Comparer(file, parse(base, file), parse(edited, file), kernel).run()


def _content_change(file: str, base: str, edited: str) -> Change:
    lines = list(difflib.ndiff(base.splitlines(), edited.splitlines()))
    removed = "\n".join(line[2:] for line in lines if line.startswith("- "))
    added = "\n".join(line[2:] for line in lines if line.startswith("+ "))
    return Change("code", file, "file", "content", removed or None, added or None)


class _Comparer:
    def __init__(self, file: str, base: Source, edited: Source, kernel: str | None) -> None:
        self.file = file
        self.base = base
        self.edited = edited
        self.base_list = _locate(base, kernel)
        self.edited_list = _locate(edited, kernel)
        if self.base_list is None or self.edited_list is None:
            self.base_list = self.edited_list = None

    def run(self) -> tuple[Change, ...]:
        if self._only_line_endings_differ():
            return (Change("text", self.file, "module", "line endings", None, None),)
        found: list[Change] = []
        base_apart: list[Span] = []
        edited_apart: list[Span] = []
        if self.base_list is not None and self.edited_list is not None:
            found += ListComparer(self.file, self.base_list, self.edited_list).run()
            base_apart, edited_apart = self._blank_lists(self.base_list, self.edited_list)
            if not found and self._bytes_of(self.base, base_apart) != self._bytes_of(self.edited, edited_apart):
                found.append(Change("text", self.file, self.base_list.kernel, SPACE, None, None))
        base_units, edited_units = units(self.base, base_apart), units(self.edited, edited_apart)
        paired = list(pairs(base_units, edited_units))
        found += self._code_changes(paired)
        found += self._text_changes(paired, tuple(found))
        order = {"knob": 0, "code": 1, "text": 2}
        return tuple(sorted(found, key=lambda change: order[change.kind]))

    def _blank_lists(self, base: Autotune, edited: Autotune) -> tuple[list[Span], list[Span]]:
        """Puts a placeholder for what ``ListComparer`` compares; returns where it stood."""
        apart = [self.base.span(base.argument)], [self.edited.span(edited.argument)]
        if base.definition is not None and edited.definition is not None and same(base.argument, edited.argument):
            apart[0].append(self.base.span(base.definition))
            apart[1].append(self.edited.span(edited.definition))
            _blank(self.base.tree, base.definition)
            _blank(self.edited.tree, edited.definition)
        _blank(self.base.tree, base.argument)
        _blank(self.edited.tree, edited.argument)
        return apart

    @staticmethod
    def _bytes_of(source: Source, spans: Sequence[Span]) -> list[bytes]:
        return [source.content[start:end] for start, end in spans]

    def _code_changes(self, paired: Sequence[tuple[Unit | None, Unit | None]]) -> Iterator[Change]:
        removed = [old.tree for old, new in paired if old is not None and new is None]
        added = [new.tree for old, new in paired if old is None and new is not None]
        moved = set(removed) & set(added)
        for old, new in paired:
            if old is not None and new is not None:
                if old.tree != new.tree:
                    yield from self._unit_changes(old, new)
                continue
            unit = new or old
            if unit is None or (unit.tree in moved and new is None):
                continue
            if unit.tree in moved:
                yield self._code(unit.where, "place" if unit.name == "function" else f"place of {unit.name}")
            else:
                before, after = (_text(self.base, old), _text(self.edited, new))
                yield self._code(unit.where, unit.name, before, after)

    def _unit_changes(self, old: Unit, new: Unit) -> Iterator[Change]:
        if isinstance(old.node, FunctionNode) and isinstance(new.node, FunctionNode):
            parts = list(self._function_changes(old.where, old.node, new.node))
            yield from parts or [self._code(old.where, "place")]
            return
        name = old.name if old.name == new.name else f"{old.name} → {new.name}"
        yield self._code(new.where, name, _text(self.base, old), _text(self.edited, new))

    def _function_changes(self, where: str, old: FunctionNode, new: FunctionNode) -> Iterator[Change]:
        if type(old) is not type(new) or not _same_all([old.args, old.returns], [new.args, new.returns]):
            yield self._code(where, "signature", _signature(old), _signature(new))
        if not _same_all(old.decorator_list, new.decorator_list):
            before, after = _differing(self.base, old.decorator_list, self.edited, new.decorator_list)
            yield self._code(where, "decorators", before, after)
        if ast.get_docstring(old, clean=False) != ast.get_docstring(new, clean=False):
            yield self._code(where, "docstring", ast.get_docstring(old), ast.get_docstring(new))
        if not _same_all(_body(old), _body(new)):
            yield self._code(where, "body", *_differing(self.base, _body(old), self.edited, _body(new)))

    def _text_changes(
        self, paired: Sequence[tuple[Unit | None, Unit | None]], already: Sequence[Change]
    ) -> Iterator[Change]:
        has_code = any(change.kind == "code" for change in already)
        seen = {change.where for change in already if change.kind == "text"}
        for old, new in paired:
            if old is not None and new is not None and old.tree == new.tree and old.text != new.text:
                if new.where not in seen:
                    yield Change("text", self.file, new.where, SPACE, None, None)
                seen.add(new.where)
        old_rest = between(self.base, (old for old, _ in paired if old is not None))
        new_rest = between(self.edited, (new for _, new in paired if new is not None))
        if has_code:  # the blank lines around an added function belong to its change
            old_rest, new_rest = _without_blank_lines(old_rest), _without_blank_lines(new_rest)
        if old_rest != new_rest and "module" not in seen:
            yield Change("text", self.file, "module", SPACE, None, None)

    def _only_line_endings_differ(self) -> bool:
        base, edited = self.base.content, self.edited.content
        return base.replace(b"\r\n", b"\n") == edited.replace(b"\r\n", b"\n")

    def _code(self, where: str, name: str, before: str | None = None, after: str | None = None) -> Change:
        return Change("code", self.file, where, name, before, after)


def _locate(source: Source, kernel: str | None) -> Autotune | None:
    """The kernel's list; None when there is none that can be told, and then every difference counts as code."""
    if kernel is None:
        return None
    try:
        return locate(source, kernel)
    except VariantError:
        return None


def _blank(tree: ast.Module, gone: ast.expr) -> None:
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is gone:
                setattr(parent, field, ast.Constant(...))
            elif isinstance(value, list):
                value[:] = [ast.Constant(...) if entry is gone else entry for entry in value]


def _without_blank_lines(text: bytes) -> bytes:
    return b"\n".join(line.strip() for line in text.splitlines() if line.strip())


def _text(source: Source, unit: Unit | None) -> str | None:
    if unit is None:
        return None
    if unit.span is None and isinstance(unit.node, ast.stmt):
        return source.text(unit.node).splitlines()[0]
    return unit.text.replace(b"\0", b"\xe2\x80\xa6").decode()


def _same_all(a: Sequence[ast.AST | None], b: Sequence[ast.AST | None]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def _signature(node: FunctionNode) -> str:
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{keyword} {node.name}({ast.unparse(node.args)}){returns}"


def _body(node: FunctionNode) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body


def _differing(
    base: Source, old: Sequence[ast.stmt | ast.expr], edited: Source, new: Sequence[ast.stmt | ast.expr]
) -> tuple[str | None, str | None]:
    """The source of those statements that differ, on each side."""
    matcher = difflib.SequenceMatcher(None, [ast.dump(n) for n in old], [ast.dump(n) for n in new], autojunk=False)
    opcodes = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
    before = "\n".join(base.text(node) for _, a, b, _, _ in opcodes for node in old[a:b])
    after = "\n".join(edited.text(node) for _, _, _, c, d in opcodes for node in new[c:d])
    return before or None, after or None
