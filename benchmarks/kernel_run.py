"""Check, tune, compare and profile a candidate for the shipped kernel, in one command of a few minutes on one GPU.

    python -m benchmarks.kernel_run FOLDER [--file FILE] [--seconds N] [--dry-run]

Steps in this order, each a process of its own with a limit; one that fails or is late costs the others nothing:
    check        every config of the list on every case and its share of 60 random ones, many processes at once; both
                 CUDA graphs; a pool of more than 2^32 bytes
    tune 16      kernel.tuner for 16 heads; its list goes into FOLDER/candidate.py, a copy of the file
    compare 16   kernel.microbench of the copy, the shipped kernel and the peers, one pool
    tune 64, compare 64     the same for 64 heads; the list is now that of both
    compare two pools       128 + 512 tokens, 16 and 64 heads
    profile      ncu of the copy, at the shape that is furthest from its goal; left out where there is no ncu

Everything is written to FOLDER: what each step said (STEP.txt), its JSON, the plots, and SUMMARY.txt: the candidate, the
shipped kernel and FlashMLA at every shape, beside the goal. Nothing else is touched but a triton cache, in FOLDER too.

``--dry-run`` needs no GPU: the file's torch path on every case, what the tuner would try, and the other commands.

Exit codes: 0 every step ended well; 1 one did not, or there is no NVIDIA GPU; 2 wrong use.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
CANDIDATE = ROOT / "benchmarks" / "kernel_ideas" / "flattened.py"
BATCHES = (96, 1, 64, 8, 128, 32, 48)
"""What the goals are about first: time may run out."""
N_RANDOM = 60
FLASH_MLA_US = {
    (16, 1): 11.6, (16, 8): 13.3, (16, 64): 39.2, (16, 96): 36.6,
    (64, 1): 11.6, (64, 8): 13.4, (64, 64): 39.4, (64, 96): 36.7,
}  # fmt: skip
"""FlashMLA 1.0.0 on an H200, measured 2026-11-29: for runs without it."""
NCU_SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats")
NCU_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")
LARGE_POOL_BYTES = 5 * 2**30


@dataclass(frozen=True, kw_only=True)
class Step:
    """One process.

    Attributes:
        name: its words; the file names are made of them.
        command: what runs.
        limit_s: when it is ended.
        output: a file of FOLDER that its stdout goes to, where that is JSON.
        without_gpu: what a dry run runs instead, or None.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    output: str | None = None
    without_gpu: tuple[str, ...] | None = None


def factor_of(n_heads: int, batch: int) -> float:
    """The goal: at most so many times FlashMLA's time."""
    if n_heads <= 16:
        return 1 / 1.5 if batch in (64, 96) else 1.0
    return 1.3 if batch >= 48 else 1.0


def steps_of(folder: Path, file: Path, seconds: int) -> Iterator[Step]:
    """In order. What a step needs of an earlier one is read when it is asked for."""
    python = (sys.executable, "-m")
    mine, batches = (*python, "benchmarks.kernel_run"), ",".join(map(str, BATCHES))
    share = seconds / 540
    yield Step(
        name="check",
        command=(*mine, str(folder), "--file", str(file), "--only-check"),
        limit_s=100 * share,
        without_gpu=(*python, "kernel.check", str(file), "--device", "cpu"),
    )
    candidate = file
    chosen: list[str] = []
    for n_heads in (16, 64):
        found = folder / f"tune-{n_heads}.json"
        tuner = (*python, "kernel.tuner", str(file), "--heads", str(n_heads), "--json", str(found))
        yield Step(
            name=f"tune {n_heads}",
            command=(*tuner, "--batch", batches, "--seconds", str(int(95 * share))),
            limit_s=115 * share,
            without_gpu=(*tuner, "--dry-run", "--seconds", "600"),
        )
        chosen += [line for line in _lines_of(found) if line not in chosen]
        candidate = _with_list(file, chosen, folder / "candidate.py") if chosen else file
        yield Step(
            name=f"compare {n_heads}",
            command=_compare(candidate, folder, f"compare-{n_heads}", ("--heads", str(n_heads), "--batch", batches)),
            limit_s=90 * share,
            output=f"compare-{n_heads}.json",
        )
    yield Step(
        name="compare two pools",
        command=_compare(
            candidate, folder, "compare-two-pools", ("--heads", "16,64", "--batch", "96,1,64", "--second")
        ),
        limit_s=70 * share,
        output="compare-two-pools.json",
    )
    ncu = shutil.which("ncu") or next((place for place in NCU_PLACES if Path(place).exists()), None)
    if ncu is not None:
        n_heads, batch = furthest(rows_of(folder, candidate.name))
        sections = [word for section in NCU_SECTIONS for word in ("--section", section)]
        one = (*mine, str(folder), "--file", str(candidate), "--only-call", f"{n_heads},{batch}")
        yield Step(
            name="profile",
            command=(ncu, "--profile-from-start", "off", "--page", "details", *sections, *one),
            limit_s=60 * share,
        )


def _compare(candidate: Path, folder: Path, name: str, shapes: tuple[str, ...]) -> tuple[str, ...]:
    shipped = str(ROOT / "kernel" / "sparse_mla_decode.py")
    files = (str(candidate), shipped, "--peers", "--skip-compile")
    plot = str(folder / f"{name}.svg")
    return (sys.executable, "-m", "kernel.microbench", *files, *shapes, "--json", "--plot", plot)


def _lines_of(found: Path) -> list[str]:
    """What the tuner chose; nothing where it has not come so far."""
    try:
        lines: list[str] = json.loads(found.read_text(encoding="utf-8")).get("lines", [])
    except (OSError, ValueError):
        return []
    return lines


def _with_list(file: Path, lines: Sequence[str], copy: Path) -> Path:
    copy.write_text(with_list(file.read_text(encoding="utf-8"), lines), encoding="utf-8")
    return copy


def with_list(source: str, lines: Sequence[str]) -> str:
    """A kernel file's text with another autotune list.

    Raises:
        ValueError: it has no ``@triton.autotune(configs=[…])``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "triton.autotune":
            for keyword in node.keywords:
                if keyword.arg == "configs" and isinstance(keyword.value, ast.List):
                    return _replaced(source, keyword.value, "[\n" + "".join(f"        {x}\n" for x in lines) + "    ]")
    raise ValueError("no @triton.autotune(configs=[...]) in it")


def _replaced(source: str, node: ast.expr, text: str) -> str:
    rows = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None and node.end_col_offset is not None
    before = b"".join(rows[: node.lineno - 1]) + rows[node.lineno - 1][: node.col_offset]
    after = rows[node.end_lineno - 1][node.end_col_offset :] + b"".join(rows[node.end_lineno :])
    return (before + text.encode() + after).decode()


# ---- what came out


def rows_of(folder: Path, candidate: str) -> list[dict[str, Any]]:
    """A row a shape: µs of the candidate, the shipped kernel and FlashMLA; None where there is no time."""
    rows = []
    for path in sorted(folder.glob("compare-*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue  # it was ended before its end; what it said is beside
        by_shape: dict[tuple[int, int], dict[str, Any]] = {}
        for row in document["rows"]:
            of_shape = by_shape.setdefault((row["n_heads"], row["batch"]), {"topks": document["topks"]})
            of_shape[row["name"]] = row["call_us"]
        for (n_heads, batch), found in sorted(by_shape.items()):
            is_known = len(found["topks"]) == 1
            flash_us = found.get("FlashMLA") or (FLASH_MLA_US.get((n_heads, batch)) if is_known else None)
            rows.append(
                {
                    "n_heads": n_heads,
                    "batch": batch,
                    "topks": found["topks"],
                    "candidate_us": found.get(candidate),
                    "shipped_us": found.get("sparse_mla_decode.py"),
                    "flash_mla_us": flash_us,
                    "is_flash_mla_of_this_run": found.get("FlashMLA") is not None,
                    "goal_us": None if flash_us is None else flash_us * factor_of(n_heads, batch),
                }
            )
    return rows


def furthest(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """(heads, batch) of the largest candidate ÷ goal, of one pool; 16 heads at batch 96 where nothing is known."""
    known = [row for row in rows if row["candidate_us"] and row["goal_us"] and len(row["topks"]) == 1]
    if not known:
        return 16, 96
    worst = max(known, key=lambda row: row["candidate_us"] / row["goal_us"])
    return worst["n_heads"], worst["batch"]


def summary(rows: Sequence[dict[str, Any]], ends: Sequence[tuple[str, str, float]]) -> str:
    """For people."""
    lines = [f"{name:<20}{seconds:>6.0f} s  {end}" for name, end, seconds in ends]
    lines += ["", "µs a call; FlashMLA* was measured on 2026-11-29, not in this run", ""]
    lines.append("topk         heads  batch  candidate    shipped   FlashMLA       goal  goal")
    for row in rows:
        flash = f"{_us(row['flash_mla_us'])}{'' if row['is_flash_mla_of_this_run'] or not row['flash_mla_us'] else '*'}"
        reached = "unknown"
        if row["candidate_us"] and row["goal_us"]:
            reached = "reached" if row["candidate_us"] <= row["goal_us"] else "missed"
        lines.append(
            f"{' + '.join(map(str, row['topks'])):<11}  {row['n_heads']:>5}  {row['batch']:>5}  "
            f"{_us(row['candidate_us']):>9}  {_us(row['shipped_us']):>9}  {flash:>9}  {_us(row['goal_us']):>9}  {reached}"
        )
    return "\n".join(lines) + "\n"


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# ---- the check, many processes at once


def check_all(folder: Path, file: Path) -> int:
    """Every config in a process of its own; writes check.json; the exit code."""
    module = _imported(file)
    seed = secrets.randbits(31)
    numbers = range(len(module.CONFIGS))
    with ThreadPoolExecutor(max_workers=min(len(numbers), os.cpu_count() or 1)) as threads:
        found = list(threads.map(lambda number: _check_in_child(folder, file, number, seed), numbers))
    results = [result for of_config in found for result in of_config]
    wrong = [result for result in results if not result["passed"]]
    (folder / "check.json").write_text(json.dumps({"seed": seed, "results": results}, indent=1), encoding="utf-8")
    for result in wrong:
        print(f"WRONG  {result['name']} [{result['config']}]: {result['problem']}")
    print(f"{len(results) - len(wrong)} of {len(results)} right, seed {seed}")
    return 1 if wrong or not results else 0


def _check_in_child(folder: Path, file: Path, number: int, seed: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.kernel_run", str(folder), "--file", str(file)]
    command += ["--only-config", str(number), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    results, broken = [], None
    for line in done.stdout.splitlines():
        try:
            results.append(json.loads(line))
        except ValueError:
            broken = line
    if done.returncode != 0 or broken:
        said = broken or done.stderr.strip().rpartition("\n")[2]
        problem = f"its process ended with {done.returncode}: {said}"
        results.append({"name": "process", "config": f"number {number}", "passed": False, "problem": problem})
    return results


def check_config(file: Path, number: int, seed: int) -> None:
    """One config on all its cases, a JSON line each as it comes; the first config's process does what needs no config."""
    from kernel.cases import CASES, random_cases
    from kernel.check import capture_graph, check_case, check_graphs

    module = _imported(file)
    configs = module.CONFIGS
    cases = [(seed + place, case) for place, case in enumerate(CASES)]
    drawn = enumerate(random_cases(N_RANDOM, seed))
    cases += [(seed + place, case) for place, case in drawn if place % len(configs) == number]
    for case_seed, case in cases:
        print(json.dumps(asdict(check_case(module, case, configs[number], "cuda", case_seed))), flush=True)
    print(json.dumps(check_large_pool(module, configs[number], seed)), flush=True)
    if number == 0:
        for result in check_graphs(module, seed, "cuda", capture_graph):
            print(json.dumps(asdict(result)), flush=True)


def check_large_pool(module: ModuleType, config: Any, seed: int) -> dict[str, Any]:
    """The same tokens at the end of a pool of more than 2^32 bytes give the same bits."""
    import torch

    from kernel.cases import Case, Inputs, make_inputs
    from kernel.check import run_poisoned
    from kernel.timing import one_line

    problem = None
    try:
        inputs = make_inputs(Case(name="large pool", n_rows=3, topk=512, sink="random"), seed, "cuda")
        pool, indices, page_size, lengths = inputs.pools[0]
        n_before = LARGE_POOL_BYTES // pool.shape[1]
        large = torch.zeros(n_before + pool.shape[0], pool.shape[1], dtype=torch.uint8, device="cuda")
        large[n_before:] = pool
        moved = ((large, indices + n_before * page_size, page_size, lengths),)
        expected = run_poisoned(module, inputs, config)
        found = run_poisoned(
            module, Inputs(q_B1HD=inputs.q_B1HD, pools=moved, attention_sink_H=inputs.attention_sink_H), config
        )
        if not all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)):
            problem = "other bits than with the same tokens in a small pool"
    except Exception as error:  # whatever the kernel does is the finding
        problem = one_line(error)
    name = f"pool of {LARGE_POOL_BYTES / 2**30:.0f} GiB"
    return {"name": name, "config": str(config), "passed": problem is None, "problem": problem}


def call_once(file: Path, n_heads: int, batch: int) -> None:
    """One call between the profiler's marks, after it was tuned and run."""
    import torch

    from kernel import timing
    from kernel.peers import file_implementation

    shape = timing.Shape(n_heads=n_heads, n_rows=batch, topks=(512,))
    calls = file_implementation(_imported(file), file.name).prepare(timing.make_calls(shape, 4, 0, "cuda"))
    for call in calls[:-1]:
        call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    calls[-1]()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def _imported(file: Path) -> ModuleType:
    from kernel.check import import_source

    return import_source(file, file.read_bytes())


# ---- one after the other


def run(folder: Path, steps: Iterator[Step], *, until: float, has_gpu: bool) -> list[tuple[str, str, float]]:
    """(step, how it ended, seconds) of each."""
    ends = []
    for step in steps:
        began = time.monotonic()
        command = step.command if has_gpu else step.without_gpu
        limit_s = min(step.limit_s, until - began) if has_gpu else 900.0
        if command is None:
            end = f"would run: {' '.join(step.command)}"
        elif limit_s <= 5:
            end = "not begun: no time is left"
        else:
            print(f"{step.name}: at most {limit_s:.0f} s", file=sys.stderr, flush=True)
            end = _run_one(folder, step, command, limit_s)
        ends.append((step.name, end, time.monotonic() - began))
        print(f"{step.name}: {end}", file=sys.stderr, flush=True)
    return ends


def _run_one(folder: Path, step: Step, command: Sequence[str], limit_s: float) -> str:
    name = step.name.replace(" ", "-")
    said = folder / f"{name}.txt"
    output = folder / (step.output or said.name)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton-cache")}
    with said.open("wb") as errors, output.open("ab") as out:
        errors.write(f"$ {' '.join(command)}\n".encode())
        errors.flush()
        try:
            done = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return f"could not begin: {error}"
        try:
            code = done.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s"
        finally:
            _end_group(done)
    return "ended well" if code == 0 else f"exit {code}, see {said.name}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where everything is written; made where it is not")
    parser.add_argument("--file", type=Path, default=CANDIDATE, help="the candidate; default benchmarks/kernel_ideas")
    parser.add_argument("--seconds", type=int, default=540, metavar="N", help="for everything; default 540")
    parser.add_argument("--dry-run", action="store_true", help="what needs no GPU, and the commands of the rest")
    parser.add_argument("--only-check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only-config", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only-call", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.file.is_file():
        parser.error(f"no such file: {arguments.file}")
    if arguments.seconds < 1:
        parser.error(f"--seconds {arguments.seconds} is not a number from 1 up")
    arguments.folder, arguments.file = arguments.folder.absolute(), arguments.file.absolute()
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    started = time.monotonic()
    arguments = _arguments(argv)
    import torch

    has_gpu = torch.version.cuda is not None and torch.cuda.is_available()
    if not has_gpu and not arguments.dry_run:
        print("no NVIDIA GPU that torch can use here: run this on a machine with one, or --dry-run", file=sys.stderr)
        return 1
    folder, file = arguments.folder, arguments.file
    if arguments.only_config is not None:
        check_config(file, arguments.only_config, arguments.seed)
        return 0
    if arguments.only_call:
        call_once(file, *map(int, arguments.only_call.split(",")))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.only_check:
        return check_all(folder, file)
    steps = steps_of(folder, file, arguments.seconds)
    ends = run(folder, steps, until=started + arguments.seconds, has_gpu=has_gpu and not arguments.dry_run)
    name = "candidate.py" if (folder / "candidate.py").exists() else file.name
    text = summary(rows_of(folder, name), ends)
    (folder / "SUMMARY.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0 if all(end == "ended well" or end.startswith("would run") for _, end, _ in ends) else 1


if __name__ == "__main__":
    sys.exit(main())
