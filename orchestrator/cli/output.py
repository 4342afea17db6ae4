"""What a command prints: for a person at a terminal, plain in a pipe, or JSON for machines.

Results go to standard output; progress, notes and errors to standard error, so that a pipe gets results only. rich is
imported only when standard output is a terminal: plain output costs nothing at start-up.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

from orchestrator.errors import OrchError

Cell = str | int | float | None
MAX_EVIDENCE_LINES = 60


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for a person. ``right`` names the columns that are aligned to the right (numbers)."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[str] = frozenset()
    title: str | None = None


def is_colour_wanted(stream: TextIO) -> bool:
    """A terminal, and neither NO_COLOR nor TERM=dumb set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class Output:
    """Where a command's results go. ``is_json`` mutes everything on standard output but the one JSON document."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """One line of the result; not printed with --json."""
        if not self.is_json:
            click.echo(_styled(text, style, sys.stdout))

    def note(self, text: str, *, style: str | None = None) -> None:
        """One line about what goes on, to standard error."""
        click.echo(_styled(text, style, sys.stderr), err=True)

    def warn(self, text: str) -> None:
        """A warning, to standard error."""
        self.note(f"warning: {text}", style="yellow")

    def document(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """The JSON document of a command; printed only with --json. Not-a-number never gets out."""
        if self.is_json:
            click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=str))

    def table(self, table: Table) -> None:
        """A table: drawn by rich on a terminal, aligned plain text in a pipe."""
        if self.is_json:
            return
        if sys.stdout.isatty():
            _print_rich(table)
        else:
            click.echo(plain_table(table))

    def diff(self, lines: Sequence[str]) -> None:
        """A unified diff, coloured on a terminal."""
        for text in lines:
            self.line(text.rstrip("\n"), style=_diff_style(text))


def print_error(error: OrchError) -> None:
    """One line to standard error, then its evidence (bounded, and says how much was left out)."""
    click.echo(_styled(f"orch: {error}", "bold red", sys.stderr), err=True)
    for text in error.evidence[:MAX_EVIDENCE_LINES]:
        click.echo(_styled(f"  {text}", _diff_style(text), sys.stderr), err=True)
    left = len(error.evidence) - MAX_EVIDENCE_LINES
    if left > 0:
        click.echo(f"  … {left} more lines", err=True)


def plain_table(table: Table) -> str:
    """Aligned text: columns two spaces apart, a rule of dashes under the header."""
    cells = [[_text(cell) for cell in row] for row in table.rows]
    widths = [max([_width(name), *(_width(row[i]) for row in cells)]) for i, name in enumerate(table.columns)]
    lines = [table.title] if table.title else []
    lines.append(_aligned(table.columns, widths, table))
    lines.append("  ".join("-" * width for width in widths))
    lines.extend(_aligned(row, widths, table) for row in cells)
    return "\n".join(lines)


def _aligned(row: Sequence[str], widths: Sequence[int], table: Table) -> str:
    padded = []
    for name, cell, width in zip(table.columns, row, widths, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if name in table.right else cell + space)
    return "  ".join(padded).rstrip()


def _text(cell: Cell) -> str:
    return "–" if cell is None else str(cell)


def cell_text(value: object) -> str | None:
    """A value of the database for a table; content is only measured, not shown."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(ch) in "WF" else 1 for ch in text if not unicodedata.combining(ch))


def _print_rich(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, title=table.title, title_justify="left", pad_edge=False, padding=(0, 1))
    for name in table.columns:
        drawn.add_column(name, justify="right" if name in table.right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(_text(cell)) for cell in row))
    console = Console(
        width=shutil.get_terminal_size().columns, highlight=False, no_color=not is_colour_wanted(sys.stdout)
    )
    console.print(drawn)


def _diff_style(text: str) -> str | None:
    if text.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1])


def _styled(text: str, style: str | None, stream: TextIO) -> str:
    if style is None or not is_colour_wanted(stream):
        return text
    words = style.split()
    return click.style(text, fg=next((w for w in words if w != "bold"), None), bold="bold" in words or None)
