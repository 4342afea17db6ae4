"""The ``orch`` command: options in, one call, text out, exit codes.

Each command lives in a module of its own that is imported when the command is called; the table below is what
``orch --help`` needs, so that help costs no import (a test holds it to the commands' own docstrings).
"""

from __future__ import annotations

import errno
import importlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED, INTERRUPTED, MEANINGS, WRONG_USE, exit_code_of
from orchestrator.cli.group import Group
from orchestrator.errors import OrchError, UsageError
from orchestrator.interrupts import raise_on_signals
from orchestrator.version import VERSION

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "Write a commented inventory.yaml."),
    "doctor": ("doctor", "Check the whole chain, host to load client; each failure says what to do."),
    "pull": ("pull", "Fetch the target's files and record them as the baseline."),
    "status": ("status", "What is on the host, who holds it, what is in the workspace."),
    "variant": ("variant", "Make, list, show, diff, edit and drop variants."),
    "diff": ("diff", "Show what differs: a variant, or the live file, against the baseline."),
    "check": ("check", "Tell before any GPU time whether a variant can launch, fits and differs."),
    "push": ("push", "Put a variant live: compare-and-swap, atomic, verified."),
    "bench": ("bench", "Restart the engine, prove what it loaded, load it, store the numbers."),
    "plan": ("plan", "Tell how many pairs an effect needs, and what that costs."),
    "run": ("run", "Run a whole experiment: planned pairs of starts, a verdict with a known error rate."),
    "attach": ("attach", "Watch an experiment that another orch of this project runs."),
    "resume": ("resume", "Go on with an experiment whose orch was interrupted, killed or cut off."),
    "compare": ("compare", "Ratio of a variant to the baseline at each concurrency."),
    "history": ("history", "Every experiment: hypothesis, verdict, effect, and why a variant was rejected."),
    "report": ("report", "One experiment as a page, as Markdown or as JSON."),
    "revert": ("revert", "Put the pristine bytes back, and prove it."),
    "drift": ("drift", "Every change that nobody made on purpose: files, environment and speed."),
    "query": ("query", "Run SQL on results.db, read-only."),
    "selfcheck": ("selfcheck", "Simulate the statistics: how often verdicts are wrong, against what is claimed."),
    "demo": ("demo", "The whole story on this machine, no GPU needed."),
}


class LazyGroup(Group):
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

    def first_line(self, ctx: click.Context, name: str) -> str:
        """The command's line in the table; nothing is imported for it."""
        return COMMANDS[name][1]

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
    for stream in (sys.stdout, sys.stderr):  # a locale without → must not end a command half way
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run_command(argv)
    except KeyboardInterrupt:  # one more, while the first was being told
        code = INTERRUPTED
    sys.exit(code)


def run_command(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; no anticipated error shows a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        result: Any = orch.main(args=arguments, prog_name="orch", standalone_mode=False)
    except (OrchError, OSError) as exc:
        if "--debug" in arguments:
            raise
        return _told(exc if isinstance(exc, OrchError) else _as_orch_error(exc))
    except click.exceptions.Abort:
        click.echo("orch: interrupted", err=True)
        return INTERRUPTED
    except KeyboardInterrupt:
        click.echo("orch: interrupted", err=True)
        return INTERRUPTED
    except click.UsageError as exc:
        return _told_usage(exc)
    except click.ClickException as exc:
        return _told(OrchError(_as_message(exc.format_message())))
    except SystemExit as exc:  # click's answer to a closed pipe (`orch query … | head`): there is nobody to tell
        return exc.code if isinstance(exc.code, int) else FAILED
    return result if isinstance(result, int) else DONE


def _told(error: OrchError) -> int:
    from orchestrator.cli.output import print_error

    print_error(error)
    return exit_code_of(error)


def _told_usage(error: click.UsageError) -> int:
    """Wrong use in one line, as every other error; a group without a command shows its help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
        error.show()
        return WRONG_USE
    command = error.ctx.command_path if error.ctx is not None else "orch"
    message = _as_message(error.format_message())
    return _told(UsageError(message, next_step=f"see `{command} --help`"))


def _as_message(text: str) -> str:
    """click's sentence as a message of ours: it goes on after ``orch:`` and before what to do."""
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _as_orch_error(error: OSError) -> OrchError:
    """What the operating system refused, outside of what a station watches: a full or read-only disk, a lost folder."""
    steps = {
        errno.EACCES: "this user may not read or write there",
        errno.EROFS: "that disk is read-only",
        errno.ENOSPC: "free some space on that disk",
    }
    where = f": {error.filename}" if error.filename else ""
    step = steps.get(error.errno or 0, "`orch --debug …` shows where this happened")
    return OrchError(f"{error.strerror or error}{where}", next_step=step)
