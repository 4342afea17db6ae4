"""How long work is shown, always on standard error: a line rewritten on a terminal, a line a step in a pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType

import click

from orchestrator.cli.output import is_smart_terminal, styled
from orchestrator.cli.table import cut
from orchestrator.records import Progress


class ProgressLine:
    """Shows the steps of a command; also with --json, for standard error is not where the document goes.

    On a terminal a step's line is rewritten in place and finished with its duration. In a pipe each step is one line,
    and counted steps print at most every ten seconds.

    Attributes:
        is_fleeting: something else tells what was done, this only shows that work goes on: a finished step leaves
            nothing on a terminal, and in a pipe there is a line every ten seconds at most, whatever the steps.
    """

    PIPE_INTERVAL_S = 10.0

    def __init__(self) -> None:
        self._is_terminal = is_smart_terminal(sys.stderr)
        self.is_fleeting = False
        self._current: Progress | None = None
        self._began_s = 0.0
        self._last_s = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(is_good=kind is None)

    def __call__(self, progress: Progress) -> None:
        """Shows one step; the same stage and text again updates its line."""
        now_s = time.monotonic()
        is_new = self._current is None or (progress.stage, progress.text) != (self._current.stage, self._current.text)
        if is_new:
            self.finish(is_good=True)
            self._began_s = now_s
        self._current = progress
        if self._is_terminal:
            _rewrite(cut(f"  {describe(progress)}", shutil.get_terminal_size().columns - 1))
        elif (is_new and not self.is_fleeting) or now_s - self._last_s >= self.PIPE_INTERVAL_S:
            click.echo(describe(progress), err=True)
            self._last_s = now_s

    @property
    def ask(self) -> Callable[[str], None] | None:
        """Tells the user what only a user can do, in a line that stays; None where nobody sits at a terminal."""
        return self._ask if sys.stdin is not None and sys.stdin.isatty() else None

    def _ask(self, text: str) -> None:
        self.finish(is_good=True)
        click.echo(styled(f"{'you':<9} {text}", "bold yellow", sys.stderr), err=True)

    def flee(self) -> None:
        """From now on is fleeting; the first line in a pipe comes in ten seconds."""
        self.finish(is_good=True)
        self.is_fleeting, self._last_s = True, time.monotonic()

    def finish(self, *, is_good: bool) -> None:
        """Ends the current line, with how long the step took; one that fails is always left to see."""
        if self._current is not None and self._is_terminal and self.is_fleeting and is_good:
            _rewrite("")
        elif self._current is not None and self._is_terminal:
            mark = styled("✓", "green", sys.stderr) if is_good else styled("✗", "red", sys.stderr)
            took_s = time.monotonic() - self._began_s
            _rewrite(f"{mark} {describe(self._current, with_times=False)}   {took_s:.1f} s\n")
        self._current = None


def _rewrite(text: str) -> None:
    sys.stderr.write(f"\r\x1b[2K{text}")
    sys.stderr.flush()


def describe(progress: Progress, *, with_times: bool = True) -> str:
    """``load      concurrency 8   warm-up 3/8   12 s, 17 s left``."""
    counts = f"{progress.done}/{progress.total}" if progress.done is not None and progress.total else ""
    now = " ".join(part for part in (progress.detail, counts) if part)
    times = []
    if with_times and progress.elapsed_s is not None:
        times.append(f"{progress.elapsed_s:.0f} s")
    if with_times and progress.left_s is not None:
        times.append(f"{progress.left_s:.0f} s left")
    return "   ".join(part for part in (f"{progress.stage:<9} {progress.text}", now, ", ".join(times)) if part)
