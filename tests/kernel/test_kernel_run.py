"""``python -m benchmarks.kernel_run``: its steps, what one that fails costs, and what is told in the end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from benchmarks import kernel_run  # noqa: E402
from kernel import check, microbench  # noqa: E402

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
LINES = ['triton.Config({"BLOCK_T": 64}, num_warps=8, num_stages=3),', 'triton.Config({"BLOCK_T": 16}, num_warps=4),']


def a_step(name: str, program: str, *, limit_s: float = 60.0, output: str | None = None) -> kernel_run.Step:
    """A step that runs some Python."""
    return kernel_run.Step(name=name, command=(sys.executable, "-c", program), limit_s=limit_s, output=output)


def a_document(times: dict[tuple[int, int, str], float | None], topks: tuple[int, ...] = (512,)) -> dict[str, Any]:
    """What kernel.microbench prints, as far as it is read."""
    rows = [
        {"n_heads": n_heads, "batch": batch, "name": name, "call_us": us}
        for (n_heads, batch, name), us in times.items()
    ]
    return {"topks": topks, "files": [{"name": "candidate.py"}, {"name": "sparse_mla_decode.py"}], "rows": rows}


@pytest.mark.slow
def test_a_step_that_fails_costs_the_others_nothing(tmp_path: Path) -> None:
    """One that fails, one that cannot begin and one that hangs, with a child: the next runs, and nothing is left."""
    child = f"import subprocess, sys; subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'ready')!r}, 'w')"
    steps = [
        a_step("bad one", "import sys; print('why'); sys.exit(3)"),
        kernel_run.Step(name="absent", command=(str(tmp_path / "nothing"),), limit_s=60),
        a_step("late", f"{child}; import time; time.sleep(600)", limit_s=6),
        a_step("good", "print('{}')", output="good.json"),
    ]
    ends = kernel_run.run(tmp_path, iter(steps), until=time.monotonic() + 300, has_gpu=True)
    assert [(name, end) for name, end, _ in ends] == [
        ("bad one", "exit 3, see bad-one.txt"),
        ("absent", f"could not begin: [Errno 2] No such file or directory: '{tmp_path / 'nothing'}'"),
        ("late", "ended after 6 s, see late.txt"),
        ("good", "ended well"),
    ]
    assert (tmp_path / "bad-one.txt").read_text().endswith("why\n")
    assert json.loads((tmp_path / "good.json").read_text()) == {}


def test_no_step_begins_without_time(tmp_path: Path) -> None:
    """When the time is up the rest is told, not begun."""
    [(_, end, _)] = kernel_run.run(tmp_path, iter([a_step("x", "1")]), until=time.monotonic(), has_gpu=True)
    assert end == "not begun: no time is left"


def test_steps_use_what_earlier_ones_found(tmp_path: Path) -> None:
    """The tuner's list and table go into a copy of the file, which all later steps take."""
    steps = kernel_run.steps_of(tmp_path, check.SHIPPED, 540)
    names, commands = [], {}
    for step in steps:
        names.append(step.name)
        commands[step.name] = step.command
        if step.name == "tune":
            table = {"16": [[8, 1], [None, 0]]}
            told = {"device": {"capability": [9, 0]}, "lines": LINES, "table": table}
            (tmp_path / "tune.json").write_text(json.dumps(told))
    assert names[:4] == ["check", "tune", "compare one pool", "compare two pools"]
    assert names[-1] == "compare others"
    copy = tmp_path / "candidate.py"
    assert str(copy) in commands["compare one pool"]
    module = check.import_source(copy, copy.read_bytes())
    assert [(config.kwargs["BLOCK_T"], config.num_warps) for config in module.CONFIGS] == [(64, 8), (16, 4)]
    assert [module.config_for((9, 0), 16, n_rows) for n_rows in (8, 9)] == [module.CONFIGS[1], module.CONFIGS[0]]
    assert module.config_for((9, 0), 64, 8) is None


def test_without_a_tuners_list_the_file_itself_is_compared(tmp_path: Path) -> None:
    """A tuner that came to nothing leaves the file as it is."""
    commands = {step.name: step.command for step in kernel_run.steps_of(tmp_path, check.SHIPPED, 540)}
    assert commands["compare one pool"].count(str(check.SHIPPED)) == 2
    assert list(tmp_path.iterdir()) == []


def test_torch_compile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files and the peers are compared, but the one that compiles anew at every shape."""
    [compare] = [step for step in kernel_run.steps_of(tmp_path, check.SHIPPED, 540) if step.name == "compare one pool"]
    names: list[str] = []

    def measure_shape(shape: Any, implementations: Any, **_: Any) -> list[Any]:
        names.extend(one.name for one in implementations)
        return []

    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, L2_cache_size=1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(microbench, "measure_shape", measure_shape)
    arguments = microbench._arguments([*compare.command[3:], "--batch", "96"])
    assert microbench.measure(arguments)["rows"] == []
    assert names[:4] == ["sparse_mla_decode.py #1", "sparse_mla_decode.py #2", "FlashMLA", "torch eager"]
    assert set(names[4:]) <= set(names[:4])


def test_rows_and_the_shape_to_profile(tmp_path: Path) -> None:
    """Each shape beside its goal; FlashMLA's earlier time stands in, marked, where this run has none."""
    one = {(16, 96, "candidate.py"): 30.0, (16, 96, "sparse_mla_decode.py"): 120.0, (16, 96, "FlashMLA"): 36.0}
    two = {(64, 64, "candidate.py"): 60.0, (64, 64, "FlashMLA"): None, (64, 32, "candidate.py"): None}
    pair = {(16, 96, "candidate.py"): 90.0}
    documents = {"16": a_document(one), "64": a_document(two), "two-pools": a_document(pair, (128, 512))}
    for name, document in documents.items():
        (tmp_path / f"compare-{name}.json").write_text(json.dumps(document))
    (tmp_path / "compare-others.json").write_text('{"rows": [')
    rows = kernel_run.rows_of(tmp_path)
    assert [(row["n_heads"], row["batch"], row["goal_us"]) for row in rows] == [
        (16, 96, pytest.approx(24.0)),
        (64, 32, None),
        (64, 64, pytest.approx(39.4 * 1.3)),
        (16, 96, None),
    ]
    assert kernel_run.furthest(rows) == (16, 96)
    text = kernel_run.summary(rows, [("check", "ended well", 3.0)])
    lines = [line.split() for line in text.splitlines()]
    assert ["512", "16", "96", "30.00", "120.00", "36.00", "24.00", "missed"] in lines
    assert ["512", "64", "64", "60.00", "–", "39.40*", "51.22", "missed"] in lines
    assert ["128", "+", "512", "16", "96", "90.00", "–", "–", "–", "unknown"] in lines
    assert kernel_run.furthest([]) == (16, 96)
    assert kernel_run.summary([], []).strip() == "nothing was timed"


def test_a_large_pool_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens further up in a pool: a kernel that reads them elsewhere is found."""
    monkeypatch.setattr(kernel_run, "LARGE_POOL_BYTES", 2**20)
    module = check.import_source(check.SHIPPED, check.SHIPPED.read_bytes())
    assert kernel_run.check_large_pool(module, module.CONFIGS[0], 1, "cpu")["problem"] is None
    decode = module.sparse_mla_decode

    def wrapping(q: Any, pool: Any, indices: Any, **named: Any) -> Any:
        return decode(q, pool, indices % 1024, **named)

    monkeypatch.setattr(module, "sparse_mla_decode", wrapping)
    found = kernel_run.check_large_pool(module, module.CONFIGS[0], 1, "cpu")
    assert found["problem"] == "other bits than with the same tokens in a small pool"


def test_without_a_gpu_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, one line, and no folder is made."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernel_run.main([str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_results_of_two_runs_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with something in it is refused."""
    (tmp_path / "tune-16.json").write_text("{}")
    with pytest.raises(SystemExit) as stopped:
        kernel_run.main([str(tmp_path), "--dry-run"])
    assert stopped.value.code == 2
    assert "is not empty: name another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_dry_run(tmp_path: Path) -> None:
    """The parts that need no GPU run, and the commands of the others are told."""
    pytest.importorskip("triton", reason="triton is not installed")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.kernel_run", str(out), "--file", str(check.SHIPPED), "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert "right, " in (out / "check.txt").read_text()
    document = json.loads((out / "tune.json").read_text())
    assert [row["problem"] for row in document["configs"]] == [None] * 5
    assert "would run: " in (out / "SUMMARY.txt").read_text()
    assert ("profile" in done.stdout) == any(map(shutil.which, ["ncu", *kernel_run.NCU_PLACES]))
