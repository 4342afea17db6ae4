"""How often the method is wrong: experiments made up from a known truth, judged by the program's own plan and stats.

Pure: a seed in, rates out. ``noise`` makes the numbers of an experiment, ``planned`` judges many of them at once with
the rules of ``stats``, ``usual_ways`` judges as people do without a plan, ``claims`` holds every number that the
documents state, and ``check`` compares. Nothing here touches a host or a store.
"""

from __future__ import annotations

from orchestrator.simulation.check import Check, check_all

__all__ = ["Check", "check_all"]
