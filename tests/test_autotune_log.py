"""What Triton's autotuner chose, out of the engine's log: into the record, ``orch bench`` and the report."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.experiment.reporting import _warnings
from orchestrator.host import autotune_log
from orchestrator.records import AutotuneWinner
from orchestrator.report import tables
from orchestrator.report.document import document
from orchestrator.store import Store
from tests.support import report_fixture
from tests.support.cli_project import CliProject

OLD = "Triton autotuning for function fast finished after 1.02s; best config selected: BLOCK_T: 16, num_warps: 4;\n"
NEW = """\
Triton autotuning for function fast,
with key as (64, 'torch.bfloat16'),
finished after 1.02s,
best config selected: BLOCK_T: 16, num_warps: 4, num_ctas: 1, num_stages: 2, maxnreg: None;
"""
KEY = "(64, 'torch.bfloat16')"
CONFIG = "BLOCK_T: 16, num_warps: 4, num_ctas: 1, num_stages: 2, maxnreg: None"

TUNE = """
from triton.runtime.autotuner import Autotuner, Config

def fast(n):
    pass

class Kernel:
    fn = staticmethod(fast)

    def run(self, *args, **kwargs):
        self.ran = kwargs["num_warps"]

kernel = Kernel()
configs = [Config({"BLOCK_T": 16}, num_warps=8, num_stages=2), Config({"BLOCK_T": 32}, num_warps=4, num_stages=2)]

def timed(call, quantiles):
    call()
    return [kernel.ran] * 3  # four warps win

tuner = Autotuner(kernel, ["n"], configs, ["n"], None, None, do_bench=timed)
for n in (1, 64, 64):
    tuner.run(n)
"""

START = f'''
import os, runpy, sys
if os.environ["TRITON_PRINT_AUTOTUNING"] == "1":
    print("""{NEW}""")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
'''


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where a test writes an engine's log."""
    return tmp_path / "engine.log"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OLD, [("fast", None, "BLOCK_T: 16, num_warps: 4", 1)]),
        (NEW, [("fast", KEY, CONFIG, 1)]),
        ("INFO 12:00 loading\n" + NEW + "INFO 12:01 ready\n" + NEW, [("fast", KEY, CONFIG, 2)]),
        ("".join(f"(Worker pid=7) {line}\n" for line in NEW.splitlines()), [("fast", KEY, CONFIG, 1)]),
        ("(Worker pid=7) " + NEW, [("fast", KEY, CONFIG, 1)]),
    ],
    ids=["old", "new", "twice", "prefixed", "prefixed once"],
)
def test_both_ways_in_which_triton_prints(log: Path, text: str, found: list[tuple[object, ...]]) -> None:
    """One line or four, alone or among others, with or without the process's name in front."""
    log.write_text(text)
    assert [tuple(one.values()) for one in autotune_log.winners(str(log)) or []] == found


def test_processes_that_write_side_by_side(log: Path) -> None:
    """What stands in front tells their lines apart."""
    other = NEW.replace("function fast", "function slow").replace("num_warps: 4", "num_warps: 8")
    lines = zip(NEW.splitlines(), other.splitlines(), strict=True)
    log.write_text("".join(f"(Worker_TP0) {one}\n(Worker_TP1) {two}\n" for one, two in lines))
    found = {one["kernel"]: one["config"] for one in autotune_log.winners(str(log)) or []}
    assert found == {"fast": CONFIG, "slow": CONFIG.replace("num_warps: 4", "num_warps: 8")}


@pytest.mark.parametrize(
    "text", ["", "INFO ready\n", "best config selected: x;\n", "Triton autotuning for function f,\n"]
)
def test_a_log_that_tells_nothing(log: Path, text: str) -> None:
    """Not known is None, also where a choice is cut, or there is no log."""
    log.write_text(text)
    assert autotune_log.winners(str(log)) is None
    assert autotune_log.winners(str(log) + ".not-there") is None


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_tritons_own_words(log: Path) -> None:
    """The installed Triton's autotuner, whose measuring is replaced, prints what is read, once for each key."""
    with log.open("wb") as stream:
        env = {**os.environ, "TRITON_PRINT_AUTOTUNING": "1"}
        subprocess.run([sys.executable, "-c", TUNE], env=env, stdout=stream, check=True, timeout=120)
    found = autotune_log.winners(str(log)) or []
    assert [(one["kernel"], one["key"], one["n"]) for one in found] == [("fast", "(1,)", 1), ("fast", "(64,)", 1)]
    assert all(one["config"].startswith("BLOCK_T: 32, num_warps: 4,") for one in found)


# ---- into the record


@pytest.fixture
def project(tmp_path: Path) -> Iterator[CliProject]:
    """A project whose engine's command prints as Triton does, when it is asked to."""
    made = CliProject(tmp_path)
    made.make()
    start = made.site / "start.py"
    start.write_text(START)
    before = f'command: ["{sys.executable}", '
    text = made.inventory.read_text()
    assert before in text
    made.inventory.write_text(text.replace(before, f'{before}"{start}", '))
    yield made
    made.close()


@pytest.mark.integration
@pytest.mark.slow
def test_bench_shows_and_records_it(project: CliProject) -> None:
    """Of every start, shown without what is left to its default; the variable is no fact that keeps arms apart."""
    ran = project.pulled().done("bench", "--concurrency", "1")
    assert f"autotuned: fast {KEY}: BLOCK_T: 16, num_warps: 4, num_stages: 2\n" in ran.out
    found = project.done("bench", "--concurrency", "1", "--json").document["autotune_winners"]
    assert found == [{"kernel": "fast", "key": KEY, "config": CONFIG, "n": 1}]
    with Store.open(project.db) as store:
        assert store.autotune_winners(2) == (AutotuneWinner("fast", KEY, CONFIG, 1),)
    (row,) = project.query("select facts from environments")
    assert "TRITON_PRINT_AUTOTUNING" not in row["facts"]


# ---- in the report


def test_the_report_says_which_config_ran_in_which_arm() -> None:
    """A row for each arm, kernel and key; where an arm's starts ran several, each with its number of starts."""
    whole = report_fixture.experiment_report()
    first, other = (AutotuneWinner("fast", KEY, config, 4) for config in (CONFIG, "BLOCK_T: 32, num_warps: 8"))
    arm = whole.starts[0].arm
    starts = tuple(replace(one, winners=(first,) if one.arm == arm else None) for one in whole.starts)
    n = sum(1 for one in starts if one.arm == arm)
    rows = dict(tables.provenance_sheet(replace(whole, starts=starts)).rows)
    assert {name: text for name, text in rows.items() if name.startswith("autotuned")} == {
        f"autotuned in {arm}: fast {KEY}": "BLOCK_T: 16, num_warps: 4, num_stages: 2"
    }
    starts = (replace(starts[0], winners=(other,)), *starts[1:])
    rows = dict(tables.provenance_sheet(replace(whole, starts=starts)).rows)
    assert rows[f"autotuned in {arm}: fast {KEY}"] == (
        f"BLOCK_T: 32, num_warps: 8 (1 start) → BLOCK_T: 16, num_warps: 4, num_stages: 2 ({n - 1} starts)"
    )
    shown = document(replace(whole, starts=starts))["starts"]
    assert shown[0]["autotune_winners"] == [
        {"kernel": "fast", "key": KEY, "config": "BLOCK_T: 32, num_warps: 8", "n": 4}
    ]
    assert {one["autotune_winners"] is None for one in shown if one["arm"] != arm} == {True}


@pytest.mark.parametrize(("configs", "is_told"), [((CONFIG, CONFIG), False), ((CONFIG, "BLOCK_T: 32"), True)])
def test_another_config_of_the_same_arm_is_a_warning(configs: tuple[str, str], is_told: bool) -> None:
    """The same bytes were then another kernel from start to start; between arms it is what is to be found out."""
    whole = report_fixture.experiment_report()
    arms = [one.arm for one in whole.starts]
    wanted = {arms.index(arms[0]): configs[0], len(arms) - 1 - arms[::-1].index(arms[0]): configs[1]}
    starts = tuple(
        replace(one, winners=(AutotuneWinner("fast", None, wanted[i], 1),) if i in wanted else None)
        for i, one in enumerate(whole.starts)
    )
    told = [text for text in _warnings(whole.experiment, whole.looks, starts) if "autotuner" in text]
    words = ["BLOCK_T: 16, num_warps: 4, num_stages: 2", "BLOCK_T: 32"]
    assert told == (
        [f"the autotuner chose other configs of fast between starts of {arms[0]}: {' → '.join(words)}"]
        if is_told
        else []
    )
