"""``orch demo``."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.options import example


@click.command("demo")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True, help="For the engine."
)
@example("orch demo", "orch demo my-demo")
def command(folder: Path | None, device: str) -> None:
    """The whole story on this machine, no GPU needed.

    Makes a throwaway project in FOLDER (a temporary one when left out; it is kept), starts a throwaway SSH host on
    loopback and a small real decode engine on it, then: pull, two variants, push, bench, compare, drift, revert.
    About two minutes on two cores. Ctrl-C at any moment leaves nothing running and the file restored.
    """
    from orchestrator.cli import run_command as run
    from orchestrator.demo.story import play
    from orchestrator.errors import InterruptedError_

    try:
        play(folder, run, _say, device=device)
    except KeyboardInterrupt:
        raise InterruptedError_(
            "interrupted: the throwaway host was put back, nothing of the demo is running"
        ) from None


def _say(text: str) -> None:
    bold = text.lstrip().startswith(("──", "$"))
    click.echo(click.style(text, bold=True) if bold else text)
