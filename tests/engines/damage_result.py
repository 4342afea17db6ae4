"""Runs a load client, and then damages the result that it wrote: ``damage_result.py cut|infinity CLIENT ARGUMENTS``.

It works in the folder of a load: what a step of another client left lies in ``load/``, loadgen's result in the folder
itself. ``cut`` leaves the first half, ``infinity`` puts an ``Infinity`` where the first measured value stood.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RESULTS = (
    "load/result.jsonl",
    "load/result.json",
    "load/benchmarks.json",
    "load/profile_export_aiperf.json",
    "result.json",
)
MEASURED = re.compile(r'("(?:median_ttft_ms|request_latency|p50|first_chunk_s)": ?)[0-9][0-9.e+-]*')


def main() -> int:
    """The command line."""
    how, *command = sys.argv[1:]
    code = subprocess.run(command, check=False).returncode
    for path in map(Path, RESULTS):
        if path.exists():
            text = path.read_text()
            damaged, n_changed = MEASURED.subn(r"\1Infinity", text, count=1)
            if how == "infinity" and not n_changed:
                raise SystemExit(f"{path} has no measured value")
            path.write_text(text[: len(text) // 2] if how == "cut" else damaged)
            break
    return code


if __name__ == "__main__":
    raise SystemExit(main())
