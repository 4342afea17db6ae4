"""CPU time that ``orch --help`` and ``orch status --offline`` take to start, beside ``python -c pass``.

    python -m benchmarks.bench_startup [--json] [--repeats 15]

The goal is under 150 ms of CPU each. ``status`` runs in a project in use: an inventory, a baseline in results.db, two
variants. CPU time (user + system of the process and its children) does not depend on what else the machine does; the
median of the repeats is shown with its range.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

GOAL_MS = 150.0
KERNEL = """\
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK_T": 16}, num_warps=4, num_stages=2)], key=["n"])
@triton.jit
def kernel(x_ptr, n, BLOCK_T: tl.constexpr):
    pass
"""
INVENTORY = """\
hosts: {{here: {{transport: local, scratch_dir: "{root}/scratch"}}}}
engines:
  tiny: {{command: [sleep, "1"], python: "{python}", base_url: "http://127.0.0.1:1"}}
targets:
  kernel: {{host: here, engine: tiny, files: ["{root}/kernel.py"], kernel: kernel, module: kernel}}
workloads: {{short: {{}}}}
"""


def cpu_ms(argv: Sequence[str], cwd: Path) -> float:
    """CPU time of one run of a command, which must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def make_project(root: Path) -> None:
    """A project in use: baseline pulled, two variants made."""
    (root / "kernel.py").write_text(KERNEL)
    (root / "inventory.yaml").write_text(INVENTORY.format(root=root, python=sys.executable))
    for words in (
        ["pull"],
        ["variant", "new", "V1", "--set", "BLOCK_T=64"],
        ["variant", "new", "V2", "--set", "num_stages=3"],
    ):
        subprocess.run([sys.executable, "-m", "orchestrator", *words], cwd=root, check=True, capture_output=True)


def measure(repeats: int) -> list[dict[str, float | str]]:
    """Median and range of each command, in ms of CPU; the commands take turns."""
    orch = str(Path(sys.executable).with_name("orch"))
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "orch --help": [orch, "--help"],
        "orch status --offline": [orch, "status", "--offline"],
    }
    values: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        make_project(root)
        for _ in range(repeats):
            for name, argv in commands.items():
                values[name].append(cpu_ms(argv, root))
    bare_ms = statistics.median(values["python -c pass"])
    return [
        {
            "command": name,
            "cpu_ms_p50": statistics.median(found),
            "cpu_ms_min": min(found),
            "cpu_ms_max": max(found),
            "ratio_to_bare_python": statistics.median(found) / bare_ms,
            "n": len(found),
        }
        for name, found in values.items()
    ]


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    rows = measure(options.repeats)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'command':<24} {'CPU ms, median':>15} {'range':>15} {'÷ python':>9}   n")
    for row in rows:
        span = f"{row['cpu_ms_min']:.0f}–{row['cpu_ms_max']:.0f}"
        ratio = f"{row['ratio_to_bare_python']:.1f} ×"
        print(f"{row['command']:<24} {row['cpu_ms_p50']:>15.0f} {span:>15} {ratio:>9} {row['n']:>3}")
    print(f"goal: under {GOAL_MS:.0f} ms each")


if __name__ == "__main__":
    main()
