"""Kernel files of benchmarks/kernel_ideas: right, though not the shipped one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

ROOT = Path(__file__).parents[2]
IDEAS = sorted((ROOT / "benchmarks" / "kernel_ideas").glob("*.py"))

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


@pytest.mark.parametrize("file", IDEAS, ids=lambda file: file.stem)
@pytest.mark.parametrize("how", ["--interpret", "--device=cpu"])
def test_an_idea_is_right(file: Path, how: str) -> None:
    """Its Triton kernels, interpreted, and its torch path pass the check."""
    command = [sys.executable, "-m", "kernel.check", str(file), "--json", how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    verdict = json.loads(done.stdout)
    assert [result for result in verdict["results"] if not result["passed"]] == []
    assert (done.returncode, verdict["passed"]) == (0, True)
