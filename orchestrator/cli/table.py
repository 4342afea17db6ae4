"""Rows and columns as text. Pure: knows no terminal but its width, prints nothing, and never drops a character.

In a pipe a table is as wide as it must be. On a terminal a table that is too wide has its headers and long texts
folded; one that cannot be folded well is told record by record.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None

GAP = "  "
NARROWEST_TEXT = 12
"""A column of text is folded no narrower than this, unless it is narrower by itself."""

_PIECE = re.compile(r"[^ _,/=]*[ _,/=]*")
"""Where a line may be broken: behind these characters."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for a person.

    Attributes:
        right: names of the columns that are aligned to the right (numbers); they are not folded.
        title: a line above it.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[str] = field(default_factory=frozenset)
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a drawn table. ``style``: as ``Output.line`` takes it."""

    text: str
    style: str | None = None


def draw(table: Table, width: int | None = None) -> list[Line]:
    """The table as lines.

    Args:
        width: of the terminal, in columns; None for a pipe, where no line is folded.
    """
    cells = [[cell_words(cell) for cell in row] for row in table.rows]
    natural = [_widest([name, *(row[i] for row in cells)]) for i, name in enumerate(table.columns)]
    title = [] if table.title is None else [Line(table.title, "bold")]
    if width is None or _total(natural) <= width:
        return title + _drawn(table, cells, natural)
    least = [_least_width(table, cells, i) for i in range(len(table.columns))]
    if _total(least) > width:
        return title + _records(table.columns, cells)
    return title + _drawn(table, cells, _shared_out(least, natural, width))


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, combining ones none."""
    return sum(2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text if not unicodedata.combining(ch))


def cut(text: str, width: int) -> str:
    """As much of a text as fits into so many columns."""
    while text_width(text) > width:
        text = text[: min(width, len(text) - 1)]
    return text


def cell_words(cell: Cell) -> str:
    """What stands in a cell: a dash for what was not measured; control characters as escapes: rows stay rows."""
    if cell is None:
        return "–"
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in str(cell))


# ---- widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widest(texts: Sequence[str]) -> int:
    return max(map(text_width, texts))


def _least_width(table: Table, cells: Sequence[Sequence[str]], i: int) -> int:
    name = table.columns[i]
    header = _widest([piece.rstrip() for piece in _PIECE.findall(name)])
    content = _widest([row[i] for row in cells]) if cells else 0
    return max(header, content if name in table.right else min(content, NARROWEST_TEXT))


def _shared_out(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    """The least widths, with the columns that are left given one by one to whichever lacks most."""
    widths = list(least)
    for _ in range(width - _total(least)):
        i = max(range(len(widths)), key=lambda k: natural[k] - widths[k])
        widths[i] += natural[i] > widths[i]
    return widths


# ---- lines


def _drawn(table: Table, cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[Line]:
    header = [Line(text, "bold") for text in _row(table.columns, table, widths, at_bottom=True)]
    rule = Line(GAP.join("-" * width for width in widths))
    return [*header, rule, *(Line(text) for row in cells for text in _row(row, table, widths))]


def _row(row: Sequence[str], table: Table, widths: Sequence[int], *, at_bottom: bool = False) -> list[str]:
    """One row, in as many lines as its tallest cell needs."""
    folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, folded))
    blank = [[""] * (height - len(lines)) for lines in folded]
    columns = [b + f if at_bottom else f + b for b, f in zip(blank, folded, strict=True)]
    return [_aligned([column[i] for column in columns], table, widths) for i in range(height)]


def fold(text: str, width: int) -> list[str]:
    """A text in lines of at most so many columns, broken behind a space or a sign where there is one."""
    lines, line = [], ""
    for piece in _PIECE.findall(text):
        if line and text_width(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while text_width(line.rstrip()) > width:
            start = cut(line, width) or line[0]
            lines.append(start)
            line = line[len(start) :]
    return [*lines, line.rstrip()] if line.rstrip() or not lines else lines


def _aligned(texts: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    padded = []
    for name, text, width in zip(table.columns, texts, widths, strict=True):
        space = " " * (width - text_width(text))
        padded.append(space + text if name in table.right else text + space)
    return GAP.join(padded).rstrip()


def _records(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[Line]:
    """Every row as a list of names and values; the terminal itself breaks a long value."""
    width = _widest(columns)
    lines = []
    for n, row in enumerate(cells, 1):
        lines.append(Line(f"row {n} of {len(cells)}", "bold"))
        lines += [
            Line(f"  {name}{' ' * (width - text_width(name))}  {cell}") for name, cell in zip(columns, row, strict=True)
        ]
    return lines or [Line(f"no rows; columns: {', '.join(columns)}")]
