"""What was measured, made readable: a terminal's table, Markdown, JSON, a page. Takes records, judges nothing.

    comparison.py       measurements taken by hand: rows and JSON of ``orch compare``
    experiment_data.py  ``ExperimentReport``: everything that a report of an experiment shows, and nothing else
    summaries.py        means with intervals, telemetry in bins: what is computed for show
    words.py            the verdict as a sentence; ratios, intervals and p as text
    tables.py           columns and rows, used by all forms
    markdown.py, document.py    for a pull request; JSON with stable keys
    drawing.py, charts.py, forest.py    the plotting library, imported when a page is made and not before
    page.py             the page, of page.html.j2 and page.css

Reads no record from anywhere and writes no file: ``experiment.reporting`` gathers, ``cli`` writes.
"""

from __future__ import annotations

from orchestrator.report.comparison import comparison_document, comparison_rows, title
from orchestrator.report.experiment_data import ExperimentReport, LoadReport, StartReport

__all__ = ["ExperimentReport", "LoadReport", "StartReport", "comparison_document", "comparison_rows", "title"]
