"""Time of ``orch check``, beside one bare ``triton.compile`` of the same config in a process of its own.

    python -m benchmarks.bench_check [--json] [--repeats 3]

In a project with the shipped kernel, for sm_120: the baseline's three configs from nothing; then a variant, one config
more; a variant from nothing, with the baseline's config that it is compared with; a grid of 24 from nothing; and each
again, out of the cache. Goals on two cores: 3 s for one config, 40 s for the grid, 0.5 s out of the cache. Medians over
the repeats, with their range.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.demo.story import CHECK_SETTINGS

KERNEL = Path(__file__).parent.parent / "kernel" / "seed" / "sparse_mla_decode.py"
GRID = ("num_stages=2..7", "num_warps=4,8", "BLOCK_T=16,32")
INVENTORY = """\
hosts: {{here: {{transport: local, scratch_dir: "{root}/scratch"}}}}
engines: {{none: {{command: ["true"], python: "{python}", base_url: "http://127.0.0.1:1"}}}}
workloads: {{short: {{}}}}
targets:
  sparse_mla:
    files: ["{root}/{kernel}"]
    kernel: sparse_mla_decode_kernel
{check}
"""
BARE = """\
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
sys.path.insert(0, sys.argv[1])
import lifted, job
constants = {**job.CONSTANTS, **job.DTYPES(triton.language)}
source = ASTSource(getattr(lifted, job.KERNEL), job.TYPES, constants, job.ATTRIBUTES)
triton.compile(source, target=GPUTarget("cuda", 120, 32), options={"num_warps": 8, "num_stages": 2})
"""


@dataclass(frozen=True)
class Timing:
    """Seconds of one question: median, least and most of n repeats, and the median ÷ that of the bare compile."""

    name: str
    median_s: float
    least_s: float
    most_s: float
    n: int
    ratio: float | None


def wall_s(argv: Sequence[str], environment: dict[str, str]) -> float:
    """Seconds of a command, which must succeed."""
    began_s = time.monotonic()
    subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began_s


def write_bare(folder: Path) -> list[str]:
    """A script that compiles V1's config with triton.compile and nothing of orch; how to run it."""
    from orchestrator.check.lift import lift
    from orchestrator.check.supply import Kernel, Supply
    from orchestrator.inventory import load
    from orchestrator.records import SourceFile
    from orchestrator.verdicts import KernelConfig

    target = load(folder / "inventory.yaml").targets["sparse_mla"]
    lifted = lift([SourceFile.of(KERNEL.name, KERNEL.read_bytes())], target.kernel, modules={})
    config = KernelConfig(constants={"BLOCK_T": 16}, num_warps=8, num_stages=2)
    (job,) = Supply("source", target).jobs(Kernel(lifted, (config,), None), config, 120)
    assert job.signature is not None
    names = list(job.signature.types)
    constants = {**job.signature.constants, **config.constants}
    dtypes = {name: text for name, text in constants.items() if isinstance(text, str) and text.startswith("tl.")}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in job.signature.divisible_by_16}
    (folder / "lifted.py").write_text(lifted.source.text)
    (folder / "job.py").write_text(
        f"KERNEL = {job.source.kernel!r}\nTYPES = {dict(job.signature.types)!r}\nATTRIBUTES = {attributes!r}\n"
        f"CONSTANTS = { {name: value for name, value in constants.items() if name not in dtypes}!r}\n"
        f"DTYPES = lambda tl: dict({', '.join(f'{name}={text}' for name, text in dtypes.items())})\n"
    )
    (folder / "bare.py").write_text(BARE)
    return [sys.executable, str(folder / "bare.py"), str(folder)]


def measure(n_repeats: int) -> list[Timing]:
    """All timings, the bare compile first."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        shutil.copy(KERNEL, root)
        check = CHECK_SETTINGS.format(python=json.dumps(sys.executable))
        text = INVENTORY.format(root=root, python=sys.executable, kernel=KERNEL.name, check=check)
        (root / "inventory.yaml").write_text(text)
        environment = {**os.environ, "TRITON_CACHE_DIR": str(root / "triton")}
        orch = [sys.executable, "-m", "orchestrator", "--inventory", str(root / "inventory.yaml")]
        for words in (["pull"], ["variant", "new", "V1", "--set", "num_warps=8"]):
            wall_s([*orch, *words], environment)
        variant = ["check", "--variant", "V1"]
        questions = {  # name: (words, from nothing)
            "the baseline, three configs": (["check"], True),
            "one config more": (variant, False),
            "one config more, cached": (variant, False),
            "one config and the baseline's": (variant, True),
            "a grid of 24": (["check", "--sweep", *GRID], True),
            "a grid of 24, cached": (["check", "--sweep", *GRID], False),
        }
        bare = write_bare(root)
        times: dict[str, list[float]] = {}
        for _ in range(n_repeats):
            shutil.rmtree(root / "triton", ignore_errors=True)
            times.setdefault("bare triton.compile of one config", []).append(wall_s(bare, environment))
            for question, (words, is_anew) in questions.items():
                if is_anew:
                    shutil.rmtree(root / ".orch" / "compiled", ignore_errors=True)
                times.setdefault(question, []).append(wall_s([*orch, *words], environment))
    reference_s = statistics.median(times["bare triton.compile of one config"])
    return [
        Timing(name, (median := statistics.median(all_s)), min(all_s), max(all_s), len(all_s), median / reference_s)
        for name, all_s in times.items()
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    timings = measure(arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
        return
    for timing in timings:
        print(
            f"{timing.name:<38} {timing.median_s:6.2f} s ({timing.least_s:.2f} to {timing.most_s:.2f}, n = {timing.n})"
            f"   {timing.ratio:5.2f} × the bare compile"
        )


if __name__ == "__main__":
    main()
