"""orch: tune GPU kernels inside a live serving engine over SSH, with proof of what was measured.

The map: ``inventory → connection → pull → workspace → variant → push → serve → bench → store → stats → report``.
Each station takes the record of the one before and returns the next; only ``experiment.py`` knows the order.
This package never imports torch or triton.
"""

from orchestrator.version import VERSION

__version__ = VERSION
