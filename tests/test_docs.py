"""The documents must be true: commands parse, SQL and snippets run, examples load, links resolve, tables agree.

That docs/commands.md is the program's own is held by test_cli_help.py, and docs/json.md by test_cli_output.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from ruamel.yaml import YAML

from orchestrator import inventory
from orchestrator.check.arguments import signature
from orchestrator.check.gpus import limits_of
from orchestrator.check.lift import lift
from orchestrator.cli import orch
from orchestrator.errors import OrchError
from orchestrator.inventory.shapes import TargetEntry
from orchestrator.metrics import METRICS
from orchestrator.records import CheckSettings, Engine, Host, Launcher, SlurmSettings, SourceFile, Workload, short
from orchestrator.store import Store
from orchestrator.verdicts import SentenceKind
from tests.support import store_records

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
BY_HAND = [page for page in PAGES if page.name != "commands.md"]
"""The examples of docs/commands.md are tested with the commands' help."""

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
by_hand = pytest.mark.parametrize("page", BY_HAND, ids=lambda page: page.name)


def text_of(page: Path | str) -> str:
    """A page of the documents; a bare name lies in docs/."""
    return (DOCS / page if isinstance(page, str) else page).read_text(encoding="utf-8")


def fenced(text: str, language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of its level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, heads and rulers left out."""
    lines = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in lines if not set(cells[0]) <= set("-: ")]


def code_words(cell: str) -> list[str]:
    """The words in backticks of a cell."""
    return re.findall(r"`([^`]+)`", cell)


# ---- the pages as a whole


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get on GitHub."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The relative links of a page: where to, and the anchor."""
    for address in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" not in address and not address.startswith("mailto:"):
            path, _, anchor = address.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@by_page
def test_every_relative_link_resolves(page: Path) -> None:
    """Each relative link names a file of the checkout, and an anchor of that page where it has one."""
    for goal, anchor in links(page):
        assert goal.exists(), f"{page.name} links to {goal}"
        assert not anchor or anchor in anchors(goal), f"{page.name} links to {goal.name}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    """No page of docs/ is orphaned."""
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            todo += [goal for goal, _ in links(page) if goal.suffix == ".md" and goal.exists()]
    assert [page.name for page in DOCS.glob("*.md") if page.resolve() not in reached] == []


FORBIDDEN = {
    "a path of the machine that it was written on": r"(?<!\w)/(?:tmp|root|Users|workspace|builds?)/",
    "a package index": r"https?://\S*(?:pypi|simple/|artifactory|download\.pytorch)",
    "a place-holder": r"@@\w|\b(?:TODO|FIXME|XXX)\b",
}


@by_page
@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_of_the_makers_machine_is_left(page: Path, what: str) -> None:
    """No page holds a path of a build machine, an index's address, or a place-holder that nobody filled."""
    assert re.findall(rf".*(?:{FORBIDDEN[what]}).*", text_of(page)) == []


# ---- the commands

TYPED = re.compile(r"^(?:\$ )?(orch(?: .*)?)$")


def code_lines(page: Path) -> list[str]:
    """Every line of a page's code blocks, fenced and indented."""
    lines, is_fenced = [], False
    for line in text_of(page).splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            lines.append(line.strip())
    return lines


def typed_commands(page: Path) -> Iterator[str]:
    """What a code block shows as typed: a line, or a part of one after ``&&``, that begins with ``orch``."""
    for line in code_lines(page):
        shown = re.split(r"\s+#", line)[0]
        for part in shown.split("&&"):
            found = TYPED.match(part.strip())
            if found:
                yield found[1]


def mentioned_commands(page: Path) -> Iterator[str]:
    """What stands in backticks and begins with ``orch``, also in messages that were pasted."""
    for found in re.findall(r"`(orch [^`\n]+)`", text_of(page)):
        words = found.split(" / ")
        yield words[0]
        yield from (f"{words[0].rpartition(' ')[0]} {other}" for other in words[1:])


def parse(command_line: str) -> None:
    """Parses a command line with the real commands, and runs nothing.

    Raises:
        click.UsageError: it is not understood.
    """
    words = shlex.split(command_line)[1:]
    context = orch.make_context("orch", words, resilient_parsing="--help" in words)
    command: click.Command = orch
    rest = [*getattr(context, "_protected_args", []), *context.args]
    while isinstance(command, click.Group) and rest:
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name or "", list(rest), parent=context, resilient_parsing="--help" in rest)
        rest = [*getattr(context, "_protected_args", []), *context.args] if isinstance(command, click.Group) else []


def with_values(mentioned: str) -> str:
    """A mention whose ``…`` stands for a value or for more of the same."""
    text = mentioned.replace("--set …", "--set num_stages=3").replace("--variant …", "--variant V1")
    return text.replace(" …", "")


def complaint(command_line: str) -> str | None:
    """Why a command line is not understood; None when it is. A mention may leave out what is required."""
    try:
        parse(command_line)
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return "incomplete"
    except (click.UsageError, OrchError) as exc:
        return str(exc)
    return None


@by_hand
def test_every_command_shown_is_understood(page: Path) -> None:
    """Each line that a code block shows as typed is parsed by the real commands: they exist, and so do the options."""
    refused = {line: why for line in typed_commands(page) if (why := complaint(with_values(line)))}
    assert refused == {}


@by_hand
def test_every_command_mentioned_exists(page: Path) -> None:
    """Each ``orch …`` in backticks names a command and options that there are."""
    refused = {line: why for line in mentioned_commands(page) if (why := complaint(with_values(line)))}
    assert {line: why for line, why in refused.items() if why != "incomplete"} == {}


def test_commands_are_found_at_all() -> None:
    """The two tests above have something to look at, and would notice an unknown command or option."""
    assert len(list(typed_commands(DOCS / "tutorial.md"))) >= 8
    assert len(list(mentioned_commands(DOCS / "tutorial.md"))) >= 8
    assert complaint("orch pull --frobnicate") and complaint("orch frobnicate") and complaint("orch variant make V1")
    assert complaint("orch bench") == "incomplete"
    assert complaint("orch pull && orch") is not None


# ---- the inventory


def test_the_inventory_of_the_checkout_is_the_template(tmp_path: Path) -> None:
    """inventory.yaml at the root is what ``orch init`` writes, and it loads."""
    text = (ROOT / "inventory.yaml").read_text(encoding="utf-8")
    assert text == inventory.template()
    (tmp_path / "inventory.yaml").write_text(text, encoding="utf-8")
    assert inventory.load(tmp_path / "inventory.yaml").targets


@pytest.mark.parametrize("number", range(len(fenced(text_of("inventory.md"), "yaml"))))
def test_every_inventory_example_loads(number: int, tmp_path: Path) -> None:
    """Each YAML block of docs/inventory.md is a whole inventory."""
    path = tmp_path / "inventory.yaml"
    path.write_text(fenced(text_of("inventory.md"), "yaml")[number], encoding="utf-8")
    assert inventory.load(path).hosts


SHAPES: dict[str, Any] = {
    "hosts": Host,
    "slurm": SlurmSettings,
    "engines": Engine,
    "launcher": Launcher,
    "targets": TargetEntry,
    "check": CheckSettings,
    "workloads": Workload,
}


def default_words(field: dataclasses.Field[Any]) -> str:
    """A field's default as the tables write it."""
    if field.default_factory is not dataclasses.MISSING or field.default == ():
        return "empty"
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None:
        return "none"
    text = json.dumps(field.default) if isinstance(field.default, bool) else str(field.default)
    return f"`{text.removesuffix('.0')}`"


@pytest.mark.parametrize("name", SHAPES)
def test_the_tables_of_the_inventory_have_every_key(name: str) -> None:
    """docs/inventory.md has a row for every key, and no other, each with the default that the program has."""
    fields = [f for f in dataclasses.fields(SHAPES[name]) if f.name != "name" or name == "launcher"]
    wanted = {f"`{f.name}`": default_words(f) for f in fields}
    text = section(text_of("inventory.md"), name).partition("| written |")[0]
    table = [row for row in rows(text) if row[0].startswith("`")]
    assert {row[0]: row[2] for row in table} == wanted
    assert all(len(row) == 4 and row[1] and row[3] for row in table)


# ---- the database


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A record with one start of one load, its raw result as loadgen writes it."""
    raw = {"spec": {"concurrency": 8}, "requests": [{}, {}], "cpu_wait_s": 0.01}
    measured = dataclasses.replace(store_records.load(), raw=json.dumps(raw).encode())
    with Store.open(tmp_path / "results.db") as opened:
        opened.record_snapshot(store_records.snapshot())
        opened.set_baseline(store_records.snapshot())
        store_records.trial(opened, loads=(measured,))
        yield opened


SQL = fenced(text_of("database.md"), "sql") + fenced(text_of("check.md"), "sql")


@pytest.mark.parametrize("number", range(len(SQL)))
def test_every_sql_example_runs(number: int, tmp_path: Path) -> None:
    """Each SQL block of docs/database.md and docs/check.md is understood by an empty results.db."""
    with Store.open(tmp_path / "results.db") as empty:
        columns, found = empty.query(SQL[number])
    assert columns and not found


@pytest.mark.parametrize("number", range(len(fenced(text_of("database.md"), "python"))))
def test_every_snippet_runs(number: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python block of docs/database.md reads a results.db as it says."""
    code = fenced(text_of("database.md"), "python")[number]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(re.sub(r"sha256:[0-9a-f]+%", f"sha256:{short(store_records.BASE.digest)}%", code), "", "exec"), names)
    assert "gaps_ms" not in names or list(names["gaps_ms"]) == list(store_records.request().itl_ms)
    assert "result" not in names or len(names["result"]["requests"]) == 2
    assert "content" not in names or (tmp_path / "restored.py").read_bytes() == store_records.BASE.content
    assert names.keys() & {"gaps_ms", "result", "content"}


@pytest.mark.parametrize("view", ["results", "drift", "experiment_results"])
def test_the_views_are_described_column_by_column(view: str, store: Store) -> None:
    """docs/database.md explains every column of a view, in its order, and no other."""
    columns, _ = store.query(f"select * from {view}")
    table = rows(section(text_of("database.md"), f"View `{view}`"))
    described = [word for row in table for word in code_words(row[0])]
    assert described == [*columns]


def test_every_table_is_described(store: Store) -> None:
    """docs/database.md lists the tables that there are."""
    _, found = store.query("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
    table = rows(section(text_of("database.md"), "Tables"))
    assert {word for row in table for word in code_words(row[0])} == {name for (name,) in found}


# ---- the check


@pytest.mark.parametrize(
    ("page", "file", "given_by_config"),
    [
        ("check.md", "kernel/seed/sparse_mla_decode.py", ["BLOCK_T"]),
        ("kernel.md", "kernel/sparse_mla_decode.py", ["BLOCK_H", "BLOCK_T", "PER_SM"]),
    ],
)
def test_the_examples_of_arguments_fit_the_kernels(page: str, file: str, given_by_config: list[str]) -> None:
    """What docs/check.md tells orch of the seed's kernel, docs/kernel.md of the shipped one, is all that they lack."""
    (example,) = fenced(text_of(page), "yaml")
    told = YAML(typ="safe").load(example)["check"]
    path = ROOT / file
    lifted = lift([SourceFile.of(path.name, path.read_bytes())], "sparse_mla_decode_kernel", modules={})
    found = signature(lifted, told["arguments"], given_by_config=given_by_config, target="sparse_mla")
    assert [*found.types] == [parameter.name for parameter in lifted.parameters]
    assert set(told) <= {field.name for field in dataclasses.fields(CheckSettings)}


def test_every_kind_of_sentence_is_explained() -> None:
    """docs/check.md says of every kind of sentence when it appears and what to do."""
    table = [row for row in rows(section(text_of("check.md"), "What the sentences mean")) if row[0].startswith("`")]
    assert {row[0].strip("`") for row in table} == set(get_args(SentenceKind))
    assert all(len(row) == 4 and all(row) for row in table)


def test_the_limits_of_architectures_are_those_of_the_program() -> None:
    """docs/check.md has every architecture of ``gpus.py`` with its limits."""
    described = {}
    for names, *cells in rows(section(text_of("check.md"), "Architectures and limits"))[1:]:
        numbers = tuple(int(cell.replace(",", "")) for cell in cells[:4])
        described.update({int(name.removeprefix("sm_")): numbers for name in code_words(names)})
    limits = {arch: limits_of(arch) for arch in range(50, 200)}
    known = {
        arch: (one.shared_limit_bytes, one.shared_per_sm_bytes, one.warps_per_sm, one.blocks_per_sm)
        for arch, one in limits.items()
        if one is not None
    }
    assert described == known


# ---- what is measured, and where things are


def test_every_metric_is_defined() -> None:
    """docs/measuring.md defines every quantity of ``metrics.py``; the statistics follow the table."""
    quantities = {re.sub(r"_(mean|p50|p90|p99)$", "", name) for name in METRICS}
    table = rows(section(text_of("measuring.md"), "The load"))
    assert {word for row in table for word in code_words(row[0])} == quantities


def test_the_map_names_what_is_there() -> None:
    """Each file and folder in backticks in CONTRIBUTING.md exists, from the root or below orchestrator/ or tests/."""
    named = set(re.findall(r"`([\w./-]+(?:\.(?:py|sh|md|cfg)|/))`", text_of(ROOT / "CONTRIBUTING.md")))
    homes = (ROOT, ROOT / "orchestrator", ROOT / "tests")
    assert len(named) > 20
    assert [name for name in sorted(named) if not any((home / name).exists() for home in homes)] == []


def test_benchmarks_and_make_targets_exist() -> None:
    """What CONTRIBUTING.md and the README tell to run is there."""
    text = text_of(ROOT / "CONTRIBUTING.md") + text_of(ROOT / "README.md")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for module in set(re.findall(r"benchmarks\.(\w+)", text)):
        assert (ROOT / "benchmarks" / f"{module}.py").is_file()
    for goal in set(re.findall(r"(?:^    |`)make (\w+)", text, re.MULTILINE)):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE), goal
