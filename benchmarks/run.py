"""Runs every benchmark one after the other (never side by side: they would measure each other).

python -m benchmarks.run [NAME …]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    """Runs the named benchmarks, or all; the exit code is that of the first that failed."""
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in wanted:
        print(f"\n== {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
