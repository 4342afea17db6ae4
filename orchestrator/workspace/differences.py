"""A unified diff of two sets of files, for people. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from orchestrator.records import SourceFile


def diff(base: Sequence[SourceFile], files: Sequence[SourceFile]) -> list[str]:
    """A unified diff of two sets of files, line by line without line ends; empty when they are equal.

    Bytes that are not UTF-8 are shown as escapes, and a carriage return as ``\\r``.
    """
    before = {file.name: file.content for file in base}
    after = {file.name: file.content for file in files}
    lines: list[str] = []
    for name in sorted(before | after):
        lines += _file_diff(name, before.get(name), after.get(name))
    return lines


def _file_diff(name: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    if before == after:
        return
    old_name = f"a/{name}" if before is not None else "/dev/null"
    new_name = f"b/{name}" if after is not None else "/dev/null"
    for line in difflib.unified_diff(_lines(before), _lines(after), old_name, new_name):
        yield line.rstrip("\n").replace("\r", "\\r")
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"


def _lines(content: bytes | None) -> list[str]:
    text = (content or b"").decode("utf-8", "backslashreplace")
    return [line + "\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]
