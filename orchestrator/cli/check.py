"""``orch check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, WRONG_VARIANT
from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.check.offline import Sweep
    from orchestrator.check.report import Sheet
    from orchestrator.experiment.check import Options
    from orchestrator.project import Project
    from orchestrator.records import Target, Variant
    from orchestrator.verdicts import RemoteVerdict, Verdict

MARKS = {True: ("ok", "green"), False: ("fail", "bold red"), None: ("skipped", "cyan")}


@click.command("check")
@click.argument("knobs", metavar="[KNOB=VALUES]...", nargs=-1)
@click.option("--variant", "variant_name", metavar="NAME", default="baseline", help="Which variant; else the baseline.")
@click.option("--arch", "archs", metavar="ARCH", multiple=True, help="E.g. sm_120; the host's when left out.")
@click.option("--triton", "triton_version", metavar="VERSION", help="Compile with this Triton; installs it once.")
@click.option("--sweep", "is_sweep", is_flag=True, help="Compile a grid: KNOB=VALUES such as num_stages=2..7.")
@click.option("--remote", "is_remote", is_flag=True, help="Also import and judge it on the host, in a scratch folder.")
@target_option
@json_option
@click.pass_obj
@example(
    "orch check --variant V2",
    "orch check --variant V2 --arch sm_90,sm_120 --triton 3.6.0",
    "orch check --sweep num_stages=2..7 num_warps=4,8 BLOCK_T=16,32",
    "orch check --variant V2 --remote",
)
def command(
    obj: dict[str, str],
    knobs: tuple[str, ...],
    variant_name: str,
    archs: tuple[str, ...],
    triton_version: str | None,
    is_sweep: bool,
    is_remote: bool,
    target_name: str | None,
    is_json: bool,
) -> int:
    """Tell before any GPU time whether a variant can launch, fits and differs.

    Compiles it for the host's GPU on this machine, without a GPU, from the host's own Triton cache after an engine
    start, else from the source. With --sweep compiles a grid over its first config; `orch variant new --from-sweep`
    makes variants of the points that you pick. Exit code 4 when the variant cannot launch, does not compile, is the
    baseline's binary, or is wrong on the host.
    """
    from orchestrator.experiment.check import Options, parse_archs
    from orchestrator.project import Project
    from orchestrator.session import BASELINE, read_variant

    if knobs and not is_sweep:
        raise click.UsageError(f"{knobs[0]!r} is a knob of a grid: add --sweep")
    if is_sweep and (is_remote or not knobs):
        raise click.UsageError("--sweep wants knobs such as num_stages=2..7, and no --remote")
    out = Output(is_json=is_json)
    options = Options(parse_archs(archs), triton_version)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    variant = None if variant_name == BASELINE else read_variant(project, target, variant_name)
    if is_sweep:
        return _sweep(out, project, target, variant, knobs, options)
    if is_remote:
        return _both(out, project, target, variant, options)
    return _offline(out, project, target, variant, options)


# ---- offline


def _offline(out: Output, project: Project, target: Target, variant: Variant | None, options: Options) -> int:
    from orchestrator.check import report
    from orchestrator.experiment.check import check
    from orchestrator.store import Store

    with ProgressLine() as progress, Store.open(project.db_path) as store:
        verdict = check(project, store, target, variant, progress, options).verdict
    print_verdict(out, verdict)
    conclude(out, verdict.variant, verdict)
    out.document(report.document(verdict))
    return DONE if verdict.status == "ok" else WRONG_VARIANT


def print_verdict(out: Output, verdict: Verdict) -> None:
    """How it was compiled, the tables, then what they mean."""
    from orchestrator.check import report

    out.line(_title(verdict.variant, verdict.digest, verdict.kernel, verdict.source, verdict.triton_version))
    _print_sheets(out, report.verdict_sheets(verdict))
    out.line()
    for sentence in verdict.sentences:
        out.line(
            f"{'✗' if sentence.is_fatal else '•'} {sentence.text}", style="bold red" if sentence.is_fatal else None
        )
    _print_caveats(out, verdict.caveats)


def conclude(out: Output, name: str, verdict: Verdict | None, remote: RemoteVerdict | None = None) -> None:
    """The last line, of everything that was tried."""
    if verdict is not None and verdict.status != "ok":
        out.line(f"{name} is not worth GPU time: {verdict.status.replace('-', ' ')}", style="bold red")
    elif remote is None or remote.passed:
        out.line(f"{name} can be measured", style="green")
    elif any(finding.passed is False for finding in remote.findings):
        out.line(f"{name} is wrong on {remote.host}", style="bold red")
    else:
        out.line(f"{name} was not judged on {remote.host}", style="yellow")


def _title(name: str, digest: str, kernel: str, source: str | None, triton_version: str | None) -> str:
    from orchestrator.records import short

    where = "the host's Triton cache" if source == "host-cache" else "the source"
    return f"{name} {short(digest)}: {kernel}, compiled from {where} with Triton {triton_version}"


def _print_sheets(out: Output, sheets: Iterable[Sheet]) -> None:
    for sheet in sheets:
        out.line()
        out.table(Table(sheet.columns, sheet.rows, right=sheet.right, title=sheet.title))


def _print_caveats(out: Output, caveats: Sequence[str]) -> None:
    for caveat in caveats:
        out.line(f"note: {caveat}", style="yellow")


# ---- a grid


def _sweep(
    out: Output, project: Project, target: Target, variant: Variant | None, knobs: tuple[str, ...], options: Options
) -> int:
    from orchestrator.check import report
    from orchestrator.experiment.sweep import sweep
    from orchestrator.store import Store

    with ProgressLine() as progress, Store.open(project.db_path) as store:
        found = sweep(project, store, target, variant, knobs, progress, options)
    out.line(_title(found.variant, found.digest, found.kernel, found.source, found.triton_version))
    _print_sheets(out, report.sweep_sheets(found.rows, found.swept))
    out.line()
    for error, numbers in _errors(found).items():
        out.line(f"• {', '.join(f'#{number}' for number in numbers)} cannot be compiled: {error}")
    _print_caveats(out, found.caveats)
    out.line(_next_of(found))
    out.document(
        {
            "target": found.target,
            "variant": found.variant,
            "digest": found.digest,
            "base_digest": found.base_digest,
            "kernel": found.kernel,
            "source": found.source,
            "triton_version": found.triton_version,
            "host_triton_version": found.host_triton_version,
            "unsettable": list(found.unsettable),
            **report.sweep_document(found.rows, found.swept),
            "caveats": list(found.caveats),
            "checked_at": found.checked_at,
        }
    )
    return DONE


def _errors(found: Sweep) -> dict[str, list[int]]:
    """Why points do not compile, with their numbers."""
    errors: dict[str, list[int]] = {}
    for row in found.rows:
        if row.report.compiled.error is not None:
            errors.setdefault(row.report.compiled.error, []).append(row.number)
    return errors


def _next_of(found: Sweep) -> str:
    if found.unsettable:
        return (
            f"{', '.join(found.unsettable)}: set by the launcher, so no variant can be made of this grid by its knobs"
        )
    first = next((row.number for row in found.rows if row.mark == "new"), None)
    if first is None:
        return "no point is worth GPU time: each is too large, or the same as another or the baseline"
    return f"next: `orch variant new --from-sweep {first}`, or --from-sweep all for every new one"


# ---- on the host


def _both(out: Output, project: Project, target: Target, variant: Variant | None, options: Options) -> int:
    """Offline where that can be done, then on the host."""
    from orchestrator.check import report
    from orchestrator.check.remote import check_remote
    from orchestrator.errors import UsageError
    from orchestrator.experiment.check import check_if_possible
    from orchestrator.session import open_session

    if variant is None:
        raise UsageError("--remote judges a variant", next_step="name one: `orch check --variant V2 --remote`")
    with ProgressLine() as progress, open_session(project, target.name, progress, is_exclusive=False) as session:
        offline = check_if_possible(project, session.store, target, variant, progress, options)
        remote = check_remote(session.remote, session.engine, target, variant, report=progress)
        session.store.record_remote_check(remote, remote_document(remote))
    if offline.verdict is not None:
        print_verdict(out, offline.verdict)
    else:
        out.warn(f"not compiled: {offline.why_not}")
    out.line()
    print_remote(out, remote)
    conclude(out, variant.name, offline.verdict, remote)
    whole = report.document(offline.verdict) if offline.verdict else {"status": "not-checked", "why": offline.why_not}
    out.document({**whole, "remote": remote_document(remote)})
    is_good = remote.passed and (offline.verdict is None or offline.verdict.status == "ok")
    return DONE if is_good else WRONG_VARIANT


def print_remote(out: Output, verdict: RemoteVerdict) -> None:
    """What was tried on the host, a line each, with its evidence."""
    from orchestrator.cli.output import MAX_EVIDENCE_LINES

    out.line(f"on {verdict.host}, in a scratch folder:", style="bold")
    for finding in verdict.findings:
        word, style = MARKS[finding.passed]
        out.line(f"{word:<8} {finding.name}: {finding.detail}", style=style)
        for text in finding.evidence[-MAX_EVIDENCE_LINES:]:
            out.line(f"         {text}")


def remote_document(verdict: RemoteVerdict) -> dict[str, Any]:
    """The JSON of what a variant did on its host."""
    return {
        "host": verdict.host,
        "command": None if verdict.command is None else list(verdict.command),
        "passed": verdict.passed,
        "findings": [
            {"name": one.name, "passed": one.passed, "detail": one.detail, "evidence": list(one.evidence)}
            for one in verdict.findings
        ],
        "report": verdict.report,
        "checked_at": verdict.checked_at,
    }
