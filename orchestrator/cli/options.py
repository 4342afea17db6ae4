"""Options and argument types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON document instead of text.")
target_option = click.option(
    "--target", "target_name", metavar="NAME", help="Which target; the only one when left out."
)
target_argument = click.argument("target_name", metavar="[TARGET]", required=False)


class Concurrencies(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.2
    """``1,8,64,96`` → (1, 8, 64, 96): positive whole numbers, each once, in the order given."""

    name = "concurrencies"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parses the list; refuses what is not a number, below 1, or there twice."""
        if isinstance(value, tuple):
            return value
        numbers: list[int] = []
        for word in str(value).split(","):
            text = word.strip()
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                self.fail(
                    f"{text!r} is not a concurrency: whole numbers from 1, separated by commas (1,8,64)", param, ctx
                )
            if int(text) in numbers:
                self.fail(f"concurrency {int(text)} is there twice; repeats need another engine start", param, ctx)
            numbers.append(int(text))
        return tuple(numbers)


def example(*lines: str) -> Callable[[F], F]:
    """Appends an example to a command's help, shown as typed."""

    def add(function: F) -> F:
        shown = "\n".join(f"  {line}" for line in lines)
        function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n\n    \b\n    Example:\n{_indented(shown)}\n"
        return function

    return add


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
