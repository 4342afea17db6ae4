"""A group of commands: names the nearest when there is no such one, lists each with the first line of its help."""

from __future__ import annotations

import click

from orchestrator.errors import UnknownNameError


class Group(click.Group):
    """As click's, with orch's own words."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the nearest commands when there is no such one.

        Raises:
            UnknownNameError: no such command.
        """
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see `{ctx.command_path} --help`"
            raise UnknownNameError(f"no command {name!r}", next_step=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands, each with the first line of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.first_line(ctx, name)) for name in self.list_commands(ctx)])

    def first_line(self, ctx: click.Context, name: str) -> str:
        """The first line of a command's help."""
        command = self.get_command(ctx, name)
        return (command.help or "").partition("\n")[0] if command is not None else ""
