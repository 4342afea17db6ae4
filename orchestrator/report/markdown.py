"""An experiment as Markdown for a pull request: the verdict first, then what is needed to believe it. Pure."""

from __future__ import annotations

from orchestrator.report.experiment_data import ExperimentReport
from orchestrator.report.tables import Sheet, provenance_sheet, values_sheet, verdict_sheet
from orchestrator.report.words import findings, headline


def markdown(report: ExperimentReport) -> str:
    """The whole text, with a line break at its end."""
    plan = report.plan
    parts = [f"## {_escaped(headline(report))}"]
    if plan.hypothesis:
        parts.append(f"Hypothesis: {_escaped(plan.hypothesis)}")
    lines = [f"- **{_escaped(one.claim)}**: {_escaped(one.numbers)}. {_escaped(one.why)}" for one in findings(report)]
    parts.append("\n".join(lines))
    if report.analysis is not None:
        parts.append(_table(verdict_sheet(report.analysis, plan)))
    parts.append("\n".join(f"> **Warning:** {_escaped(warning)}" for warning in report.warnings))
    if report.analysis is not None and report.analysis.next_step:
        parts.append(f"Next: {_with_code(report.analysis.next_step)}")
    if report.starts:
        parts += [_details(values_sheet(report)), _details(provenance_sheet(report))]
    status = _escaped(report.experiment.stop_reason or report.experiment.status)
    parts.append(f"Experiment {report.experiment.id} ({status}), seed {plan.seed}, orch {report.orch_version}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(sheet: Sheet) -> str:
    rulers = ["---:" if name in sheet.right else "---" for name in sheet.columns]
    lines = [_line([_escaped(name) for name in sheet.columns]), _line(rulers)]
    lines += [_line([_escaped(cell) for cell in row]) for row in sheet.rows]
    return f"{_escaped(sheet.title)}\n\n" + "\n".join(lines)


def _details(sheet: Sheet) -> str:
    table = _table(sheet).partition("\n\n")[2]
    return f"<details><summary>{_escaped(sheet.title)}</summary>\n\n{table}\n\n</details>"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with_code(text: str) -> str:
    """As ``_escaped``, but what stands between two backticks is code."""
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:  # a backtick without its partner
        return _escaped(text)
    return "".join(f"`{one}`" if i % 2 else _without_markup(one) for i, one in enumerate(pieces))


def _escaped(text: str) -> str:
    """Nothing that a user wrote becomes markup or ends a cell."""
    return _without_markup(" ".join(text.split()))


def _without_markup(text: str) -> str:
    for mark in "\\`*_[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text
