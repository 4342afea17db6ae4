"""Check, tune, compare and profile a candidate for the shipped kernel, in one command of a few minutes on one GPU.

    python -m benchmarks.kernel_run FOLDER [--file FILE] [--seconds N] [--dry-run]

Steps in this order, each a process of its own with a limit; one that fails or is late costs the others nothing:
    check              every config of the list on every case and on its share of 60 random ones, many processes at
                       once; two CUDA graphs; a pool of more than 2^32 bytes
    tune               kernel.tuner for 16 and 64 heads; its list and its table go into FOLDER/candidate.py, a copy
    compare one pool   kernel.microbench of the copy, the shipped kernel and the peers
    compare two pools  128 + 512 tokens
    profile            ncu of the copy, at the shape that is furthest from its goal; left out where there is no ncu
    compare others     the batches that no goal is about

Everything is written to FOLDER: what each step said (STEP.txt), its JSON, one-pool.svg, and SUMMARY.txt: the
candidate, the shipped kernel and FlashMLA at every shape, beside the goal. Triton's cache is there too.

``--dry-run`` needs no GPU: the file's torch path on every case, what the tuner would try, and the other commands.

Exit codes: 0 every step ended well; 1 one did not, or there is no NVIDIA GPU; 2 wrong use.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel.autotune_lists import with_choice
from kernel.check import SHIPPED

ROOT = Path(__file__).parent.parent
BATCHES, OTHER_BATCHES = "96,1,64,8", "128,32,48"
"""Those that the goals are about, and the others: time may run out."""
N_RANDOM = 60
SKIPPED = ("--skip", "compile", "--skip", "sglang")
"""Peers that take seconds at every shape."""
FLASH_MLA_US = {
    (16, 1): 11.6, (16, 8): 13.3, (16, 64): 39.2, (16, 96): 36.6,
    (64, 1): 11.6, (64, 8): 13.4, (64, 64): 39.4, (64, 96): 36.7,
}  # fmt: skip
"""FlashMLA 1.0.0 on an H200, measured 2026-11-29: for runs without it."""
NCU_SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats")
NCU_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")
ENDED_WELL = "ended well"
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


def n_cores() -> int:
    """Those that this process may use: ``taskset`` may have given it a part of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def steps_of(folder: Path, file: Path, seconds: int) -> Iterator[Step]:
    """In order. What a step needs of an earlier one is read when it is asked for."""
    python = (sys.executable, "-m")
    mine = (*python, "benchmarks.kernel_run", str(folder), "--file")
    share = seconds / 540
    yield Step(
        name="check",
        command=(*mine, str(file), "--only-check", "--seconds", str(int(90 * share) + 1)),
        limit_s=100 * share,
        without_gpu=(*python, "kernel.check", str(file), "--device", "cpu"),
    )
    found = folder / "tune.json"
    tuner = (*python, "kernel.tuner", str(file), "--heads", "16,64", "--json", str(found))
    jobs = ("--jobs", str(3 * n_cores() // 2))  # all configs at once: most of the time they wait
    yield Step(
        name="tune",
        command=(*tuner, "--batch", f"{BATCHES},{OTHER_BATCHES}", "--seconds", str(int(140 * share) + 1), *jobs),
        limit_s=160 * share,
        without_gpu=(*tuner, "--dry-run", "--seconds", "600"),
    )
    candidate = _with_choice(file, found, folder / "candidate.py")
    heads = ("--heads", "16,64")
    yield _compare(candidate, "one pool", (*heads, "--batch", BATCHES), 100 * share)
    yield _compare(candidate, "two pools", (*heads, "--batch", BATCHES, "--second"), 120 * share)
    ncu = shutil.which("ncu") or next((place for place in NCU_PLACES if Path(place).exists()), None)
    if ncu is not None:
        n_heads, batch = furthest(rows_of(folder))
        sections = [word for section in NCU_SECTIONS for word in ("--section", section)]
        one = (*mine, str(candidate), "--only-call", f"{n_heads},{batch}")
        yield Step(
            name="profile",
            command=(ncu, "--profile-from-start", "off", "--page", "details", *sections, *one),
            limit_s=60 * share,
        )
    yield _compare(candidate, "others", (*heads, "--batch", OTHER_BATCHES), 90 * share)


def _compare(candidate: Path, words: str, shapes: tuple[str, ...], limit_s: float) -> Step:
    files = (str(candidate), str(SHIPPED), "--peers", *SKIPPED)
    return Step(
        name=f"compare {words}",
        command=(sys.executable, "-m", "kernel.microbench", *files, *shapes, "--json"),
        limit_s=limit_s,
        output=f"compare-{words.replace(' ', '-')}.json",
    )


def _with_choice(file: Path, found: Path, copy: Path) -> Path:
    """A copy of the file with what the tuner chose; the file itself where the tuner has not come so far."""
    try:
        document = json.loads(found.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return file
    if not document.get("lines"):
        return file
    table = {
        int(n_heads): tuple((math.inf if most is None else most, place) for most, place in borders)
        for n_heads, borders in document["table"].items()
    }
    device = document["device"]
    source = file.read_text(encoding="utf-8")
    copy.write_text(with_choice(source, document["lines"], tuple(device["capability"]), table), encoding="utf-8")
    return copy


# ---- what came out


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """One a shape: µs of the candidate, the shipped kernel and FlashMLA; None where there is no time."""
    rows = []
    for document in _documents(folder):
        candidate, shipped = (file["name"] for file in document["files"])
        is_one_pool = len(document["topks"]) == 1
        by_shape: dict[tuple[int, int], dict[str, float | None]] = {}
        for row in document["rows"]:
            by_shape.setdefault((row["n_heads"], row["batch"]), {})[row["name"]] = row["call_us"]
        for (n_heads, batch), times in sorted(by_shape.items()):
            flash_us = times.get("FlashMLA") or (FLASH_MLA_US.get((n_heads, batch)) if is_one_pool else None)
            rows.append(
                {
                    "n_heads": n_heads,
                    "batch": batch,
                    "topks": document["topks"],
                    "candidate_us": times.get(candidate),
                    "shipped_us": times.get(shipped),
                    "flash_mla_us": flash_us,
                    "is_flash_mla_of_this_run": times.get("FlashMLA") is not None,
                    "goal_us": None if flash_us is None else flash_us * factor_of(n_heads, batch),
                }
            )
    return sorted(rows, key=lambda row: (len(row["topks"]), row["n_heads"], row["batch"]))


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
    if not rows:
        return "\n".join([*lines, "", "nothing was timed", ""])
    lines += ["", "µs a call; FlashMLA* was measured on 2026-11-29, not in this run", ""]
    lines.append("topk         heads  batch  candidate    shipped   FlashMLA       goal  goal")
    for row in rows:
        flash = f"{_us(row['flash_mla_us'])}{'' if row['is_flash_mla_of_this_run'] or not row['flash_mla_us'] else '*'}"
        reached = "unknown"
        if row["candidate_us"] and row["goal_us"]:
            reached = "reached" if row["candidate_us"] <= row["goal_us"] else "missed"
        times = (_us(row["candidate_us"]), _us(row["shipped_us"]), flash, _us(row["goal_us"]))
        pools = " + ".join(map(str, row["topks"]))
        cells = "  ".join(f"{time:>9}" for time in times)
        lines.append(f"{pools:<11}  {row['n_heads']:>5}  {row['batch']:>5}  {cells}  {reached}")
    return "\n".join(lines) + "\n"


def _draw(folder: Path) -> None:
    """one-pool.svg; says so where it cannot."""
    from kernel.microbench import Row

    rows = [Row(**row) for document in _documents(folder) if len(document["topks"]) == 1 for row in document["rows"]]
    if not rows:
        return
    try:
        from kernel.microbench_plot import draw

        draw(rows, folder / "one-pool.svg")
    except (ImportError, OSError) as error:
        print(f"one-pool.svg was not drawn: {error}", file=sys.stderr)


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    """Of kernel.microbench; those that were ended before their end are left out: what they said is beside."""
    for path in sorted(folder.glob("compare-*.json")):
        with contextlib.suppress(ValueError):
            yield json.loads(path.read_text(encoding="utf-8"))


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# ---- the check, many processes at once


def check_all(folder: Path, file: Path, seconds: int) -> int:
    """Every config in a process of its own; writes check.json; the exit code."""
    numbers = range(len(_imported(file).CONFIGS))
    seed = secrets.randbits(31)
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(max_workers=min(len(numbers), n_cores())) as threads:
        found = list(threads.map(lambda number: _check_in_child(folder, file, number, seed, until), numbers))
    results = [result for of_config in found for result in of_config]
    wrong = [result for result in results if not result["passed"]]
    (folder / "check.json").write_text(json.dumps({"seed": seed, "results": results}, indent=1), encoding="utf-8")
    for result in wrong:
        print(f"WRONG  {result['name']} [{result['config']}]: {result['problem']}")
    print(f"{len(results) - len(wrong)} of {len(results)} right, seed {seed}")
    return 1 if wrong or not results else 0


def _check_in_child(folder: Path, file: Path, number: int, seed: int, until: float) -> list[dict[str, Any]]:
    """Its results, and one more where it did not come to its end."""
    command = [sys.executable, "-m", "benchmarks.kernel_run", str(folder), "--file", str(file)]
    command += ["--only-config", str(number), "--seed", str(seed)]
    said = folder / f"check-{number}.txt"
    with said.open("wb") as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # the float64 reference of all processes at once
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors)
    try:
        out, _ = child.communicate(timeout=max(1.0, until - time.monotonic()))
        end = None if child.returncode == 0 else f"its process ended with {child.returncode}, see {said.name}"
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
        end = "not all cases were reached in time"
    results: list[dict[str, Any]] = []
    for line in out.decode().splitlines():
        try:
            results.append(json.loads(line))
        except ValueError:
            end = end or f"it printed {line!r}"
    if end is not None:
        results.append({"name": "process", "config": f"number {number}", "passed": False, "problem": end})
    return results


def check_config(file: Path, number: int, seed: int, device: str = "cuda") -> None:
    """One config on all its cases, a JSON line each as it comes; the first one's process does the graphs too."""
    from kernel.cases import CASES, random_cases
    from kernel.check import capture_graph, check_case, check_graphs

    module = _imported(file)
    configs = module.CONFIGS
    cases = [(seed + place, case) for place, case in enumerate(CASES)]
    drawn = enumerate(random_cases(N_RANDOM, seed))
    cases += [(seed + place, case) for place, case in drawn if place % len(configs) == number]
    for case_seed, case in cases:
        print(json.dumps(asdict(check_case(module, case, configs[number], device, case_seed))), flush=True)
    print(json.dumps(check_large_pool(module, configs[number], seed, device)), flush=True)
    if number == 0:
        for result in check_graphs(module, seed, device, capture_graph):
            print(json.dumps(asdict(result)), flush=True)


def check_large_pool(module: ModuleType, config: Any, seed: int, device: str) -> dict[str, Any]:
    """The same tokens at the end of a pool of more than 2^32 bytes give the same bits."""
    import torch

    from kernel.cases import Case, Inputs, make_inputs
    from kernel.check import run_poisoned
    from kernel.timing import one_line

    problem = None
    try:
        inputs = make_inputs(Case(name="large pool", n_rows=3, topk=512, sink="random"), seed, device)
        pool, indices, page_size, lengths = inputs.pools[0]
        n_before = LARGE_POOL_BYTES // pool.shape[1]
        large = torch.zeros(n_before + pool.shape[0], pool.shape[1], dtype=torch.uint8, device=device)
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
    said = folder / f"{step.name.replace(' ', '-')}.txt"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton-cache")}
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(said.open("wb"))
        errors.write(f"$ {' '.join(command)}\n".encode())
        errors.flush()
        out = errors if step.output is None else stack.enter_context((folder / step.output).open("wb"))
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return f"could not begin: {error}"
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s, see {said.name}"
        finally:
            _end_group(process)
    return ENDED_WELL if code == 0 else f"exit {code}, see {said.name}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where everything is written; made where it is not")
    parser.add_argument(
        "--file", type=Path, default=SHIPPED, help="the candidate; default the shipped one, timed twice"
    )
    parser.add_argument("--seconds", type=int, default=540, metavar="N", help="for everything; default 540")
    parser.add_argument("--dry-run", action="store_true", help="what needs no GPU, and the commands of the rest")
    parser.add_argument("--only-check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only-config", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only-call", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.file.is_file():
        parser.error(f"no such file: {arguments.file}")
    is_whole = not arguments.only_check and arguments.only_config is None and arguments.only_call is None
    if is_whole and arguments.folder.exists() and any(arguments.folder.iterdir()):
        parser.error(f"{arguments.folder} is not empty: name another folder, so that no two runs are mixed")
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
        return check_all(folder, file, arguments.seconds)
    steps = steps_of(folder, file, arguments.seconds)
    ends = run(folder, steps, until=started + arguments.seconds, has_gpu=has_gpu and not arguments.dry_run)
    text = summary(rows_of(folder), ends)
    (folder / "SUMMARY.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    _draw(folder)
    return 0 if all(end == ENDED_WELL or end.startswith("would run") for _, end, _ in ends) else 1


if __name__ == "__main__":
    sys.exit(main())
