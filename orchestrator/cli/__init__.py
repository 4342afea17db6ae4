"""The ``orch`` command: options in, one call, text out, exit codes.

Each command lives in a module of its own that is imported when the command is called; the table below is what
``orch --help`` needs, so that help costs no import (a test holds it to the commands' own docstrings).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from orchestrator.cli.exit_codes import FAILED, INTERRUPTED, MEANINGS, WRONG_USE, exit_code_of
from orchestrator.errors import OrchError
from orchestrator.interrupts import raise_on_signals
from orchestrator.version import VERSION

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Write a commented inventory.yaml."),
    "pull": ("pull", "Fetch the target's files and record them as the baseline."),
    "status": ("status", "What is on the host, who holds it, what is in the workspace."),
    "variant": ("variant", "Make, list, show, diff, edit and drop variants."),
    "diff": ("diff", "Show what differs: a variant, or the live file, against the baseline."),
    "push": ("push", "Put a variant live: compare-and-swap, atomic, verified."),
    "bench": ("bench", "Restart the engine, prove what it loaded, load it, store the numbers."),
    "compare": ("compare", "Ratio of a variant to the baseline at each concurrency."),
    "revert": ("revert", "Put the pristine bytes back, and prove it."),
    "drift": ("drift", "Every change that nobody made on purpose: files and environment."),
    "query": ("query", "Run SQL on results.db, read-only."),
    "demo": ("demo", "The whole story on this machine, no GPU needed."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the job."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"orchestrator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the nearest commands when there is no such one."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; see `orch --help`"
            ctx.fail(f"no such command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Adds an example and the exit codes."""
        with formatter.section("Example"):
            formatter.write_text("orch pull && orch variant new V2 --set num_stages=3 && orch push --variant V2")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in MEANINGS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="orch")
@click.option(
    "--inventory",
    "inventory_path",
    default="inventory.yaml",
    envvar="ORCH_INVENTORY",
    show_default=True,
    show_envvar=True,
    help="The project's inventory; results.db and variants/ lie beside it.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def orch(ctx: click.Context, inventory_path: str, debug: bool) -> None:
    """Tune GPU kernels inside a live serving engine on a remote host.

    Pull a kernel file over SSH, make variants, push one atomically, restart the engine, measure it, compare, and
    always put the host back. Every number belongs to the sha256 of the bytes that the engine really loaded.
    """
    ctx.obj = {"inventory_path": inventory_path, "debug": debug}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: runs the command and exits with the code that ``exit_codes`` gives."""
    raise_on_signals()
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; no anticipated error shows a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result: Any = orch.main(args=arguments, prog_name="orch", standalone_mode=False)
    except OrchError as exc:
        if "--debug" in arguments:
            raise
        from orchestrator.cli.output import print_error

        print_error(exc)
        return exit_code_of(exc)
    except click.exceptions.Abort:
        click.echo("orch: interrupted", err=True)
        return INTERRUPTED
    except KeyboardInterrupt:
        click.echo("orch: interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as exc:
        exc.show()
        return WRONG_USE if isinstance(exc, click.UsageError) else FAILED
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`orch query … | head`): nothing to tell it
        return FAILED
    return result if isinstance(result, int) else 0
