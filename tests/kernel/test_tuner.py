"""``python -m kernel.tuner``: what is tried, what is dropped, and which list is chosen; all but the GPU's own times."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernel import autotune_lists, check, config_trial, offline, peers, timing, tuner  # noqa: E402

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
SEED = check.SHIPPED.parent / "seed" / "sparse_mla_decode.py"
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=1, clock_rate=1_980_000
)
SASS = """
\t.headerflags\t@"EF_CUDA_SM90"
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/              @!P0 LDG.E R8, desc[UR4][R2.64] ;
        /*0030*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/                   LDL.LU.64 R8, [R1] ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/               @P2 BRA `(.L_x_2) ;
        /*0070*/                   EXIT ;
"""


def interval(median: float, low: float, high: float, n: int = 4) -> timing.Interval:
    """As ``interval_of`` gives it."""
    return timing.Interval(median=median, low=low, high=high, coverage=0.9, n=n)


def settings(block_t: int = 32, num_warps: int = 4, num_stages: int = 2) -> autotune_lists.Settings:
    """A config of the shipped kernel."""
    return autotune_lists.Settings((("BLOCK_T", block_t),), num_warps, num_stages)


def request(file: Path, **changed: Any) -> dict[str, Any]:
    """What a child is asked: one small check on the CPU."""
    asked = {"do": "check", "file": str(file), "settings": settings().as_json(), "heads": [16], "batches": [1]}
    return asked | {"topks": [64], "arch": 90, "device": "cpu", "seed": 1} | changed


# ---- choosing


def test_fewest_configs_within_two_percent() -> None:
    """A config that is nowhere the fastest is chosen where it alone is near enough everywhere."""
    times = {
        (16, 1): {"small": 10.0, "middle": 10.2, "large": 14.0},
        (16, 96): {"small": 40.0, "middle": 30.3, "large": 30.0},
    }
    assert autotune_lists.smallest_list(times) == ["middle"]
    assert autotune_lists.smallest_list(times, within_ratio=1.0) == ["large", "small"]


def test_of_lists_as_short_the_faster_is_chosen() -> None:
    """Two single configs are good enough: the one with less time in all is taken, not the first by name."""
    times = {1: {"a": 10.1, "b": 10.05}, 2: {"a": 20.1, "b": 20.0}}
    assert autotune_lists.smallest_list(times) == ["b"]


def test_greedy_would_take_three() -> None:
    """The list is the smallest, though the config that covers most is not in it."""
    covered = {"greedy": (1, 2, 3, 4), "left": (1, 2, 5), "right": (3, 4, 6)}
    times = {shape: {name: 1.0 if shape in those else 2.0 for name, those in covered.items()} for shape in range(1, 7)}
    assert autotune_lists.smallest_list(times) == ["left", "right"]


def test_a_config_without_a_time_covers_nothing() -> None:
    """A shape at which a config failed needs another; a shape without any times asks for nothing."""
    times = {1: {"a": 1.0, "b": 1.5}, 2: {"b": 3.0}, 3: {}}
    assert autotune_lists.smallest_list(times) == ["a", "b"]
    assert autotune_lists.smallest_list({}) == []


def test_borders_lie_between_the_batches() -> None:
    """At each batch the fastest of the list, whatever else was timed; from one to the next at their geometric mean."""
    times = {
        96: {"a": 40.0, "b": 33.0, "left out": 1.0},
        1: {"a": 9.0, "b": 13.0},
        8: {"a": 10.0, "b": 13.0},
        32: {"b": 16.0},
        64: {"left out": 1.0},
    }
    assert autotune_lists.borders_of(times, ["b", "a"]) == ((16, 1), (math.inf, 0))
    assert autotune_lists.borders_of({64: {"left out": 1.0}}, ["b", "a"]) == ()


def test_a_choice_is_written_into_a_file_and_changes_nothing_else() -> None:
    """List, table and its length are replaced, and the table is heeded. A file without a list is refused."""
    source = check.SHIPPED.read_text(encoding="utf-8")
    lines = [settings(64).line, settings(16).line]
    changed = autotune_lists.with_choice(source, lines, (9, 0), {16: ((8, 1), (math.inf, 0)), 64: ((math.inf, 1),)})
    before, after = source.splitlines(), changed.splitlines()
    assert set(after) - set(before) == {
        "        " + lines[0],
        "        " + lines[1],
        "        16: ((8, 1), (math.inf, 0)),",
        "        64: ((math.inf, 1),),",
        "N_CHOSEN_FROM = 2",
    }
    module = check.import_source(check.SHIPPED, changed.encode())
    assert [module.config_for((9, 0), 16, n_rows).kwargs["BLOCK_T"] for n_rows in (8, 9)] == [16, 64]
    emptied = check.import_source(check.SHIPPED, autotune_lists.with_choice(source, lines).encode())
    assert emptied.config_for((9, 0), 16, 8) is None
    with pytest.raises(ValueError, match=r"no @triton\.autotune"):
        autotune_lists.with_choice("x = 1\n", lines)


def test_fastest_within_noise() -> None:
    """Tied with the fastest are those whose intervals reach down into its own."""
    times = {"c": interval(12, 11.5, 12.5), "a": interval(10, 9.9, 10.2), "b": interval(10.3, 10.1, 10.5)}
    assert autotune_lists.fastest_within_noise(times) == autotune_lists.Choice("a", ("a", "b"))


# ---- what is tried


def test_grid_changes_every_entry_once() -> None:
    """The file's own list comes first; values of a grid are put into each entry, and no config is tried twice."""
    module = check.import_source(SEED, SEED.read_bytes())
    own = [autotune_lists.Settings.of(config) for config in module.CONFIGS]
    found = autotune_lists.candidates(module, {"BLOCK_T": (32, 64), "num_warps": (4,)})
    assert found == [*own, settings(64)]
    assert found[-1].line == 'triton.Config({"BLOCK_T": 64}, num_warps=4, num_stages=2),'
    assert autotune_lists.Settings.of(found[-1].config(module)) == found[-1]
    assert autotune_lists.Settings.from_json(json.loads(json.dumps(found[-1].as_json()))) == found[-1]


def test_candidates_of_a_file_are_tried_too() -> None:
    """CANDIDATES of a file stand behind its list."""
    own, other = settings(16), settings(128, num_warps=8)
    as_configs = [
        SimpleNamespace(kwargs=dict(one.kwargs), num_warps=one.num_warps, num_stages=2) for one in (own, other)
    ]
    module = SimpleNamespace(CONFIGS=as_configs[:1], CANDIDATES=as_configs)
    assert autotune_lists.candidates(module, {}) == [own, other]  # type: ignore[arg-type]


def test_unknown_name_of_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no config has is wrong use, and the names that there are are told."""
    assert tuner.main([str(SEED), "--set", "BLOCK_X=1", "--dry-run"]) == 2
    assert "BLOCK_X: no config has that name; they have BLOCK_T" in capsys.readouterr().err


# ---- one config in a process of its own


@pytest.mark.slow
def test_a_right_config_has_no_problem() -> None:
    """The shipped kernel on the CPU, in a child."""
    [(number, found)] = list(config_trial.in_children([request(SEED)], n_jobs=1, until=time.monotonic() + 120))
    assert (number, found["problem"]) == (0, None)
    assert found["check_s"] > 0


@pytest.mark.slow
def test_bad_configs_are_told_and_harm_nobody(tmp_path: Path) -> None:
    """A wrong one, one that ends its process and one that raises each have their reason; one comes too late."""
    source = SEED.read_text(encoding="utf-8")
    wrong = "def sparse_mla_decode(*args, **named):\n    named['out_B1HD'].zero_()\n    named['lse_B1H'].zero_()\n"
    files = {
        "wrong.py": source + wrong,
        "dead.py": source + "import os\nos._exit(9)\n",
        "raises.py": source + "def sparse_mla_decode(*args, **named):\n    raise RuntimeError('no such tile')\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    asked = [request(tmp_path / name) for name in files]
    found = dict(config_trial.in_children(asked, n_jobs=2, until=time.monotonic() + 120))
    assert "16 heads, 3 rows: out: relative error" in found[0]["problem"]
    assert found[1]["problem"].startswith("its process ended with 9")
    assert "RuntimeError: no such tile" in found[2]["problem"]
    late = dict(config_trial.in_children(asked[:1], n_jobs=1, until=time.monotonic()))
    assert late[0] == {"problem": "not reached in time", "check_s": None}


# ---- timing


def an_implementation(name: str, us: float, *, factor: float = 1.0, fails: bool = False) -> peers.Implementation:
    """Torch in its place, with a time of its own."""

    def prepare(calls: Sequence[Any]) -> list[peers.Call]:
        if fails:
            raise RuntimeError("out of resource: shared memory")
        return [call_of(one) for one in calls]

    def call_of(inputs: Any) -> peers.Call:
        def call() -> peers.Outputs:
            out, lse = peers.torch_decode(inputs.q_B1HD, inputs.pools, inputs.attention_sink_H)
            return out * factor, lse

        call.us = us  # type: ignore[attr-defined]
        return call

    return peers.Implementation(name=name, kind="file", prepare=prepare)


def recorded(graphs: list[float]) -> Callable[[Sequence[Any]], timing.Replay]:
    """Stands for the capture; notes the time of each thing that is captured."""

    def record(calls: Sequence[Any]) -> timing.Replay:
        graphs.append(calls[0].us)
        return lambda: calls[0].us

    return record


@pytest.mark.slow
def test_slow_ones_are_timed_briefly() -> None:
    """Those near the fastest get more graphs; the wrong and the failing have their reason instead of a time."""
    shape = timing.Shape(n_heads=16, n_rows=1, topks=(64,))
    those = [
        an_implementation("fast", 10.0),
        an_implementation("near", 11.0),
        an_implementation("slow", 30.0),
        an_implementation("wrong", 1.0, factor=1.1),
        an_implementation("failing", 1.0, fails=True),
    ]
    graphs: list[float] = []
    times, problems = tuner.time_shape(shape, those, l2_bytes=1, seed=3, device="cpu", record=recorded(graphs))
    assert {name: (found.median, found.n) for name, found in times.items()} == {
        "fast": (10.0, 4),
        "near": (11.0, 4),
        "slow": (30.0, 1),
    }
    assert problems["wrong"].startswith("wrong: relative error of out")
    assert problems["failing"] == "RuntimeError: out of resource: shared memory"
    assert sorted(graphs) == [10.0] * 5 + [11.0] * 5 + [30.0]


def test_report(tmp_path: Path) -> None:
    """After each shape the file holds the choice so far, and the lines to paste; people see what was not reached."""
    fast, slow = settings(32), settings(64)
    report = tuner.Report({"file": "x.py"})
    report.document["configs"].append({"name": "128 w4 s2", "problem": "does not fit"})
    report.add((16, 8), {fast.name: interval(10, 9, 11), slow.name: interval(12, 12, 12, n=1)}, [fast, slow])
    report.document["not_reached"] = [(64, 8)]
    report.write(tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["chosen"] == [fast.name]
    assert document["lines"] == ['triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),']
    assert [(one["config"], one["n"]) for one in document["times"]] == [(fast.name, 4), (slow.name, 1)]
    assert document["choices"] == [{"n_heads": 16, "batch": 8, "fastest": fast.name, "tied": [fast.name]}]
    text = report.as_text()
    assert "dropped  128 w4 s2: does not fit" in text
    assert "not reached in time: 64 heads, batch 8" in text
    assert '\n    triton.Config({"BLOCK_T": 32}, num_warps=4, num_stages=2),\n' in text
    assert text.endswith("    16 heads: 0 beyond")
    assert document["table"] == {"16": [[None, 0]]}


@pytest.mark.slow
def test_all_of_it_where_the_gpu_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two configs of the shipped file are right, one is not; each shape is timed, and the document tells all."""
    pytest.importorskip("triton", reason="triton is not installed")
    timed_shapes = []

    def answers(asked: Sequence[dict[str, Any]], **_: Any) -> list[tuple[int, dict[str, Any]]]:
        problems = [None, "16 heads, 3 rows: NaN", None]
        return [(number, {"problem": problems[number], "check_s": 1.0}) for number in range(len(asked))]

    def time_shape(shape: timing.Shape, those: Sequence[peers.Implementation], **how: Any) -> Any:
        timed_shapes.append((shape.n_heads, shape.n_rows, [one.name for one in those]))
        return real(shape, those, **how, device="cpu", record=lambda calls: lambda: 10.0)

    real = tuner.time_shape
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: H200)
    monkeypatch.setattr(tuner, "in_children", answers)
    monkeypatch.setattr(tuner, "time_shape", time_shape)
    out = tmp_path / "out.json"
    shapes = ["--heads", "16", "--batch", "2,1", "--topk", "64"]
    assert tuner.main([str(SEED), *shapes, "--json", str(out), "--seed", "5"]) == 0
    assert timed_shapes == [(16, 2, ["16 w4 s2", "32 w8 s2"]), (16, 1, ["16 w4 s2", "32 w8 s2"])]
    document = json.loads(out.read_text())
    assert (document["seed"], document["topks"], document["not_reached"]) == (5, [64], [])
    assert [one["problem"] for one in document["configs"]] == [None, "16 heads, 3 rows: NaN", None]
    assert document["chosen"] == ["16 w4 s2"]
    assert "dropped  32 w4 s2: 16 heads, 3 rows: NaN" in capsys.readouterr().out


def test_time_that_is_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun after --seconds: the shapes that were not reached are in the document, and the exit is 1."""
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: H200)
    out = tmp_path / "out.json"
    arguments = tuner._arguments([str(SEED), "--heads", "16", "--batch", "1,8", "--seconds", "1", "--json", str(out)])
    report = tuner.tune(arguments, started=time.monotonic() - 1)
    assert report.document["not_reached"] == [(16, 1), (16, 8)]
    assert {one["problem"] for one in report.document["configs"]} == {"not reached in time"}
    assert json.loads(out.read_text())["chosen"] == []


# ---- without a GPU


def test_without_a_gpu_it_refuses_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, one line on stderr, nothing on stdout."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tuner.main([str(SEED)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--dry-run" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "no such file: nowhere.py"),
        ([str(SEED), "--set", "BLOCK_T"], "is not of the form NAME=1,2"),
        ([str(SEED), "--set", "BLOCK_T=a"], "is not a list of different numbers"),
        ([str(SEED), "--json", "nowhere/x.json"], "no such folder: nowhere"),
    ],
)
def test_wrong_use(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and what is wrong."""
    with pytest.raises(SystemExit) as stopped:
        tuner.main(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run_compiles_what_would_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each config that the file's list and the grid give, with its shared memory and registers on sm_90."""
    pytest.importorskip("triton", reason="triton is not installed")
    out = tmp_path / "dry.json"
    arguments = [str(SEED), "--dry-run", "--heads", "16", "--set", "BLOCK_T=16", "--jobs", "2", "--json", str(out)]
    assert tuner.main(arguments) == 0
    document = json.loads(out.read_text())
    assert [row["name"] for row in document["configs"]] == ["16 w4 s2", "32 w4 s2", "32 w8 s2", "16 w8 s2"]
    for row in document["configs"]:
        [made] = row["compiled"]
        assert row["problem"] is None
        assert made["name"] == "sparse_mla_decode_kernel"
        assert made["shared_bytes"] > 16 * 512 * 2
        assert made["tensor_cores"]
    assert "shared KiB" in capsys.readouterr().out


def test_a_launch_as_the_compiler_sees_it() -> None:
    """Types, constants and divisibility are those that the shipped launcher passes: nothing is written down twice."""
    pytest.importorskip("triton", reason="triton is not installed")
    module = check.import_source(SEED, SEED.read_bytes())
    if not hasattr(module.sparse_mla_decode_kernel.fn, "params"):
        pytest.skip("Triton interprets in this process")
    launches = offline.launches_of(module, module.CONFIGS[0], arch=90, n_heads=16, n_rows=96, topks=(512,))
    assert [launch.kernel.__name__ for launch in launches] == ["sparse_mla_decode_kernel", "sparse_mla_merge_kernel"]
    job = launches[0].job
    assert (job["constants"]["BLOCK_T"], job["constants"]["HAS_LENGTH"]) == (16, False)
    assert (job["types"]["q_ptr"], job["types"]["indices_ptr"], job["types"]["qk_scale"]) == ("*bf16", "*i32", "fp32")
    assert {"q_ptr", "topk", "n_heads"} <= set(job["divisible_by_16"])
    assert launches[0].options.items() >= {"num_warps": 4, "num_stages": 2}.items()


def test_instructions_of_the_innermost_loop() -> None:
    """Counted between a backward branch and its label, of the smallest loop that has a tensor instruction."""
    assert offline.loop_counts(SASS) == {"all": 4, "LDG.32": 1, "HGMMA": 1, "LDL.64": 1}
    assert offline.loop_counts(SASS.replace("HGMMA", "FFMA")) is None
    assert offline.loop_counts(None) is None
