"""A Python file as bytes and syntax tree at once: where in the bytes a node stands. Knows nothing of Triton."""

from __future__ import annotations

import ast
import codecs
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.errors import VariantError


@dataclass(frozen=True, slots=True)
class Source:
    """One parsed file.

    Attributes:
        file: its name, for messages.
        line_starts: byte offset of each line in ``content``.
    """

    file: str
    content: bytes
    tree: ast.Module
    line_starts: tuple[int, ...]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """First byte of a node, and the byte after its last."""
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError("a node that was made, not parsed, has no place in the file")
        start = self.line_starts[node.lineno - 1] + node.col_offset
        return start, self.line_starts[node.end_lineno - 1] + node.end_col_offset

    def span_with_decorators(self, node: ast.stmt) -> tuple[int, int]:
        """Like ``span``, from the first line of the first decorator."""
        start, end = self.span(node)
        decorators = getattr(node, "decorator_list", [])
        return (self.line_starts[decorators[0].lineno - 1] if decorators else start), end

    def text(self, node: ast.expr | ast.stmt) -> str:
        """The node as it is written."""
        start, end = self.span(node)
        return self.content[start:end].decode()

    def spliced(self, span: tuple[int, int], replacement: bytes) -> bytes:
        """The content with one span replaced; every other byte stays."""
        start, end = span
        return self.content[:start] + replacement + self.content[end:]


def same(a: ast.AST | None, b: ast.AST | None) -> bool:
    """Whether two nodes mean the same code, whatever their format; None only equals None."""
    if a is None or b is None:
        return a is b
    return ast.dump(a) == ast.dump(b)


def decoded(content: bytes, file: str) -> str:
    """The text of a file, without its byte order mark.

    Raises:
        VariantError: it holds NUL bytes, or is not UTF-8.
    """
    if b"\0" in content:
        raise VariantError(f"{file} holds a NUL byte at {content.index(0)}, so it is not a source file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content[: exc.start].count(b"\n") + 1
        raise VariantError(
            f"{file}:{line}: byte 0x{content[exc.start]:02x} is not UTF-8", next_step="save the file as UTF-8"
        ) from exc


def parse(content: bytes, file: str) -> Source:
    """Parses a Python file with the grammar of the Python that runs orch.

    Raises:
        VariantError: binary, not UTF-8, or not Python; names file and line.
    """
    text = decoded(content, file)
    _check_declared_encoding(content, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is the author's affair
            tree = ast.parse(text, filename=file)
    except SyntaxError as exc:
        wrong_line = (exc.text or "").strip()
        raise VariantError(
            f"{file}:{exc.lineno or 1}: does not parse ({exc.msg})", evidence=[wrong_line] if wrong_line else []
        ) from exc
    except (RecursionError, MemoryError) as exc:
        raise VariantError(f"{file}: nested too deep to be parsed") from exc
    return Source(file, content, tree, tuple(_line_starts(content)))


def _check_declared_encoding(content: bytes, file: str) -> None:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as exc:
        raise VariantError(f"{file}:1: its encoding line cannot be followed ({exc.msg})") from exc
    if encoding not in {"utf-8", "utf-8-sig"}:
        raise VariantError(f"{file}: declares the encoding {encoding}", next_step="save the file as UTF-8")


def _line_starts(content: bytes) -> Iterator[int]:
    offset = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
    # bytes.splitlines ends lines where Python's own reader does: \n, \r\n and \r, and at nothing else
    for line in content[offset:].splitlines(keepends=True):
        yield offset
        offset += len(line)
    yield offset
