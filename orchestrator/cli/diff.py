"""``orch diff``."""

from __future__ import annotations

import click

from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine


@click.command("diff")
@click.argument("variant_name", metavar="[VARIANT]", required=False)
@target_option
@json_option
@click.pass_obj
@example("orch diff V2", "orch diff")
def command(obj: dict[str, str], variant_name: str | None, target_name: str | None, is_json: bool) -> None:
    """Show what differs: a variant, or the live file, against the baseline.

    With a variant: its working copy against the baseline that it was made from. Without: what is on the host now
    against the recorded baseline.
    """
    from orchestrator.cli.variant import print_diff
    from orchestrator.project import Project

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    if variant_name is not None:
        print_diff(out, project, target, variant_name)
        return
    from orchestrator import workspace
    from orchestrator.pull import pull
    from orchestrator.session import open_session

    with (
        ProgressLine() as progress,
        open_session(project, target.name, progress, is_exclusive=False, is_patient=False) as session,
    ):
        baseline = session.baseline()
        snapshot = pull(session.remote, target)
        session.store.record_snapshot(snapshot, "status")
    lines = workspace.diff(baseline.files, snapshot.files)
    out.diff(lines)
    if not lines:
        out.note(f"{target.host}: the live file is the recorded baseline")
    out.document({"from": baseline.digest, "to": snapshot.digest, "diff": [line.rstrip("\n") for line in lines]})
