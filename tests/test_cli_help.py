"""Help, examples and exit codes: what a newcomer reads first has to agree with the program."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import errors
from orchestrator.cli import COMMANDS, orch
from orchestrator.cli import run_command as run
from orchestrator.cli.exit_codes import MEANINGS, exit_code_of
from orchestrator.cli.reference import reference
from orchestrator.inventory import template
from tests.support.cli_project import CliProject, cli_project

ROOT = Path(__file__).parents[1]
HEAVY = (
    *("fabric", "paramiko", "scipy", "numpy", "matplotlib", "jinja2", "torch", "triton", "libcst", "rich"),
    *("sqlite_utils", "pydantic"),
)


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its words: ``variant new`` too."""
    context = click.Context(orch, info_name="orch")
    for name in COMMANDS:
        command = orch.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for child_name, child in command.commands.items():
                yield f"{name} {child_name}", child


ALL = dict(all_commands())


def examples(words: str) -> list[str]:
    """The example lines of a command's help."""
    found = re.search(r"Example:\n((?: {2,}\S.*\n?)+)", ALL[words].help or "")
    return [line.strip() for line in found.group(1).splitlines()] if found else []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    """The line of ``orch --help``, kept in a table so that help imports nothing, is the first line of the command."""
    module, text = COMMANDS[name]
    assert module == name
    assert (ALL[name].help or "").splitlines()[0] == text


@pytest.mark.parametrize("words", ALL)
def test_every_command_has_help_and_an_example(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` ends well, and shows an example of this very command."""
    assert run([*words.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: orch {words}")
    lines = examples(words)
    assert lines and all(f"    {line}\n" in shown for line in lines)
    assert all(line.startswith(f"orch {words}") for line in lines)


@pytest.mark.parametrize("words", ALL)
def test_every_example_is_understood(words: str) -> None:
    """The options of an example are options that the command has."""
    for line in examples(words):
        for part in line.split(" && "):
            typed = shlex.split(part)
            if typed[:1] != ["orch"] or isinstance(ALL[words], click.Group):
                continue
            ALL[words].make_context(words, typed[1 + len(words.split()) :])


@pytest.mark.parametrize("words", ALL)
def test_every_option_is_explained(words: str) -> None:
    """No option without a line of help."""
    unexplained = [p.name for p in ALL[words].params if isinstance(p, click.Option) and not p.help]
    assert not unexplained


@pytest.mark.parametrize("words", [words for words in ALL if words not in ("demo", "variant", "variant edit")])
def test_every_command_speaks_json(words: str) -> None:
    """Every command has ``--json`` but the two that a person watches."""
    assert "is_json" in [parameter.name for parameter in ALL[words].params]


def test_the_overview_names_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """``orch --help`` lists every command in the order of the job, an example and every exit code."""
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [m.group(1) for m in re.finditer(r"^  ([a-z]+)  ", shown.split("Commands:")[1], re.MULTILINE)][
        : len(COMMANDS)
    ] == list(COMMANDS)
    assert all(re.search(rf"^  {code} +{re.escape(text)[:40]}", shown, re.MULTILINE) for code, text in MEANINGS.items())
    assert "orch pull && orch variant new V2" in shown


def test_no_text_names_a_command_that_is_not_there() -> None:
    """Every `orch SOMETHING` in a message, the template or a docstring of the program is a command."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "orchestrator").rglob("*.py")]
    named = {word for text in [*texts, template()] for word in re.findall(r"`orch ([a-z]+)", text)}
    assert named - set(COMMANDS) == set()


def test_the_reference_is_made_of_the_commands() -> None:
    """docs/commands.md is what ``python -m orchestrator.cli.reference`` prints."""
    pinned = re.search(r"^click==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    if importlib.metadata.version("click") != pinned.group(1):
        pytest.skip(f"click lays help out otherwise than {pinned.group(1)} does")
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == reference()


# ---- start-up


@pytest.fixture
def used_project(tmp_path: Path) -> Iterator[CliProject]:
    """A project with a baseline, a variant and a kept inventory."""
    with cli_project(tmp_path) as project:
        project.with_variant("V1")
        yield project


def imported_by(folder: Path, *words: str) -> set[str]:
    """The packages that a fresh ``orch WORDS`` imports."""
    program = "import sys, json\nfrom orchestrator.cli import run_command as run\ncode = run(sys.argv[1:])\n"
    program += "sys.stderr.write(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True, cwd=folder
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(names)


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    """``orch --help`` is quick because it imports none of the large packages."""
    assert imported_by(tmp_path, "--help") & set(HEAVY) == set()


def test_offline_status_imports_nothing_heavy(used_project: CliProject) -> None:
    """``orch status --offline`` with a kept inventory imports none of the large packages."""
    assert imported_by(used_project.folder, "status", "--offline") & set(HEAVY) == set()


# ---- exit codes


EXIT_CODES = {
    "OrchError": 1,
    "UsageError": 2,
    "InventoryError": 2,
    "UnknownNameError": 2,
    "WorkspaceError": 1,
    "VariantError": 4,
    "HostKeyError": 1,
    "TargetError": 1,
    "LeaseHeldError": 1,
    "RevertError": 5,
    "EngineDiedError": 1,
    "ComparisonError": 1,
    "StoreTooNewError": 1,
    "InterruptedError_": 130,
}


@pytest.mark.parametrize(("name", "code"), EXIT_CODES.items())
def test_an_error_has_its_exit_code(name: str, code: int) -> None:
    """Only a wrong command line, a wrong variant, Ctrl-C and a host not restored have codes of their own."""
    assert exit_code_of(getattr(errors, name)("it happened")) == code
    assert code in MEANINGS


def test_the_module_runs_as_a_program() -> None:
    """``python -m orchestrator --version`` names program and version."""
    done = subprocess.run([sys.executable, "-m", "orchestrator", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"orch, version \d+\.\d+\S*\n", done.stdout)
