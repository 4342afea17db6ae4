"""Numbers → what may be concluded. Pure: no I/O, no randomness, nothing left out without a warning.

``unplanned`` gives starts that were taken by hand their ratios, and never a verdict. All other files serve experiments
whose order was drawn before the first start: ``crossover`` estimates, ``looks`` spends the 5 % over the planned looks,
``family`` judges several comparisons at once, ``analysis`` puts them together, ``power`` says what can be seen at all,
``eprocess`` is for a caller who looks without a plan. numpy and scipy are imported when a function needs them.
"""

from __future__ import annotations

from orchestrator.stats.analysis import analyse
from orchestrator.stats.crossover import estimate
from orchestrator.stats.eprocess import e_value
from orchestrator.stats.family import MIN_PAIRS
from orchestrator.stats.looks import look_thresholds, overall_error
from orchestrator.stats.power import detectable, pairs_needed, power_of, sigma_upper
from orchestrator.stats.unplanned import comparable, compare

__all__ = [
    "MIN_PAIRS",
    "analyse",
    "comparable",
    "compare",
    "detectable",
    "e_value",
    "estimate",
    "look_thresholds",
    "overall_error",
    "pairs_needed",
    "power_of",
    "sigma_upper",
]
