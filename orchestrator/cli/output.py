"""What a command prints: for a person at a terminal, plain in a pipe, or JSON for machines.

Results go to standard output; progress, notes and errors to standard error, so that a pipe gets results only. Colour
is for terminals, and not where NO_COLOR is set.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from orchestrator.cli.table import Table, draw
from orchestrator.errors import OrchError

MAX_EVIDENCE_LINES = 60


def is_smart_terminal(stream: TextIO) -> bool:
    """A terminal that understands more than text."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_colour_wanted(stream: TextIO) -> bool:
    """A terminal that can show colour, and NO_COLOR is not set."""
    return is_smart_terminal(stream) and not os.environ.get("NO_COLOR")


def counted(n: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{n} {noun}{'s' * (n != 1)}"


class Output:
    """Where a command's results go. ``is_json`` mutes everything on standard output but the one JSON document."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """One line of the result; not printed with --json."""
        if not self.is_json:
            click.echo(styled(text, style, sys.stdout))

    def note(self, text: str, *, style: str | None = None) -> None:
        """One line about what goes on, to standard error."""
        click.echo(styled(text, style, sys.stderr), err=True)

    def warn(self, text: str) -> None:
        """A warning, to standard error."""
        self.note(f"warning: {text}", style="yellow")

    def document(self, document: Mapping[str, Any] | Sequence[Any]) -> None:
        """The JSON document of a command; printed only with --json. Not-a-number never gets out."""
        if self.is_json:
            click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=str))

    def table(self, table: Table) -> None:
        """A table: folded to the width of a terminal, as wide as it must be in a pipe."""
        for line in draw(table, shutil.get_terminal_size().columns if sys.stdout.isatty() else None):
            self.line(line.text, style=line.style)

    def diff(self, lines: Sequence[str]) -> None:
        """A unified diff, coloured on a terminal."""
        for text in lines:
            self.line(text.rstrip("\n"), style=_diff_style(text))


def print_error(error: OrchError) -> None:
    """One line to standard error, then its evidence (bounded, and says how much was left out)."""
    click.echo(styled(f"orch: {error}", "bold red", sys.stderr), err=True)
    for text in error.evidence[:MAX_EVIDENCE_LINES]:
        click.echo(styled(f"  {text}", _diff_style(text), sys.stderr), err=True)
    left = len(error.evidence) - MAX_EVIDENCE_LINES
    if left > 0:
        click.echo(f"  … {counted(left, 'more line')}", err=True)


def cell_text(value: object) -> str | None:
    """A value of the database for a table; content is only measured, not shown."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _diff_style(text: str) -> str | None:
    if text.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(text[:1])


def styled(text: str, style: str | None, stream: TextIO) -> str:
    """The text in a style such as ``bold red``, where the stream shows it."""
    if style is None or not is_colour_wanted(stream):
        return text
    words = style.split()
    return click.style(text, fg=next((w for w in words if w != "bold"), None), bold="bold" in words or None)
