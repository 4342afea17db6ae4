"""How long work is shown, always on standard error: a line rewritten on a terminal, a line a step in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

import click

from orchestrator.records import Progress


class ProgressLine:
    """Shows the steps of a command.

    On a terminal a step's line is rewritten in place and finished with its duration. In a pipe each step is one line,
    and counted steps print at most every ten seconds.
    """

    PIPE_INTERVAL_S = 10.0

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""
        self._key: tuple[str, str] | None = None
        self._began_s = time.monotonic()
        self._last_s = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(is_good=kind is None)

    def __call__(self, progress: Progress) -> None:
        """Shows one step; the same stage and text again updates its line."""
        if self._is_quiet:
            return
        key = (progress.stage, progress.text)
        now_s = time.monotonic()
        is_new = key != self._key
        if is_new:
            self.finish(is_good=True)
            self._key, self._began_s = key, now_s
        text = describe(progress)
        if self._is_terminal:
            self._rewrite(text)
        elif is_new or now_s - self._last_s >= self.PIPE_INTERVAL_S:
            click.echo(text, err=True)
            self._last_s = now_s
        self._shown = text

    def finish(self, *, is_good: bool) -> None:
        """Ends the current line, with how long the step took."""
        if self._key is None or self._is_quiet:
            return
        if self._is_terminal:
            mark = click.style("✓", fg="green") if is_good else click.style("✗", fg="red")
            took = click.style(f"{time.monotonic() - self._began_s:.1f} s", dim=True)
            self._rewrite(f"{mark} {self._shown.strip()}  {took}", is_styled=True)
            click.echo(err=True)
        self._key = None

    def _rewrite(self, text: str, *, is_styled: bool = False) -> None:
        columns = shutil.get_terminal_size().columns
        shown = text if is_styled else text[: columns - 1]
        sys.stderr.write(f"\r\x1b[2K{shown}")
        sys.stderr.flush()


def describe(progress: Progress) -> str:
    """``load      concurrency 8   34/80   12 s, 17 s left``."""
    parts = [f"{progress.stage:<9} {progress.text}"]
    if progress.done is not None and progress.total:
        parts.append(f"{progress.done}/{progress.total}")
    times = []
    if progress.elapsed_s is not None:
        times.append(f"{progress.elapsed_s:.0f} s")
    if progress.left_s is not None:
        times.append(f"{progress.left_s:.0f} s left")
    if times:
        parts.append(", ".join(times))
    return "   ".join(parts)
