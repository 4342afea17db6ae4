"""``python -m kernel.compiler``: the compile program, see the package."""

from __future__ import annotations

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
