"""``python -m kernel.engine``: serve until SIGTERM."""

import sys

from kernel.engine.server import main

if __name__ == "__main__":
    sys.exit(main())
