"""``orch doctor``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import DONE, FAILED
from orchestrator.cli.options import example, json_option, target_argument
from orchestrator.cli.output import MAX_EVIDENCE_LINES, Output, counted, styled

if TYPE_CHECKING:
    from orchestrator.doctor import Finding
    from orchestrator.project import Project
    from orchestrator.records import Target

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "cyan"}
NAME_WIDTH = 14


@click.command("doctor")
@target_argument
@json_option
@click.pass_obj
@example("orch doctor", "orch doctor flash_mla --json")
def command(obj: dict[str, str], target_name: str | None, is_json: bool) -> int:
    """Check the whole chain, host to load client; each failure says what to do.

    ssh configuration, host key, login, tools, clock and disks of the host; the target's files and the kernel in them;
    what an earlier run left; the engine's Python, program, port and modules; GPUs; the load client; results.db and
    the workspace. Changes nothing. Exit code 1 when something failed; warnings do not count.
    """
    from orchestrator.doctor import examine, open_project

    out = Output(is_json=is_json)
    project, first = open_project(obj["inventory_path"])
    target = project.target(target_name) if project else None
    others = examine(project, target) if project and target else iter(())
    findings = list(_printed(out, [first], others))
    counts: Counter[str] = Counter(finding.status for finding in findings)
    out.line()
    out.line(_summary(counts), style="bold red" if counts["fail"] else "yellow" if counts["warn"] else "green")
    out.document(_document(project, target, findings, counts))
    return FAILED if counts["fail"] else DONE


def _printed(out: Output, *parts: Iterable[Finding]) -> Iterator[Finding]:
    """The findings, each printed when it comes."""
    for findings in parts:
        for finding in findings:
            status = styled(f"{finding.status:<7}", STYLES[finding.status], sys.stdout)
            out.line(f"{status} {finding.name:<{NAME_WIDTH}} {finding.text}")
            for text in finding.evidence[:MAX_EVIDENCE_LINES]:
                out.line(f"{'':<{NAME_WIDTH + 9}}{text}")
            if finding.next_step:
                out.line(f"{'':<{NAME_WIDTH + 9}}→ {finding.next_step}")
            yield finding


def _summary(counts: Counter[str]) -> str:
    text = f"{counts['ok']} ok, {counted(counts['warn'], 'warning')}, {counted(counts['fail'], 'failure')}"
    return f"{text}, {counts['skipped']} skipped" if counts["skipped"] else text


def _document(
    project: Project | None, target: Target | None, findings: list[Finding], counts: Counter[str]
) -> dict[str, Any]:
    """The JSON of what was found; keys, and the findings' names, are stable."""
    return {
        "target": target.name if target else None,
        "host": target.host if target else None,
        "engine": target.engine if target else None,
        "inventory": project.inventory.path if project else None,
        "n_ok": counts["ok"],
        "n_warnings": counts["warn"],
        "n_failures": counts["fail"],
        "n_skipped": counts["skipped"],
        "findings": [
            {
                "name": finding.name,
                "status": finding.status,
                "text": finding.text,
                "next_step": finding.next_step,
                "evidence": list(finding.evidence),
            }
            for finding in findings
        ],
    }
