"""``orch push``."""

from __future__ import annotations

import click

from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine


@click.command("push")
@click.option("--variant", "variant_name", metavar="NAME", required=True, help="Which variant.")
@target_option
@click.option(
    "--ttl",
    "ttl_s",
    type=click.FloatRange(min=1),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="The host restores itself after this long without `orch bench` or another push.",
)
@click.option("--force", "is_forced", is_flag=True, help="Push it although `orch check` says that it is no use.")
@json_option
@click.pass_obj
@example("orch push --variant V2")
def command(
    obj: dict[str, str], variant_name: str, target_name: str | None, ttl_s: float, is_forced: bool, is_json: bool
) -> None:
    """Put a variant live: compare-and-swap, atomic, verified.

    Makes the offline check first (see `orch check`), and refuses a variant that cannot launch on the host's GPU or
    compiles to the baseline's binary; where no check is possible it says so and goes on. Refuses, with the diff, when
    the live file is not the one on record. The engine is not restarted: `orch bench` does that. A watcher on the host
    undoes the push when its lease ends.
    """
    from orchestrator import variant as variants
    from orchestrator.experiment.deploy import deploy
    from orchestrator.project import Project
    from orchestrator.records import short
    from orchestrator.session import open_session, read_variant
    from orchestrator.verdicts import arch_name

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    variant = read_variant(project, target, variant_name)
    if not variant.is_isolated:
        out.warn(f"{variant.name}: {variants.describe(variant)}")
    with ProgressLine() as progress, open_session(project, target.name, progress, ask=progress.ask) as session:
        deployed = deploy(session, variant, ttl_s=ttl_s, is_forced=is_forced)
    deployment, verdict = deployed.deployment, deployed.attempt.verdict
    if verdict is None:
        out.warn(f"not checked before the push: {deployed.attempt.why_not}")
    elif deployed.is_forced:
        out.warn(f"pushed against the check: {verdict.status.replace('-', ' ')}")
    else:
        archs = ", ".join(map(arch_name, verdict.archs))
        out.line(f"checked for {archs} with Triton {verdict.triton_version}: {verdict.status}")
    for file in deployment.files:
        already = " (already there)" if file.was_already_there else ""
        out.line(f"{short(file.previous_digest)} → {short(file.digest)}  {deployment.host}:{file.real_path}{already}")
    out.line(f"{variant.name} is live on {deployment.host} until {deployment.lease_expires_at} unless renewed")
    out.line("next: `orch bench --concurrency 1,8,64`, and `orch revert` at the end")
    out.document(
        {
            "target": deployment.target,
            "host": deployment.host,
            "variant": variant.name,
            "digest": deployment.digest,
            "previous_digest": deployment.previous_digest,
            "is_isolated": variant.is_isolated,
            "check": verdict.status if verdict else "not-checked",
            "is_forced": deployed.is_forced,
            "lease_expires_at": deployment.lease_expires_at,
            "files": [
                {
                    "remote_path": f.path,
                    "digest": f.digest,
                    "previous_digest": f.previous_digest,
                    "was_already_there": f.was_already_there,
                }
                for f in deployment.files
            ],
            "pushed_at": deployment.pushed_at,
        }
    )
