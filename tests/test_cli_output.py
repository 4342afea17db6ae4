"""What commands print: tables, colour, JSON, and which of the two streams it goes to."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.check import compiling, environments
from orchestrator.cli import orch
from orchestrator.cli.check import conclude
from orchestrator.cli.output import Output
from orchestrator.cli.progress import ProgressLine, describe
from orchestrator.cli.table import Table, draw, fold, text_width
from orchestrator.metrics import METRICS
from orchestrator.records import Progress
from orchestrator.verdicts import RemoteFinding, RemoteVerdict
from tests.support.check_project import SEED_CHECK, STAND_IN, check_project
from tests.support.cli_project import CliProject, Ran, cli_project

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(text: str) -> str:
    """Without colour and without the lines that were rewritten in place."""
    return COLOUR.sub("", text)


def packed(text: str) -> str:
    """Without any white space: what is left when a text was folded."""
    return "".join(text.split())


# ---- tables


def drawn(table: Table, width: int | None = None) -> list[str]:
    """The lines of a table as text."""
    return [line.text for line in draw(table, width)]


def test_a_table_in_a_pipe_is_aligned_also_with_wide_characters() -> None:
    """Every column begins at the same place, whether a cell holds wide, combining or ordinary characters."""
    rows = [("V1", "汉字 wide", 1.5), ("V2", "e\u0301galite\u0301", None), ("V3", "plain", 12345)]
    lines = drawn(Table(("name", "message", "value"), rows, right=frozenset({"value"})))
    assert lines == [
        "name  message    value",
        "----  ---------  -----",
        "V1    汉字 wide    1.5",
        "V2    e\u0301galite\u0301        –",
        "V3    plain      12345",
    ]
    assert {text_width(line) for line in lines} == {22}


def test_a_table_without_rows_has_its_header() -> None:
    """No rows is an answer too."""
    assert drawn(Table(("a", "b"), []), 80) == ["a  b", "-  -"]


def test_control_characters_cannot_break_a_row() -> None:
    """A line break, a tab or an escape sequence inside a value is shown as such and stays in its cell."""
    lines = drawn(Table(("message", "n"), [("one\ntwo\t\x1b[31mred", 1)]))
    assert lines[2] == r"one\ntwo\t\x1b[31mred  1"


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=60), st.integers(2, 30))
def test_folding_loses_no_character(text: str, width: int) -> None:
    """Folded lines fit, and hold every character of the text in order, white space aside."""
    lines = fold(text, width)
    assert packed("".join(lines)) == packed(text)
    assert all(text_width(line) <= width for line in lines)


@given(
    st.lists(st.lists(st.text("abc_ 漢=.", max_size=40), min_size=3, max_size=3), max_size=4),
    st.integers(10, 120),
)
def test_a_table_on_a_terminal_fits_or_is_told_row_by_row(rows: list[list[str]], width: int) -> None:
    """A drawn table is never wider than the terminal, and every cell is in it, whatever the width."""
    columns = ("variant", "output_tokens_per_s [tok/s]", "message")
    lines = drawn(Table(columns, rows), width)
    if lines[0].startswith(("row ", "no rows")):
        values = [line[line.index("  ", 2) :] for line in lines if line.startswith("  ")]
        assert [packed(value) for value in values] == [packed(cell) for row in rows for cell in row]
    else:
        assert all(text_width(line) <= width for line in lines)
        texts = [*columns, *(cell for row in rows for cell in row)]
        assert sorted(packed("".join(lines)).replace("-", "")) == sorted(packed("".join(texts)))


def test_numbers_are_not_folded() -> None:
    """In a narrow terminal headers and texts are folded, a number stays whole and at the right."""
    table = Table(
        ("name", "output_tokens_per_s [tok/s]"),
        [("a text of some length", "1,234,567.8")],
        frozenset({"output_tokens_per_s [tok/s]"}),
    )
    assert drawn(table, 30) == [
        "                output_tokens_",
        "name             per_s [tok/s]",
        "------------  ----------------",
        "a text of          1,234,567.8",
        "some length",
    ]


# ---- progress


def test_a_step_in_words() -> None:
    """Stage, text, what of it, how many, and the times that are known."""
    step = Progress("load", "concurrency 8", 3, 8, 12.4, 17.2, "warm-up")
    assert describe(step) == "load      concurrency 8   warm-up 3/8   12 s, 17 s left"
    assert describe(step, with_times=False) == "load      concurrency 8   warm-up 3/8"
    assert describe(Progress("stop", "stopping sglang")) == "stop      stopping sglang"


def test_progress_in_a_pipe_is_a_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe each step is told once, on standard error, without anything that rewrites a line."""
    with ProgressLine() as show:
        for done in range(5):
            show(Progress("load", "concurrency 8", done, 8))
        show(Progress("stop", "stopping sglang"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["load      concurrency 8   0/8", "stop      stopping sglang"]


def test_fleeting_progress_in_a_pipe_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where events tell what was done, steps are shown only as a sign of life, every ten seconds."""
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with ProgressLine() as show:
        show(Progress("connect", "connecting"))
        show.flee()
        for stage in ("push", "start", "prove", "load", "stop") * 3:
            now_s += 4.0
            show(Progress(stage, "working"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "connect   connecting",
        *(f"{stage:<9} working" for stage in ("prove", "push", "load", "start", "stop")),
    ]


def test_fleeting_progress_on_a_terminal_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live line is cleared when a step is done; one that failed stays, to be seen."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stream)
    with pytest.raises(KeyError), ProgressLine() as show:
        show.flee()
        show(Progress("push", "pushing V2"))
        show(Progress("start", "starting"))
        show.finish(is_good=True)
        stream.write("counted\n")
        show(Progress("prove", "proving"))
        raise KeyError
    counted, failed, rest = (line.rpartition("\r\x1b[2K")[2] for line in stream.getvalue().split("\n"))
    assert (counted, rest) == ("counted", "")
    assert "✗" in failed and "prove     proving" in failed


# ---- a project with everything on record

COMMANDS_WITH_JSON = (
    *(
        "orch init",
        "orch doctor",
        "orch pull",
        "orch status",
        "orch variant new",
        "orch variant show",
        "orch variant list",
    ),
    *("orch variant diff", "orch variant drop", "orch diff", "orch push", "orch bench", "orch compare"),
    *("orch history", "orch revert", "orch drift", "orch query"),
)
CHECKS_WITH_JSON = ("orch check", "orch check --sweep", "orch check --remote", "orch variant new --from-sweep")
"""Documents with keys of their own; these need a kernel that can be checked, so another project."""
EXPERIMENTS_WITH_JSON = ("orch run", "orch run --dry-run", "orch attach", "orch resume", "orch plan")
"""Held to docs/json.md by tests/integration/test_run_*.py, which have experiments."""
REPORTS_WITH_JSON = ("orch report",)
"""Documents of a whole experiment: test_report.py compares their keys."""

BY_CLIENTS_WITH_JSON = ("orch bench --client",)
"""test_bench_clients.py compares its keys, with several clients."""

SELFCHECK = "orch selfcheck"
"""test_selfcheck.py compares its keys."""


class Story:
    """One run through the whole job: what each command printed, with --json and on a terminal."""

    def __init__(self, project: CliProject) -> None:
        self.project = project
        self.ran: dict[str, Ran] = {}
        self.at_terminal: dict[str, str] = {}

    def json(self, *words: str, name: str = "") -> None:
        """Runs a command with --json, which must succeed."""
        self.ran[name or f"orch {words[0]}"] = self.project.done(*words, "--json")

    def watch(self, *words: str) -> None:
        """Runs a command on a terminal of 80 columns, which must succeed."""
        ran = self.project.at_terminal(*words)
        assert ran.code == 0, ran.out
        self.at_terminal[words[0]] = ran.out

    def tell(self) -> None:
        """Every command once."""
        self.json("init", "elsewhere")
        self.ran["orch doctor"] = self.project.orch("doctor", "--json")
        self.json("pull")
        self.json("variant", "new", "V2", "--set", "num_stages=3", "-m", "deeper pipeline", name="orch variant new")
        self.json("variant", "new", "V1", "--set", "BLOCK_T=32", name="V1")
        for verb in ("show", "diff"):
            self.json("variant", verb, "V2", name=f"orch variant {verb}")
        self.watch("variant", "list")
        self.json("variant", "list", name="orch variant list")
        self.json("variant", "drop", "V1", name="orch variant drop")
        self.json("bench", "--concurrency", "1,2")
        self.json("push", "--variant", "V2")
        self.json("diff")
        self.watch("bench", "--concurrency", "1,2", "--keep-running")
        self.json("compare", "V2")
        self.watch("compare", "V2")
        self.json("history")
        self.json("status")
        self.watch("status")
        self.json("status", "--offline", name="offline")
        with self.project.live.open("a") as file:
            file.write("# a colleague was here\n")
        self.json("drift")
        self.watch("drift")
        self.json("revert", "--force")
        self.json("query", "select variant, concurrency, output_tokens_per_s from results")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """The whole job on a real engine, once for this file."""
    with cli_project(tmp_path_factory.mktemp("story")) as project:
        told = Story(project)
        told.tell()
        yield told


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ran]]:
    """What the checks print with --json; the compile program is a stand-in, and no Triton is needed."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "compiler").mkdir()
    (folder / "compiler" / "__init__.py").touch()
    (folder / "compiler" / "__main__.py").write_text(STAND_IN, encoding="utf-8")
    judging = [sys.executable, "-c", "print('{\"passed\": true}')", "{file}"]
    settings = {**SEED_CHECK, "reference": judging}
    with pytest.MonkeyPatch.context() as patch, check_project(folder, check=settings) as project:
        patch.setattr(compiling, "program_folder", lambda: folder / "compiler")
        patch.setattr(environments, "own_version", lambda: "3.9.0")
        ran = {"orch check --sweep": project.done("check", "--sweep", "num_stages=3,4", "--json")}
        ran["orch variant new --from-sweep"] = project.done("variant", "new", "--from-sweep", "1", "--json")
        ran["orch check"] = project.done("check", "--variant", "s3", "--json")
        ran["whole"] = project.orch("check", "--variant", "s3", "--remote", "--json")
        patch.setattr(environments, "own_version", lambda: None)
        ran["orch check --remote"] = project.orch("check", "--variant", "s3", "--remote", "--json")
        yield ran


def documented() -> dict[str, Any]:
    """The example of each command in docs/json.md."""
    text = (Path(__file__).parents[1] / "docs" / "json.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (orch [a-z -]+)$.*?^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return {name: json.loads(example) for name, example in sections}


BY_NAME = (
    "settings",
    "unreadable",
    "unreadable_variants",
    "metrics",
    "constants",
    "swept",
    "stages_buffers",
    "report",
    "facts",
    "by_client",
)
"""Objects whose keys are names of the user, of metrics.py or of another program."""


AS_IN_REPORT = "as in orch report"


def event_disagreements(lines: list[dict[str, Any]]) -> list[str]:
    """Where the lines of ``orch run --json`` have other keys than the documented example of their event."""
    examples = {example["event"]: example for example in documented()["orch run"]}
    report = documented()["orch report"]
    found = []
    for line in lines:
        example = examples[line["event"]]
        filled = {key: report[key] if value == AS_IN_REPORT else value for key, value in example.items()}
        found += disagreements(line, filled, line["event"])
    return found


def disagreements(real: Any, example: Any, where: str = "document") -> list[str]:
    """Where a document has other keys or kinds of values than the documented example."""
    if real is None or example is None:
        return []
    if isinstance(example, dict) and isinstance(real, dict):
        if where.rpartition(".")[2] in BY_NAME:
            return []
        found = [f"{where}: {key}" for key in sorted(real.keys() ^ example.keys())]
        shared = real.keys() & example.keys()
        return found + [one for key in shared for one in disagreements(real[key], example[key], f"{where}.{key}")]
    if isinstance(example, list) and isinstance(real, list):
        return [one for item in real if example for one in disagreements(item, example[0], f"{where}[]")]
    kinds = (int, float) if type(example) is float else type(example)
    return [] if isinstance(real, kinds) else [f"{where}: {real!r} is no {type(example).__name__}"]


@pytest.mark.integration
@pytest.mark.parametrize("name", COMMANDS_WITH_JSON)
def test_json_has_the_documented_keys(story: Story, name: str) -> None:
    """--json prints one document, alone on standard output, with exactly the keys of docs/json.md."""
    document = story.ran[name].document
    assert disagreements(document, documented()[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS_WITH_JSON)
def test_the_json_of_a_check_has_the_documented_keys(checked: dict[str, Ran], name: str) -> None:
    """The documents of a check, a grid, a trial on the host and variants of a grid have the keys of docs/json.md."""
    assert disagreements(checked[name].document, documented()[name]) == []


@pytest.mark.slow
def test_a_remote_check_has_the_document_of_both(checked: dict[str, Ran]) -> None:
    """With --remote the document of the offline check is whole, and has one key more."""
    whole = checked["whole"].document
    assert disagreements(whole.pop("remote"), documented()["orch check --remote"]["remote"]) == []
    assert disagreements(whole, documented()["orch check"]) == []
    assert (whole["configs"][0]["num_stages"], len(whole["baseline_configs"])) == (3, 1)


@pytest.mark.integration
def test_the_documents_are_filled(story: Story) -> None:
    """The documents hold what was done: digests that belong together, values, the order of the starts."""
    documents = {name: ran.document for name, ran in story.ran.items()}
    v2, base = documents["orch variant new"]["digest"], documents["orch pull"]["digest"]
    assert documents["orch push"]["digest"] == documents["orch status"]["now"]["digest"] == v2
    assert documents["orch push"]["previous_digest"] == base == documents["orch revert"]["digest"]
    assert documents["orch status"]["now"]["engine"]["deployed_digest"] == v2
    assert (documents["orch bench"]["arm"], documents["orch bench"]["loaded_digest"]) == ("baseline", base)
    assert [load["concurrency_cap"] for load in documents["orch bench"]["loads"]] == [1, 2]
    assert set(documents["orch bench"]["loads"][0]["metrics"]) == set(METRICS)
    assert documents["orch compare"]["order"] == ["A", "B"]
    assert all(row["ratio"] > 0 for row in documents["orch compare"]["rows"])
    assert documents["orch drift"]["now"]["diff"][-1] == "+# a colleague was here"
    assert documents["orch drift"]["on_record"] and documents["orch revert"]["kept_foreign"]
    assert documents["offline"]["now"] is None and documents["offline"]["n_trials"] == 2
    assert len(documents["orch query"]) == 4


def test_every_json_command_is_documented() -> None:
    """docs/json.md has a section for every command with --json, and for no other."""
    context = click.Context(orch, info_name="orch")
    speaking = set()
    for name in orch.list_commands(context):  # type: ignore[attr-defined]
        command = orch.get_command(context, name)  # type: ignore[attr-defined]
        children = command.commands.items() if isinstance(command, click.Group) else [("", command)]
        for child_name, child in children:
            if any(parameter.name == "is_json" for parameter in child.params):
                speaking.add(f"orch {name} {child_name}".strip())
    assert {name.partition(" --")[0] for name in documented()} == speaking
    assert set(documented()) == {
        *(*COMMANDS_WITH_JSON, *CHECKS_WITH_JSON, *EXPERIMENTS_WITH_JSON, *REPORTS_WITH_JSON),
        *BY_CLIENTS_WITH_JSON,
        SELFCHECK,
    }


@pytest.mark.integration
def test_progress_goes_to_standard_error(story: Story) -> None:
    """With --json the steps are still told, on standard error only."""
    ran = story.ran["orch bench"]
    assert ran.out.startswith("{\n") and ran.out.endswith("\n}\n")
    assert re.search(r"^prove +proving what was loaded$", ran.err, re.MULTILINE)
    assert re.search(r"^load +concurrency 2", ran.err, re.MULTILINE)


@pytest.mark.integration
def test_a_terminal_of_80_columns_loses_no_text(story: Story) -> None:
    """Tables of status, compare, variant list, drift and bench fit into 80 columns with every header and value."""
    wanted = {
        "variant": ["V1", "V2", "isolated: num_stages 2 → 3, configs 3 → 1", "deeper", "pipeline", "message"],
        "bench": ["output_tokens_per_s", "[tok/s]", "ttft_ms_", "tpot_ms_", "e2el_ms_", "p50 [ms]", "p99 [ms]", "4/4"],
        "compare": ["output_tokens_per_s [tok/s], higher is better", "concurrency", "1+1", "verdict: none"],
        "status": ["V2", "num_stages=3", "deeper pipeline", "deployed by orch", "2 engine starts"],
        "drift": ["# a colleague was here", "on record: ", "flash_mla.py", "source"],
    }
    for name, texts in wanted.items():
        shown = plain(story.at_terminal[name])
        assert [text for text in texts if text not in shown] == [], shown
        lines = shown.splitlines()
        (rule,) = (i for i, line in enumerate(lines) if re.fullmatch(r"-+(  -+)+", line))
        table = lines[rule - 1 : rule + 3]
        assert all(text_width(line) <= 80 for line in table), shown


@pytest.mark.integration
def test_a_terminal_gets_colour_and_finished_steps(story: Story) -> None:
    """On a terminal results are coloured, and each step ends with a tick and its duration."""
    shown = story.at_terminal["bench"]
    assert f"{ESCAPE}[32mloaded: " in shown
    assert re.search(r"\x1b\[32m✓\x1b\[0m load      concurrency 2   4/4   \d+\.\d s\n", shown)
    assert f"{ESCAPE}[1m" in story.at_terminal["compare"]


@pytest.mark.parametrize(
    ("passed", "found", "last_line"),
    [
        (True, True, "V2 can be measured"),
        (False, False, "V2 is wrong on gpu-a"),
        (False, None, "V2 was not judged on gpu-a"),
    ],
)
def test_the_last_line_of_a_check_counts_what_the_host_found(
    passed: bool, found: bool | None, last_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is called good that was found wrong on the host, or that nobody judged there."""
    findings = (RemoteFinding("import", True, "imported"), RemoteFinding("reference", found, ""))
    remote = RemoteVerdict(
        target="flash_mla",
        variant="V2",
        digest="sha256:0",
        host="gpu-a",
        command=None,
        passed=passed,
        findings=findings,
        report=None,
        checked_at="2026-03-01T12:00:00Z",
    )
    conclude(Output(is_json=False), "V2", None, remote)
    assert capsys.readouterr().out == f"{last_line}\n"


# ---- colour


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A new project."""
    with cli_project(tmp_path) as made:
        yield made


def test_a_pipe_gets_no_escape_codes(project: CliProject) -> None:
    """In a pipe neither stream has a single escape code, in success and in failure."""
    project.with_variant("V2")
    project.live.write_text("# other bytes\n")
    for words in (["status"], ["variant", "list"], ["drift"], ["push", "--variant", "V2"], ["push", "--variant", "V3"]):
        ran = project.orch(*words)
        assert ESCAPE not in ran.out + ran.err


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colour(project: CliProject, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """NO_COLOR and a dumb terminal get the text alone, the marks of finished steps included."""
    monkeypatch.setenv(name, value)
    shown = project.at_terminal("pull").out + project.at_terminal("push", "--variant", "V9").out
    assert "baseline of flash_mla is" in shown and "has no variant 'V9'" in shown
    assert not COLOUR.search(shown)
    assert (ESCAPE in shown) == (name == "NO_COLOR"), "only a terminal that understands it has its line rewritten"


def test_an_empty_no_color_means_nothing(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR counts when it is not empty, as no-color.org says."""
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "xterm")
    assert f"{ESCAPE}[31m" in project.at_terminal("push", "--variant", "V9").out


def test_a_failed_step_is_marked_as_failed(project: CliProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step under which an error came ends with a cross, not with a tick."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    project.live.unlink()
    shown = plain(project.at_terminal("pull").out)
    assert "✓ connect" in shown and "✗ pull" in shown


def test_json_at_a_terminal_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A document is never coloured nor folded."""
    out = Output(is_json=True)
    out.line("text", style="red")
    out.table(Table(("a",), [("b",)]))
    out.document({"name": "漢" * 100, "value": None})
    assert json.loads(capsys.readouterr().out) == {"name": "漢" * 100, "value": None}


# ---- query


def test_query_prints_a_table(project: CliProject) -> None:
    """Numbers are aligned to the right, content is only measured, NULL is a dash."""
    project.pulled()
    ran = project.done("query", "select 1.5 as x, 'a' as t, x'00ff' as b, null as n union all select 22, 'bb', x'', 3")
    assert ran.out.splitlines() == [
        "  x  t   b          n",
        "---  --  ---------  -",
        "1.5  a   <2 bytes>  –",
        " 22  bb  <0 bytes>  3",
    ]


VALUES = "select 1e999 as up, -1e999 as down, 1e999 - 1e999 as nan, x'00ff' as b, cast('é' as blob) as t, 7 as up"


def test_query_prints_json(project: CliProject) -> None:
    """What JSON does not have is text; a second column of one name is kept under another."""
    (row,) = project.pulled().query(VALUES)
    assert row == {"up": "inf", "down": "-inf", "nan": None, "b": "00ff", "t": "é", "up_2": 7}


def test_query_prints_csv(project: CliProject) -> None:
    """CSV has a header, quotes what needs it, and holds content as the JSON does."""
    ran = project.pulled().done("query", f"{VALUES}, 'a,b \"c\"' as q", "--csv")
    assert ran.out == 'up,down,nan,b,t,up_2,q\ninf,-inf,,00ff,é,7,"a,b ""c"""\n'


def test_a_wide_query_is_told_row_by_row_on_a_terminal(project: CliProject) -> None:
    """More columns than a terminal can show in one row are listed below each other, none is lost."""
    columns = ", ".join(f"{i} as column_{i}" for i in range(30))
    shown = project.pulled().at_terminal("query", f"select {columns}").out
    lines = plain(shown).splitlines()
    assert lines[0] == "row 1 of 1"
    assert [line.split() for line in lines[1:]] == [[f"column_{i}", str(i)] for i in range(30)]


def test_a_closed_pipe_is_no_traceback(project: CliProject) -> None:
    """``orch query … | head -1`` ends quietly, as a table, as CSV and as JSON."""
    project.pulled()
    sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) select i from n"
    orch_words = f"{sys.executable} -m orchestrator query"
    for option in ("", "--csv", "--json"):
        pipe = f"{orch_words} {sql!r} {option} | head -1"
        done = subprocess.run(pipe, shell=True, capture_output=True, text=True, cwd=project.folder)
        assert (done.returncode, done.stderr) == (0, ""), option
        assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("option", ["", "--csv", "--json"])
def test_a_reader_that_is_gone_is_no_traceback(project: CliProject, option: str) -> None:
    """Where nobody reads any more, a small result that waits in a buffer ends quietly too."""
    project.pulled()
    read_end, write_end = os.pipe()
    os.close(read_end)
    with project.process("query", "select 1 as one", *option.split(), stdout=write_end) as process:
        os.close(write_end)
        _, err = process.communicate()
    assert (process.returncode, err) == (1, "")


def test_a_terminal_without_unicode_gets_escapes(project: CliProject) -> None:
    """Where the output cannot carry an arrow or a dash, it is written as an escape; the command does not fail."""
    project.with_variant("V2")
    with project.process("variant", "list", env={"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert r"num_stages 2 \u2192 3" in out


def test_json_of_a_failure_is_empty(project: CliProject) -> None:
    """A command that fails prints no document, so that nobody takes half of one for an answer."""
    for words in (["push", "--variant", "V9"], ["query", "selekt 1"], ["compare", "V9"], ["variant", "show", "V9"]):
        ran = project.orch(*words, "--json")
        assert ran.code != 0 and ran.out == "" and ran.error


def test_a_terminal_tells_its_own_width(project: CliProject) -> None:
    """A real process at a real terminal asks that terminal for its width."""
    project.with_variant("V2", "num_stages=3", "num_warps=8", "BLOCK_T=32")
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    program = (
        "import fcntl, os, pty, struct, sys, termios\n"
        "pid, fd = pty.fork()\n"
        "if not pid:\n"
        "    os.execv(sys.executable, [sys.executable, '-m', 'orchestrator', 'variant', 'list'])\n"
        "fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 60, 0, 0))\n"
        "try:\n"
        "    while piece := os.read(fd, 4096): sys.stdout.buffer.write(piece)\n"
        "except OSError: pass\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=project.folder, env=environment
    )
    assert done.returncode == 0
    lines = plain(done.stdout).splitlines()
    assert max(map(len, lines)) <= 60 and len(lines) > 3
