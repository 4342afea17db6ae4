"""The report of an experiment: words, tables, Markdown, JSON, charts. In a browser: integration/test_report_page.py."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import COMMANDS
from orchestrator.designs import Analysis
from orchestrator.experiment.reporting import gather
from orchestrator.records import Environment
from orchestrator.report import ExperimentReport
from orchestrator.report.document import analysis_document, analysis_from_document, document
from orchestrator.report.markdown import markdown
from orchestrator.report.summaries import arm_mean, bins, geometric_mean
from orchestrator.report.tables import looks_sheet, provenance_sheet, starts_sheet, values_sheet, verdict_sheet
from orchestrator.report.words import findings, headline, metric_label, p_words, percent, threshold_words
from orchestrator.store import Store
from tests.support import experiment_records as records
from tests.support import store_records
from tests.support.cli_project import CliProject, cli_project
from tests.support.report_fixture import analysis, experiment_report, samples, unfinished_report
from tests.test_cli_output import disagreements, documented


@pytest.fixture(scope="module")
def report() -> ExperimentReport:
    """The seed's experiment."""
    return experiment_report()


def judged(report: ExperimentReport, **ships: bool | None) -> ExperimentReport:
    """The same with another decision on some arms."""
    (look,) = report.looks
    arms = tuple(replace(arm, ships=ships.get(arm.arm, arm.ships)) for arm in look.arms)
    return replace(report, looks=(replace(look, arms=arms),))


def without_values(report: ExperimentReport) -> ExperimentReport:
    """Every start failed."""
    failed = tuple(replace(one, loads=(), telemetry=(), facts={}) for one in report.starts)
    starts = tuple(replace(one, record=replace(one.record, status="failed")) for one in failed)
    return replace(report, starts=starts, looks=())


# ---- words


def test_the_headline_is_what_a_hurried_reader_needs(report: ExperimentReport) -> None:
    """One line says what to do, on which evidence; undecided and rejected are told apart."""
    assert headline(report) == "Ship V2: output throughput +3.8 % at concurrency 64"
    assert headline(judged(report, V2=False)) == "Keep the baseline: V1, V2 rejected"
    assert headline(judged(report, V2=None)) == "Undecided after 6 of 10 blocks: V2 open"
    assert headline(unfinished_report()) == "No verdict: no complete block of 10 planned"


def test_an_a_a_experiment_tells_its_noise(report: ExperimentReport) -> None:
    """Equal arms give the noise of a pair, and an alarm where they are found to differ."""
    plan = replace(report.plan, is_aa=True)
    noise = replace(report, experiment=replace(report.experiment, plan=plan))
    assert headline(noise).startswith("A/A found a difference between equal arms; noise of one pair (SD) 0.80 %")


def test_every_finding_has_its_interval_and_n(report: ExperimentReport) -> None:
    """The sentence of a verdict holds ratio, interval, pairs and why."""
    _, v2 = findings(report)
    assert v2.claim == "V2: FASTER at concurrency 64"
    assert v2.numbers == ("output throughput +3.8 %, 1.038 × baseline (95 % interval 1.025–1.052, n = 6 pairs)")
    assert v2.why.startswith("Ships: ")


def test_numbers_as_words() -> None:
    """A minus is a minus sign, a p is never 0, a threshold is as the method states it."""
    assert (percent(0.842), percent(1.031)) == ("−15.8 %", "+3.1 %")
    assert (p_words(3e-6), p_words(0.0013), p_words(0.172), p_words(None)) == ("<.0001", ".0013", ".172", "–")
    assert threshold_words(0.0115) == ".0115"
    assert (metric_label("ttft_ms_p50"), metric_label("output_tokens_per_s")) == ("TTFT p50", "output throughput")


# ---- tables


def test_the_verdict_table_fits_a_terminal(report: ExperimentReport) -> None:
    """A row a variant and concurrency, 80 columns at most, the primary marked, intervals and pairs in each."""
    assert report.analysis is not None
    sheet = verdict_sheet(report.analysis, report.plan)
    assert len(sheet.rows) == 12
    widths = [max(len(row[i]) for row in (sheet.columns, *sheet.rows)) for i in range(len(sheet.columns))]
    assert sum(widths) + 2 * (len(widths) - 1) <= 80
    assert sheet.rows[9] == ("V2", "★ 64", "1.038", "1.025–1.052", "6", ".0013", "FASTER", "beyond ± 1 %")
    assert sheet.rows[8][-2:] == ("INCONCLUSIVE", "needs 14 pairs")


def test_starts_that_do_not_count_are_shown(report: ExperimentReport) -> None:
    """A start that was set aside, its repeat and a flagged value are in the table with the reason."""
    rows = {row[0]: row for row in starts_sheet(report).rows}
    assert rows["8"][-2:] == ("set-aside", "GPU 0 throttled: sw_thermal in 108 of 270 samples")
    assert rows["10"][-2:] == ("yes", "repeat 1")
    assert "9 % below" in rows["16"][-1]


def test_starts_that_do_not_count_are_in_no_mean(report: ExperimentReport) -> None:
    """The mean of an arm is over its six good starts."""
    mean = arm_mean(report, "V1", "output_tokens_per_s", 64)
    assert mean is not None and mean.n_starts == 6
    assert mean.low95 is not None and mean.low95 > 1600


def test_what_was_not_measured_is_a_dash(report: ExperimentReport) -> None:
    """No table shows 0 for what nobody measured."""
    rows = values_sheet(without_values(report)).rows
    assert {row[2] for row in rows} == {"0"} and {cell for row in rows for cell in row[3:]} == {"–"}


def test_a_fact_that_changed_shows_both_values(report: ExperimentReport) -> None:
    """Another driver in the middle is seen in the provenance."""
    changed = replace(report.starts[-1], facts={**report.starts[-1].facts, "driver_version": "591.00"})
    rows = dict(provenance_sheet(replace(report, starts=(*report.starts[:-1], changed))).rows)
    assert rows["GPU driver"] == "590.48.01 → 591.00"


def test_looks_that_were_not_made_say_so(report: ExperimentReport) -> None:
    """The plan's looks stand with their thresholds, also those that were not needed."""
    assert looks_sheet(report).rows[0] == ("1", "6 blocks", ".0115", "<.0001", ".0013")
    assert looks_sheet(report).rows[2] == ("3", "10 blocks", ".0346", "not made", "not made")


# ---- summaries


def test_a_mean_of_one_start_has_no_interval() -> None:
    """One start says nothing of the spread; no start gives nothing, nor does a value without a logarithm."""
    one = geometric_mean([5.0])
    assert one is not None and (one.n_starts, one.low95) == (1, None)
    assert geometric_mean([]) is None and geometric_mean([1.0, 0.0]) is None


def test_the_interval_is_that_of_t_on_logs() -> None:
    """Golden: 100, 110, 121 are evenly spaced logs: mean 110, interval 110 × e^(± 4.3027 × 0.09531 / √3)."""
    found = geometric_mean([100.0, 110.0, 121.0])
    assert found is not None and found.low95 is not None and found.high95 is not None
    assert (found.mean, found.low95, found.high95) == pytest.approx((110.0, 86.809, 139.386), rel=1e-4)


def test_bins_keep_the_extremes() -> None:
    """A short dip of the clock is in the band, however wide the bins; unknown values are left out."""
    watched = list(samples(1000.0, random.Random(1), is_throttled=False))
    watched[10] = replace(watched[10], sm_clock_mhz=210.0)
    found = bins(watched, "sm_clock_mhz", began_s=1000.0, width_s=60.0)
    assert found[0].low == 210.0 and found[0].at_s == 30.0
    assert bins([replace(watched[0], power_w=None)], "power_w", began_s=0.0, width_s=1.0) == []


# ---- Markdown


def test_markdown_escapes_what_a_user_wrote(report: ExperimentReport) -> None:
    """A bar, a line break or markup in a text neither ends a cell nor becomes markup."""
    plan = replace(report.plan, hypothesis="a | b\n# c <img src=x> `d`")
    text = markdown(replace(report, experiment=replace(report.experiment, plan=plan)))
    assert r"Hypothesis: a \| b \# c \<img src=x\> \`d\`" in text
    assert text.startswith("## Ship V2: output throughput")
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables[:13]} == {9}


# ---- JSON


def with_next(report: ExperimentReport, words: str) -> ExperimentReport:
    """The same with another next step."""
    return replace(report, looks=(*report.looks[:-1], replace(report.looks[-1], next_step=words)))


@pytest.mark.parametrize(
    ("words", "as_html", "as_markdown"),
    [
        (
            "`orch push --variant V<2>` makes it *live*",
            "<code>orch push --variant V&lt;2&gt;</code> makes it *live*",
            r"`orch push --variant V<2>` makes it \*live\*",
        ),
        ("an odd ` one <b>", "an odd ` one &lt;b&gt;", r"an odd \` one \<b\>"),
    ],
)
def test_commands_in_a_text_are_code(report: ExperimentReport, words: str, as_html: str, as_markdown: str) -> None:
    """What stands between backticks is code, around it nothing becomes markup; a single backtick stays one."""
    from orchestrator.report.page import code

    assert code(words) == as_html
    assert f"Next: {as_markdown}" in markdown(with_next(report, words)).splitlines()


@pytest.mark.slow
def test_the_page_shows_commands_as_code(report: ExperimentReport) -> None:
    """In its last line of advice."""
    from orchestrator.report.page import page

    assert "</span> run <code>orch push</code></p>" in page(with_next(report, "run `orch push`"))


def test_the_document_has_the_documented_keys(report: ExperimentReport) -> None:
    """``orch report --json`` prints exactly the keys of docs/json.md, and no NaN."""
    found = json.loads(json.dumps(document(report), allow_nan=False))
    assert disagreements(found, documented()["orch report"]) == []


def test_a_planned_experiment_has_a_document() -> None:
    """Without a start nothing is null that must not be, and nothing is invented."""
    found = document(unfinished_report())
    assert (found["analysis"], found["workload"], found["starts"], found["means"]) == (None, None, [], [])
    assert len(found["plan"]["starts"]) == 30


def test_an_analysis_comes_back_from_its_document(report: ExperimentReport) -> None:
    """The record keeps the JSON of an analysis; the report is made of the same analysis again."""
    whole = analysis(report.starts)
    arm = whole.arms[0]
    open_row = replace(arm.rows[0], estimate=None, verdict=None, why_no_verdict="below 4 pairs", p_adjusted=None)
    partial = replace(arm, rows=(open_row, *arm.rows[1:]))
    for one in (whole, replace(whole, look=None, arms=(partial,), e_values={"V1": None})):
        kept = json.loads(json.dumps(analysis_document(one)))
        assert analysis_from_document(kept) == one


# ---- out of the record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty record."""
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


LOOK = replace(records.analysis(), e_values={"V2": 21.5})


def recorded(store: Store, *, facts: Environment | None = None) -> int:
    """An experiment of one complete block, its second start repeated; with telemetry and an analysis."""
    experiment_id = store.create_experiment(records.plan())
    store.begin_experiment(experiment_id)
    first, second, *_ = store.experiment(experiment_id).starts
    trial_id = records.ran(store, first.id, "baseline", {1: 10.0, 64: 100.0})
    records.ran(store, second.id, "V2", {1: 11.0}, status="contaminated")
    again = store.repeat_start(second.id)
    records.ran(store, again, "V2", {1: 11.0, 64: 104.0})
    store.record_telemetry(store.load_ids(trial_id)[0], samples(1000.0, random.Random(1), is_throttled=False))
    store.record_analysis(experiment_id, LOOK, analysis_document(LOOK))
    return experiment_id


def test_a_report_is_gathered_from_the_record(store: Store) -> None:
    """Values, digests, facts, telemetry and the analysis come back, starts in the order they ran."""
    found = gather(store, recorded(store))
    assert [(one.arm, one.record.status, one.record.attempt) for one in found.starts] == [
        ("baseline", "ok", 0),
        ("V2", "set-aside", 0),
        ("V2", "ok", 1),
    ]
    base, _, again = found.starts
    assert base.loads[1].metrics["output_tokens_per_s"] == 100.0 and base.loads[1].metrics["itl_ms_p50"] is None
    assert again.loaded_digest == store_records.FASTER.digest and again.client == "loadgen 1"
    assert base.facts["driver_version"] == "550.54" and len(base.telemetry) == 270
    assert found.workload == store_records.WORKLOAD
    assert isinstance(found.analysis, Analysis) and found.analysis == LOOK


def test_the_newest_is_shown_when_none_is_named(store: Store) -> None:
    """Without a number the newest experiment is taken, also one that has only been planned."""
    recorded(store)
    newest = store.create_experiment(records.plan(hypothesis="newest"))
    found = gather(store)
    assert (found.experiment.id, found.starts, found.plan.hypothesis) == (newest, (), "newest")
    assert any("planned" in warning for warning in found.warnings)


def test_a_change_of_the_environment_is_a_warning(store: Store) -> None:
    """Another driver between two starts is told, with both values."""
    experiment_id = store.create_experiment(records.plan())
    store.begin_experiment(experiment_id)
    for start, driver in zip(store.experiment(experiment_id).starts, ("1.0", "2.0"), strict=False):
        facts = store_records.environment(driver_version=driver)
        file = records.FILES[start.planned.arm]
        trial_id = store_records.trial(store, file, start.planned.arm, facts=facts)
        store.begin_start(start.id, trial_id)
        store.end_start(start.id, "ok")
    assert "driver version changed between starts: 1.0 → 2.0" in gather(store).warnings


# ---- the command


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with an experiment on record."""
    with cli_project(tmp_path) as made:
        with Store.open(made.db) as opened:
            recorded(opened)
        yield made


def test_the_command_prints_and_writes(project: CliProject) -> None:
    """Text, Markdown and JSON go to standard output; where the page is goes to standard error."""
    assert "report" in COMMANDS
    assert "next: `orch report 1 --html report.html` makes a page of it" in project.done("report").out
    assert project.done("report", "1", "--md").out.startswith("## ")
    found: Any = project.done("report", "--json").document
    assert disagreements(found, documented()["orch report"]) == []


@pytest.mark.slow
def test_the_command_writes_a_page(project: CliProject) -> None:
    """The page is one whole file, and nothing of it is left when it cannot be written."""
    ran = project.done("report", "--html", "report.html", "--json")
    assert "wrote report.html" in ran.err and ran.document["experiment"] == 1
    text = (project.folder / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("</html>")
    assert "cannot write nowhere/report.html" in project.orch("report", "--html", "nowhere/report.html").error
    assert [path.name for path in project.folder.glob("*.part")] == []


def test_what_is_not_there_is_said(project: CliProject) -> None:
    """An unknown number, and two forms at once, end in one line."""
    assert "there is no experiment 9" in project.orch("report", "9").error
    assert project.orch("report", "--md", "--json").code == 2


# ---- the page


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda r: r, without_values, lambda r: replace(r, starts=r.starts[:1], looks=())])
def test_there_is_a_page_for_whatever_there_is(report: ExperimentReport, change: Any) -> None:
    """A page is made with everything, with nothing measured, and after the first start; its ids are unique."""
    from orchestrator.report.page import page

    text = page(change(report))
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert set(used) <= set(ids)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).lower().split()


@pytest.mark.slow
def test_numbers_in_charts_are_not_rounded(report: ExperimentReport) -> None:
    """Coordinates are shortened to keep the page small; the ratios written in a chart are whole."""
    from orchestrator.report.drawing import WIDE
    from orchestrator.report.forest import ratios

    texts = re.findall(r"<text[^>]*>([^<]*)</text>", ratios(report, WIDE))
    assert any("1.038" in text and "(1.025–1.052)" in text for text in texts)
