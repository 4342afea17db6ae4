"""Does ``orch check`` tell the truth? Its offline prediction beside what a real GPU loads, times and refuses.

    python -m benchmarks.check_on_gpu [--json]

Run it on a machine with an NVIDIA GPU, torch and triton. ``orch check --sweep`` compiles a grid of the shipped kernel
in a process that sees no GPU; then this process launches each point and asks the driver. Three questions:

1. shared memory and registers, predicted and loaded, of every point that fits;
2. two points that the sweep calls the same binary: the ratio of their times, with its interval, beside the ratio of one
   point to itself and that of two which it calls different;
3. a point that the sweep says does not fit: what a launch says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.bench_check import INVENTORY
from kernel import check as kernel_check
from kernel.cases import Case, Inputs, make_inputs
from orchestrator.demo.story import CHECK_SETTINGS

GRID = ("num_stages=2..7", "num_warps=4,8", "BLOCK_T=16,32")
TOO_LARGE = ("num_stages=11", "num_warps=4", "BLOCK_T=128")
CASE = Case(name="check on GPU", n_rows=8, n_heads=16, topk=512, page_size=64)
LAUNCHES_A_GRAPH = 20
ROUNDS_A_BUILD = 200
N_BUILDS = 24
KERNEL = Path(__file__).parent.parent / "kernel" / "seed" / "sparse_mla_decode.py"
Point = dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """What the driver says of one point, beside the prediction. ``n_spilled``: 4-byte words of local memory."""

    number: int
    config: str
    shared_bytes: int
    predicted_shared_bytes: int
    n_registers: int
    predicted_n_registers: int
    n_spilled: int
    predicted_stack_bytes: int
    same_binary: bool

    @property
    def agrees(self) -> bool:
        """Whether both numbers are as predicted."""
        return (self.shared_bytes, self.n_registers) == (self.predicted_shared_bytes, self.predicted_n_registers)


@dataclass(frozen=True)
class Ratio:
    """Time of one point ÷ that of another: geometric mean over n builds of both graphs, 95 % bootstrap interval."""

    words: str
    ratio: float
    low: float
    high: float
    n_builds: int
    us_a_call: float


def predict(words: Sequence[str], arch: int) -> list[Point]:
    """The points of a grid as ``orch check --sweep --json`` tells them, in a process that sees no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / KERNEL.name).write_bytes(KERNEL.read_bytes())
        python = json.dumps(sys.executable)
        check = CHECK_SETTINGS.format(python=python)
        (root / "inventory.yaml").write_text(
            INVENTORY.format(root=root, python=sys.executable, kernel=KERNEL.name, check=check)
        )
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        orch = [sys.executable, "-m", "orchestrator", "--inventory", str(root / "inventory.yaml")]
        subprocess.run([*orch, "pull"], env=environment, check=True, stdout=subprocess.DEVNULL)
        sweep = [*orch, "check", "--arch", f"sm_{arch}", "--json", "--sweep", *words]
        done = subprocess.run(sweep, env=environment, check=True, stdout=subprocess.PIPE)
    points: list[Point] = json.loads(done.stdout)["points"]
    return points


class Spy:
    """Stands for the bare kernel; keeps what the last launch ran."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.compiled: Any = None

    def __getitem__(self, grid: Any) -> Any:
        """The launcher of a grid."""

        def launch(*args: Any, **kwargs: Any) -> Any:
            self.compiled = self._kernel[grid](*args, **kwargs)
            return self.compiled

        return launch


def config_of(point: Point) -> Any:
    """The point as Triton takes it."""
    return triton.Config(dict(point["constants"]), num_warps=point["num_warps"], num_stages=point["num_stages"])


def words_of(point: Point) -> str:
    """``BLOCK_T=16 num_warps=4 num_stages=2``."""
    return f"BLOCK_T={point['constants']['BLOCK_T']} num_warps={point['num_warps']} num_stages={point['num_stages']}"


def load(point: Point, module: Any, spy: Spy, inputs: Inputs) -> Loaded:
    """Launches a point, and asks what was loaded."""
    kernel_check.run_poisoned(module, inputs, config_of(point))
    torch.cuda.synchronize()
    compiled = spy.compiled
    return Loaded(
        number=point["number"],
        config=words_of(point),
        shared_bytes=compiled.metadata.shared,
        predicted_shared_bytes=point["shared_bytes"],
        n_registers=compiled.n_regs,
        predicted_n_registers=point["n_registers"],
        n_spilled=compiled.n_spills,
        predicted_stack_bytes=point["stack_bytes"],
        same_binary="sha256:" + hashlib.sha256(compiled.asm["cubin"]).hexdigest() == point["binary_digest"],
    )


def graph_of(point: Point, module: Any, inputs: Inputs) -> torch.cuda.CUDAGraph:
    """Launches of a point as one CUDA graph."""
    kernel_check.run_poisoned(module, inputs, config_of(point))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES_A_GRAPH):
            kernel_check.run_poisoned(module, inputs, config_of(point))
    return graph


def time_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one call inside a replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / LAUNCHES_A_GRAPH


def one_build(first: Point, second: Point, module: Any, inputs: Inputs, *, is_swapped: bool) -> tuple[float, float]:
    """Log of second ÷ first with graphs built anew, measured as A B B A, and microseconds of a call of the first.

    Where a graph's memory lies moves its time by some 0.3 %, so a graph is a replicate and a replay is not.
    """
    order = (second, first) if is_swapped else (first, second)
    graphs = [graph_of(point, module, inputs) for point in order]
    if is_swapped:
        graphs.reverse()
    for graph in graphs * 5:
        time_us(graph)
    rounds = [[time_us(graphs[i]) for i in (0, 1, 1, 0)] for _ in range(ROUNDS_A_BUILD)]
    logs = [math.log((b1 + b2) / (a1 + a2)) for a1, b1, b2, a2 in rounds]
    return statistics.median(logs), statistics.median(times[0] for times in rounds)


def compare(first: Point, second: Point, module: Any, inputs: Inputs) -> Ratio:
    """Second ÷ first over graphs that are built anew each time, in alternating order."""
    builds = [one_build(first, second, module, inputs, is_swapped=bool(i % 2)) for i in range(N_BUILDS)]
    logs = [log for log, _ in builds]
    resampled = [statistics.fmean(random.choices(logs, k=len(logs))) for _ in range(4000)]
    cuts = statistics.quantiles(resampled, n=40)
    words = f"{words_of(second)} ÷ {words_of(first)}"
    call_us = statistics.median(us for _, us in builds)
    return Ratio(words, math.exp(statistics.fmean(logs)), math.exp(cuts[0]), math.exp(cuts[-1]), len(logs), call_us)


def launch_error(point: Point, module: Any, inputs: Inputs) -> str | None:
    """What a launch of the point says; None when it runs."""
    try:
        kernel_check.run_poisoned(module, inputs, config_of(point))
        torch.cuda.synchronize()
    except Exception as error:  # whichever class this Triton raises is what is asked for
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def measure() -> dict[str, Any]:
    """Everything, as one document."""
    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    points, (too_large,) = predict(GRID, arch), predict(TOO_LARGE, arch)
    module = kernel_check.import_source(KERNEL, KERNEL.read_bytes())
    spy = Spy(module.sparse_mla_decode_kernel.fn)
    module.sparse_mla_decode_kernel.fn = spy
    inputs = make_inputs(CASE, 1, "cuda")
    fitting = [point for point in points if point["can_launch"]]
    by_number = {point["number"]: point for point in points}
    same = next(point for point in points if point["verdict"] == "same")
    first = by_number[same["same_as"]]
    other = next(point for point in fitting if point["num_warps"] != first["num_warps"] and point["verdict"] == "new")
    return {
        "gpu": torch.cuda.get_device_name(),
        "arch": f"sm_{arch}",
        "triton_version": triton.__version__,
        "torch_version": torch.__version__,
        "loaded": [asdict(load(point, module, spy, inputs)) for point in fitting],
        "n_not_fitting": len(points) - len(fitting),
        "same_config": asdict(compare(first, first, module, inputs)),
        "same_binary": asdict(compare(first, same, module, inputs)),
        "other_binary": asdict(compare(first, other, module, inputs)),
        "too_large": {
            "config": words_of(too_large),
            "predicted": too_large["verdict"],
            "shared_bytes": too_large["shared_bytes"],
            "shared_limit_bytes": too_large["shared_limit_bytes"],
            "launch_error": launch_error(too_large, module, inputs),
        },
    }


def as_text(found: dict[str, Any]) -> str:
    """The document for people."""
    rows = [Loaded(**row) for row in found["loaded"]]
    lines = [f"{found['gpu']} ({found['arch']}), Triton {found['triton_version']}, torch {found['torch_version']}"]
    lines.append("   config                                  shared B  predicted   regs  predicted   binary")
    for row in rows:
        lines.append(
            f"{row.number:>2} {row.config:<40} {row.shared_bytes:>7} {row.predicted_shared_bytes:>10} "
            f"{row.n_registers:>6} {row.predicted_n_registers:>10}   {'same' if row.same_binary else 'other'}"
        )
    n_agreeing = sum(row.agrees for row in rows)
    lines.append(f"{n_agreeing} of {len(rows)} configs: shared memory and registers as predicted")
    for title in ("same_config", "same_binary", "other_binary"):
        ratio = Ratio(**found[title])
        lines.append(
            f"{title}: {ratio.words}: {ratio.ratio:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], n = {ratio.n_builds} "
            f"builds, {ratio.us_a_call:.1f} µs a call"
        )
    large = found["too_large"]
    lines.append(
        f"{large['config']}: predicted {large['predicted']} ({large['shared_bytes']} of {large['shared_limit_bytes']} "
        f"B); a launch says: {large['launch_error'] or 'nothing, it runs'}"
    )
    return "\n".join(lines)


def main() -> int:
    """Command line; exit code 1 when a prediction was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA GPU here: this is for a machine with one", file=sys.stderr)
        return 2
    found = measure()
    print(json.dumps(found, indent=2) if arguments.json else as_text(found))
    is_right = all(Loaded(**row).agrees for row in found["loaded"]) and found["too_large"]["launch_error"] is not None
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
