"""The examples are what a user copies: each loads, has its page, and the page's commands fit it."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from orchestrator import inventory
from orchestrator.cli import orch, run_command
from orchestrator.doctor import engine as doctor_engine
from orchestrator.records import Engine
from orchestrator.store import Store
from tests.test_docs import DOCS, ROOT, links, text_of, typed_commands

PAGES = {
    "sglang-deepseek-v4": "howto-sglang.md",
    "vllm": "howto-vllm.md",
    "docker": "howto-docker.md",
    "slurm": "howto-slurm.md",
}
"""The how-to page of each example."""
SEED_CONCURRENCIES = (1, 8, 48, 64, 80, 96)
CAPS = ("--cuda-graph-max-bs-decode", "--max-running-requests", "--max-num-seqs")
"""Options of engines that must be at least the highest concurrency."""

by_example = pytest.mark.parametrize("name", PAGES)

KERNEL = """\
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({{"BLOCK_T": 16}}, num_warps=4, num_stages=2),
        triton.Config({{"BLOCK_T": 32}}, num_warps=4, num_stages=2),
        triton.Config({{"BLOCK_T": 32}}, num_warps=8, num_stages=2),
    ],
    key=["topk"],
)
@triton.jit
def {kernel}(x_ptr, topk, BLOCK_T: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * BLOCK_T, topk)
"""
"""A stand-in with the list that the experiment of the SGLang page began with."""

LAUNCH = """\
import triton
import triton.language as tl


@triton.jit
def {kernel}(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.program_id(0) * BLOCK, n)


def _decode_grouped_att_m_fwd(x):
    num_stages = 2
    {kernel}[(1,)](x, 1, 16, num_warps=4, num_stages=num_stages)
"""
"""A stand-in whose launch passes both, as on the vLLM page."""


def example(name: str) -> Path:
    """The inventory of an example."""
    return ROOT / "examples" / name / "inventory.yaml"


def commands(name: str) -> list[tuple[str, dict[str, Any]]]:
    """What the page of an example shows as typed: the command's name and its parameters, defaults included."""
    return [_parsed(line) for line in typed_commands(DOCS / PAGES[name])]


def _parsed(line: str) -> tuple[str, dict[str, Any]]:
    context = orch.make_context("orch", shlex.split(line)[1:])
    names: list[str] = []
    command: click.Command = orch
    while isinstance(command, click.Group):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        names.append(name)
        command = found
        context = command.make_context(name, list(rest), parent=context)
    return " ".join(names), context.params


def made(typed: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[set[str], str, dict[str, Any]]]:
    """Each command, with the variants that the commands before it have made."""
    variants = {"baseline"}
    for name, parameters in typed:
        yield set(variants), name, parameters
        if name == "variant new":
            variants.add(parameters["name"])


# ---- each example


def test_every_example_has_a_page_and_every_page_an_example() -> None:
    """No folder of examples/ is without a how-to page, and no how-to page without its example."""
    assert {path.parent.name for path in (ROOT / "examples").glob("*/inventory.yaml")} == set(PAGES)
    assert {page.name for page in DOCS.glob("howto-*.md")} == set(PAGES.values())


@by_example
def test_example_and_page_name_each_other(name: str) -> None:
    """The page links to the inventory and is linked from the README; the inventory says where the page is."""
    page = DOCS / PAGES[name]
    assert example(name) in {goal for goal, _ in links(page)}
    assert page in {goal for goal, _ in links(ROOT / "README.md")}
    assert f"docs/{page.name}" in example(name).read_text(encoding="utf-8")
    assert f"examples/{name}/inventory.yaml" in text_of(page).replace("../", "")


@by_example
def test_an_example_loads_and_its_names_resolve(name: str) -> None:
    """It is a whole inventory: hosts, engines and workloads exist, each file has the module that its path says."""
    project = inventory.load(example(name))
    assert set(project.workloads) == {"quick", "decode"}
    for target in project.targets.values():
        assert target.host in project.hosts and target.engine in project.engines
        assert target.kernel is not None
        for file in target.files:
            assert file.module is not None
            inside = project.engines[target.engine].launcher.kind == "container"
            expected = file.module.rpartition(".")[2] if inside else file.module.replace(".", "/")
            assert file.path.endswith(f"/{expected}.py")


@by_example
def test_the_doctor_finds_nothing_in_an_example(name: str) -> None:
    """What can be told of an engine without its host is as it should be: address, port, metrics, flush."""
    project = inventory.load(example(name))
    for engine in project.engines.values():
        found = [doctor_engine.check_url(engine), doctor_engine.check_workloads(engine, project.workloads)]
        if engine.launcher.runs_command:
            found.append(doctor_engine.check_counters(engine) or found[0])
        assert [(one.status, one.text) for one in found if one.status != "ok"] == []


def option(engine: Engine, name: str) -> int | None:
    """The number that the engine's command gives an option."""
    return int(engine.command[engine.command.index(name) + 1]) if name in engine.command else None


@by_example
def test_the_commands_of_a_page_fit_its_example(name: str) -> None:
    """Each workload and variant is there when a command names it, and the engine can hold every load asked for."""
    project = inventory.load(example(name))
    (target,) = project.targets.values()
    engine = project.engines[target.engine]
    for variants, command, given in made(commands(name)):
        assert given.get("workload_name", "quick") in project.workloads, command
        named = {*given.get("variant_names", ()), given.get("variant_name", "baseline")}
        if command in ("variant edit", "variant show", "variant diff"):
            named.add(given["name"])
        assert named <= variants, command
        if asked := given.get("concurrencies"):
            assert given.get("primary") in (None, *asked)
            assert all(max(asked) <= cap for cap in (option(engine, cap) for cap in CAPS) if cap is not None)
    room = option(engine, "--max-model-len")
    lengths = [one.input_tokens + one.output_tokens for one in project.workloads.values()]
    assert room is None or max(lengths) <= room


@by_example
def test_the_queries_of_a_page_run(name: str, tmp_path: Path) -> None:
    """Each SQL that a page shows is understood by an empty results.db."""
    with Store.open(tmp_path / "results.db") as empty:
        for command, given in commands(name):
            assert command != "query" or empty.query(given["sql"])[0]


def test_the_container_of_the_page_runs_the_command_of_the_example() -> None:
    """Both ways of the docker page start one engine: the container's command is that of the inventory."""
    engine = inventory.load(example("docker")).engines["sglang-exec"]
    shown = " ".join(text_of("howto-docker.md").replace("\\\n", " ").split())
    assert shlex.join(engine.command) in shown
    assert all(f"{name}={value}" in shown for name, value in engine.env.items() if name != "HF_HUB_OFFLINE")


# ---- the variants that the pages make


class Copied:
    """An example as a user copies it, with this machine as its host and a stand-in for the kernel's file."""

    def __init__(self, name: str, folder: Path, source: str) -> None:
        self.name = name
        self.inventory = folder / "inventory.yaml"
        given = YAML(typ="safe").load(example(name).read_text(encoding="utf-8"))
        (target,) = given["targets"].values()
        self.live = folder / Path(target["files"][0]).name
        self.live.write_text(source.format(kernel=target["kernel"]))
        target["files"] = [str(self.live)]
        given["hosts"] = {"gpu-a": {"transport": "local", "scratch_dir": str(folder / "scratch")}}
        for engine in given["engines"].values():
            engine["python"] = sys.executable
        with self.inventory.open("w") as file:
            YAML().dump(given, file)

    def orch(self, line: str) -> str:
        """What a command of the page prints; it must succeed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run_command(["--inventory", str(self.inventory), *shlex.split(line)[1:]])
        assert code == 0, out.getvalue()
        return out.getvalue()

    def typed(self, *beginnings: str) -> list[str]:
        """Lines of the page that begin so."""
        return [line for line in typed_commands(DOCS / PAGES[self.name]) if line.startswith(beginnings)]


def shown_after(page: str, variant: str) -> str:
    """What a page says that a variant changes."""
    found = re.search(rf"^ *{variant} [0-9a-f]{{12}}: (.*)$", text_of(page), re.MULTILINE)
    assert found, f"{page} does not show {variant}"
    return found[1]


def test_the_variants_of_the_sglang_page(tmp_path: Path) -> None:
    """On the list that the experiment began with: V1 and V2 are isolated, and change what the page says."""
    copied = Copied("sglang-deepseek-v4", tmp_path, KERNEL)
    copied.orch("orch pull")
    for line in copied.typed("orch variant new"):
        assert shown_after("howto-sglang.md", line.split()[3]) in copied.orch(line)
    shown = {name: copied.orch(f"orch variant show {name}") for name in ("V1", "V2")}
    assert "isolated: num_warps 4 → 8, configs 3 → 1" in shown["V1"]
    assert "isolated: num_stages 2 → 3, configs 3 → 1" in shown["V2"]
    (planned,) = {given["concurrencies"] for name, given in commands(copied.name) if name == "run"}
    assert planned == SEED_CONCURRENCIES
    (dry_run,) = copied.typed("orch run V1 V2 --workload decode --concurrency 1,8,48,64,80,96 --primary 64 --dry-run")
    assert "30 starts in 10 blocks" in copied.orch(dry_run)


def test_the_variants_of_the_vllm_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without a list: the edits of its launch are variants, and each is named as a change of code."""
    copied = Copied("vllm", tmp_path, LAUNCH)
    copied.orch("orch pull")
    edits = {"W8": "s/num_warps=4/num_warps=8/", "S3": "s/num_stages = 2/num_stages = 3/"}
    for line in copied.typed("orch variant new"):
        copied.orch(line)
    for line in copied.typed("orch variant edit"):
        monkeypatch.setenv("EDITOR", f"sed -i.orig -e {shlex.quote(edits[line.split()[3]])}")
        assert "not isolated: it changes _decode_grouped_att_m_fwd (body)" in copied.orch(line)
    assert "num_warps=8" in copied.orch("orch variant diff W8")
    (dry_run,) = copied.typed("orch run W8 S3 --workload decode --concurrency 1,8,32,64 --primary 32 --dry-run")
    assert "30 starts in 10 blocks" in copied.orch(dry_run)
