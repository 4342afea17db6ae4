"""The page of an experiment in a real browser, from a file and without a network: nothing fails, nothing is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report import ExperimentReport
from orchestrator.report.page import page
from tests.support.chromium import Tab, browser_tab, find_chromium
from tests.support.report_fixture import experiment_report, unfinished_report

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WIDTHS = (390, 1280)
CHARTS = ("throughput", "ratios", "latency", "starts", "telemetry")


def renamed(report: ExperimentReport, before: str, after: str) -> ExperimentReport:
    """The same with another name for one arm."""
    plan, (look,) = report.plan, report.looks
    arms = tuple(replace(arm, name=after) if arm.name == before else arm for arm in plan.arms)
    planned = tuple(replace(one, arm=after) if one.arm == before else one for one in plan.starts)
    judged = tuple(replace(arm, arm=after) if arm.arm == before else arm for arm in look.arms)
    starts = tuple(
        replace(one, record=replace(one.record, planned=replace(one.record.planned, arm=after)))
        if one.arm == before
        else one
        for one in report.starts
    )
    experiment = replace(report.experiment, plan=replace(plan, arms=arms, starts=planned))
    return replace(report, experiment=experiment, looks=(replace(look, arms=judged),), starts=starts)


def with_long_names(report: ExperimentReport) -> ExperimentReport:
    """The same with texts of a user that do not break, and markup in them."""
    report = renamed(report, "V1", "a-variant-whose-name-is-as-long-as-names-ever-get-0123456789")
    long = "/models/" + "deepseek-" * 30
    starts = tuple(replace(one, facts={**one.facts, "engine_command": long}) for one in report.starts)
    plan = replace(report.plan, hypothesis="<b>bold</b> & " + "x" * 200, target="t" * 90)
    return replace(
        report,
        experiment=replace(report.experiment, plan=plan),
        starts=starts,
        warnings=(*report.warnings, "<script>alert(1)</script>" + "y" * 150),
    )


REPORTS: dict[str, Callable[[], ExperimentReport]] = {
    "whole": experiment_report,
    "no GPU": lambda: experiment_report(has_gpu=False),
    "only planned": unfinished_report,
    "long names": lambda: with_long_names(experiment_report()),
}

CUT = """
(() => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push(`page: ${root.scrollWidth} > ${root.clientWidth}`);
  document.querySelectorAll('details').forEach(one => { one.open = true; });
  for (const one of document.body.querySelectorAll('*:not(svg):not(svg *)')) {
    if (one.getClientRects().length === 0 || getComputedStyle(one).display === 'inline') continue;
    const box = one.getBoundingClientRect();
    const name = `${one.tagName} ${one.className} "${one.textContent.trim().slice(0, 40)}"`;
    if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0)
      found.push(`${name}: ${one.scrollWidth} > ${one.clientWidth}`);
    if (box.right > root.clientWidth + 1 || box.left < -1) found.push(`${name}: ${box.left}..${box.right}`);
  }
  return found;
})()
"""
CUT_IN_CHARTS = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll('figure > svg')) {
    const frame = svg.getBoundingClientRect();
    if (frame.width === 0) continue;
    const boxes = [];
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.width === 0) continue;
      const name = `${svg.parentElement.id} "${text.textContent}"`;
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.top < frame.top - 0.5
          || box.bottom > frame.bottom + 0.5) found.push(`${name} is cut`);
      for (const [other, word] of boxes) {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const down = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && down > 4) found.push(`${name} lies on "${word}"`);
      }
      boxes.push([box, text.textContent]);
    }
  }
  return found;
})()
"""
CHART_SIZES = """
Object.fromEntries([...document.querySelectorAll('figure > svg')].filter(svg => svg.clientWidth > 0).map(svg => {
  const box = svg.querySelector('g').getBBox();
  return [svg.parentElement.id, [box.width, box.height, svg.querySelectorAll('path').length]];
}))
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser's page without a network."""
    program = find_chromium()
    if program is None:
        pytest.skip("no chromium is installed here")
    with browser_tab(program, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each report as a file."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, report in REPORTS.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(page(report()), encoding="utf-8")
    return made


def complaints(tab: Tab) -> list[Any]:
    """Everything that the browser found wrong since the page was opened, and every request but the page itself."""
    wrong = [*tab.seen("Runtime.exceptionThrown"), *tab.seen("Log.entryAdded"), *tab.seen("Runtime.consoleAPICalled")]
    wrong += tab.seen("Network.loadingFailed")
    requests = [event["request"]["url"] for event in tab.seen("Network.requestWillBeSent")]
    return wrong + [url for url in requests if not url.startswith(("file:", "data:"))] + requests[2:]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REPORTS)
def test_the_page_opens_without_a_complaint(tab: Tab, files: dict[str, Path], name: str, width: int) -> None:
    """No error in the console, no failed request, no request for anything but the file itself."""
    tab.open(files[name].as_uri(), width=width)
    assert complaints(tab) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn(tab: Tab, files: dict[str, Path], width: int) -> None:
    """Each chart shows exactly one of its forms, with something in it."""
    tab.open(files["whole"].as_uri(), width=width)
    sizes = tab.evaluate(CHART_SIZES)
    assert set(sizes) == set(CHARTS)
    assert all(across > 100 and down > 100 and n_paths > 10 for across, down, n_paths in sizes.values()), sizes


@pytest.mark.parametrize("width", (*WIDTHS, 721))
@pytest.mark.parametrize("name", REPORTS)
def test_no_text_is_cut(tab: Tab, files: dict[str, Path], name: str, width: int) -> None:
    """Nothing is wider than its box or the page; no text of a chart is cut or lies on another."""
    tab.open(files[name].as_uri(), width=width)
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(CUT_IN_CHARTS) == []


def test_without_a_gpu_the_page_says_so(tab: Tab, files: dict[str, Path]) -> None:
    """A host without a GPU has no telemetry chart, and a sentence instead."""
    tab.open(files["no GPU"].as_uri(), width=1280)
    assert tab.evaluate("document.querySelector('#telemetry').innerText.includes('No GPU telemetry')")
    assert tab.evaluate("document.querySelectorAll('#telemetry svg').length") == 0


def test_what_a_user_wrote_is_text(tab: Tab, files: dict[str, Path]) -> None:
    """Markup in a hypothesis or a warning is shown as it was typed."""
    tab.open(files["long names"].as_uri(), width=1280)
    assert tab.evaluate("document.querySelectorAll('script, b').length") == 0
    assert tab.evaluate("document.body.innerText.includes('<b>bold</b>')")


def test_the_page_prints(tab: Tab, files: dict[str, Path]) -> None:
    """The page becomes a PDF of several pages with the tables that are folded on screen."""
    tab.open(files["whole"].as_uri(), width=1280)
    pdf = tab.pdf()
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type/Page/") >= 3
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("document.querySelector('details .stacked').getBoundingClientRect().height") > 100


def test_dark_and_light_differ(tab: Tab, files: dict[str, Path]) -> None:
    """The page, and the text of its charts, follow the reader's colour scheme."""
    seen = []
    for is_dark in (False, True):
        tab.open(files["whole"].as_uri(), width=1280, is_dark=is_dark)
        seen.append(
            tab.evaluate(
                "[getComputedStyle(document.body), getComputedStyle(document.querySelector('#ratios text'))]"
                ".map(one => [one.backgroundColor, one.fill])"
            )
        )
    assert seen[0][0][0] != seen[1][0][0] and seen[0][1][1] != seen[1][1][1]
