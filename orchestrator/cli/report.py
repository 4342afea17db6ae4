"""``orch report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, json_option
from orchestrator.cli.output import Output
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.report import ExperimentReport


@click.command("report")
@click.argument("experiment_id", metavar="[EXPERIMENT]", type=int, required=False)
@click.option("--html", "html_path", metavar="FILE", type=click.Path(dir_okay=False), help="Write a page to this file.")
@click.option("--md", "is_markdown", is_flag=True, help="Print Markdown for a pull request.")
@json_option
@click.pass_obj
@example("orch report --html report.html", "orch report 3 --md")
def command(
    obj: dict[str, str], experiment_id: int | None, html_path: str | None, is_markdown: bool, is_json: bool
) -> None:
    """One experiment as a page, as Markdown or as JSON.

    EXPERIMENT is a number of `orch history`, the newest when left out. The page is one file that needs no network:
    verdict, ratios, throughput, latency, every start in the order they ran, GPU telemetry, plan and provenance.
    Without an option the verdict is printed.
    """
    from orchestrator.errors import UsageError
    from orchestrator.experiment.reporting import gather
    from orchestrator.project import Project
    from orchestrator.report.document import document
    from orchestrator.report.markdown import markdown
    from orchestrator.store import Store

    if is_markdown and is_json:
        raise UsageError("--md and --json both print the report", next_step="give one of them")
    out = Output(is_json=is_json)
    with Store.open_read_only(Project.open(obj["inventory_path"]).db_path) as store:
        report = gather(store, experiment_id)
    if html_path is not None:
        write_page(report, Path(html_path))
        out.note(f"wrote {html_path}")
    if is_markdown:
        out.line(markdown(report).rstrip("\n"))
    elif html_path is None:
        print_report(out, report)
    if is_json:
        out.document(document(report))


def write_page(report: ExperimentReport, path: Path) -> None:
    """Writes the page, whole or not at all.

    Raises:
        UsageError: it cannot be written there.
    """
    from orchestrator.errors import UsageError
    from orchestrator.report.page import page

    text = page(report)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as exc:
        raise UsageError(f"cannot write {path}: {exc.strerror}", next_step="give --html another file") from exc


def print_report(out: Output, report: ExperimentReport) -> None:
    """The verdict, its table, warnings, and where the page is."""
    from orchestrator.report.tables import verdict_sheet
    from orchestrator.report.words import findings, headline

    out.line(headline(report), style="bold")
    for found in findings(report):
        out.line(f"{found.claim}: {found.numbers}. {found.why}")
    if report.analysis is not None:
        sheet = verdict_sheet(report.analysis, report.plan)
        out.line()
        out.table(Table(sheet.columns, sheet.rows, right=sheet.right, title=sheet.title))
    for warning in report.warnings:
        out.line(f"warning: {warning}", style="yellow")
    out.line(f"next: `orch report {report.experiment.id} --html report.html` makes a page of it")
