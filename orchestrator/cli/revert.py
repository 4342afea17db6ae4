"""``orch revert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine

if TYPE_CHECKING:
    from orchestrator.experiment.conclude import Concluded
    from orchestrator.session import Session

ENGINE_WORDS = {
    "none": "no engine that orch started is running",
    "stopped": "the engine that orch had started was stopped (`orch revert --restart` starts it on the baseline)",
    "restarted": "the engine was started again on the baseline",
}


@click.command("revert")
@target_argument
@click.option(
    "--force", is_flag=True, help="Overwrite a foreign edit (kept on the host beside the file); end another's lease."
)
@click.option("--restart", is_flag=True, help="Start the engine again on the baseline.")
@json_option
@click.pass_obj
@example("orch revert")
def command(obj: dict[str, str], target_name: str | None, force: bool, restart: bool, is_json: bool) -> None:
    """Put the pristine bytes back, and prove it.

    Works from the host's own backup, so it needs neither variants/ nor, with --force, results.db. Repeating it is safe.
    Exit code 5 means that the host is NOT restored; the message has the command that repairs it.
    """
    from orchestrator.experiment.conclude import revert
    from orchestrator.project import Project
    from orchestrator.session import nodes_in_use, on_node, open_session

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    everywhere: list[Concluded] = []

    def put_back(session: Session) -> None:
        everywhere.append(revert(session, force=force, restart=restart and session.is_whole))
        progress.finish(is_good=True)
        _tell(out, everywhere[-1])

    with (
        ProgressLine() as progress,
        open_session(project, target_name, progress, takes_part=True, ask=progress.ask) as session,
    ):
        put_back(session)
        for node in nodes_in_use(session):
            put_back(on_node(session, node))
    first, *others = [_document(concluded) for concluded in everywhere]
    out.document({**first, "other_nodes": others})


def _tell(out: Output, concluded: Concluded) -> None:
    from orchestrator.records import short

    done = concluded.restoration
    for path in done.kept_foreign:
        out.line(f"the overwritten edit is kept at {done.host}:{path}", style="yellow")
    words = "was clean already" if done.was_clean else "is restored"
    out.line(f"{done.target} on {done.host} {words}: {short(done.digest)}, proved by digest", style="green")
    out.line(ENGINE_WORDS[concluded.engine])


def _document(concluded: Concluded) -> dict[str, Any]:
    done = concluded.restoration
    return {
        "target": done.target,
        "host": done.host,
        "digest": done.digest,
        "was_clean": done.was_clean,
        "kept_foreign": list(done.kept_foreign),
        "engine": concluded.engine,
        "reverted_at": done.reverted_at,
    }
