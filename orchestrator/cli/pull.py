"""``orch pull``."""

from __future__ import annotations

import click

from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine


@click.command("pull")
@target_argument
@click.option(
    "--force", is_flag=True, help="Take bytes that are those of a known variant as the baseline all the same."
)
@json_option
@click.pass_obj
@example("orch pull", "orch pull flash_mla")
def command(obj: dict[str, str], target_name: str | None, force: bool, is_json: bool) -> None:
    """Fetch the target's files and record them as the baseline.

    Writes a read-only pristine copy to variants/TARGET/baseline/. Says so, with the diff, when the baseline moved
    since the last pull. Refuses while a variant is live.
    """
    from orchestrator.experiment.prepare import prepare
    from orchestrator.project import Project
    from orchestrator.records import short
    from orchestrator.session import open_session

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    with ProgressLine() as progress, open_session(project, target_name, progress) as session:
        pulled = prepare(session, force=force)
    snapshot, previous = pulled.snapshot, pulled.previous
    if previous is not None and pulled.has_moved:
        out.line(f"THE BASELINE MOVED since {previous.pulled_at}: was {short(previous.digest)}", style="yellow")
        out.diff(pulled.diff)
    for file, state in zip(snapshot.files, snapshot.states, strict=True):
        out.line(f"{file.name}  {short(file.digest)}  {len(file.content)} bytes  {snapshot.host}:{state.real_path}")
    folder = project.variants_root / snapshot.target / "baseline"
    out.line(f"baseline of {snapshot.target} is {short(snapshot.digest)}, pristine copy in {_shown(folder)}")
    out.line("next: `orch variant new V1 --set …`")
    out.document(
        {
            "target": snapshot.target,
            "host": snapshot.host,
            "digest": snapshot.digest,
            "previous_digest": previous.digest if previous else None,
            "has_moved": pulled.has_moved,
            "diff": list(pulled.diff),
            "files": [
                {"name": f.name, "digest": f.digest, "size_bytes": len(f.content), "remote_path": s.path}
                for f, s in zip(snapshot.files, snapshot.states, strict=True)
            ],
            "pulled_at": snapshot.pulled_at,
        }
    )


def _shown(path: object) -> str:
    import os

    return os.path.relpath(str(path))
