"""The command reference as Markdown, from the commands themselves: ``python -m orchestrator.cli.reference``."""

from __future__ import annotations

from collections.abc import Iterator

import click

from orchestrator.cli import COMMANDS, orch
from orchestrator.cli.exit_codes import MEANINGS

WIDTH = 100
HEAD = """\
# Commands

Made by `python -m orchestrator.cli.reference > docs/commands.md`; a test holds it to the program.

Every command but `demo` and `variant edit` takes `--json` and then prints one JSON document to standard output;
progress, notes and errors always go to standard error. [json.md](json.md) has the keys.

| exit code | means |
| ---: | --- |
"""


def reference() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {text} |\n" for code, text in MEANINGS.items())
    root = click.Context(orch, info_name="orch", max_content_width=WIDTH, terminal_width=WIDTH, **orch.context_settings)
    return HEAD + codes + "".join(_sections(root))


def _sections(root: click.Context) -> Iterator[str]:
    for name in COMMANDS:
        command = orch.get_command(root, name)
        assert command is not None
        context = _below(root, command, name)
        yield _section(context, 2)
        if isinstance(command, click.Group):
            for child in command.commands.values():
                yield _section(_below(context, child, child.name or ""), 3)


def _below(parent: click.Context, command: click.Command, name: str) -> click.Context:
    return click.Context(command, parent=parent, info_name=name, max_content_width=WIDTH, terminal_width=WIDTH)


def _section(context: click.Context, level: int) -> str:
    return f"\n{'#' * level} {context.command_path}\n\n```\n{context.get_help().rstrip()}\n```\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
