"""Draws docs/method.svg: how often usual ways and planned experiments are wrong, and what they find.

    python -m benchmarks.method_figure docs/method.svg

The same seed gives the same bytes with the same versions of numpy and matplotlib. Takes about half a minute.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np

from orchestrator.simulation import usual_ways
from orchestrator.simulation.check import check
from orchestrator.simulation.claims import LOOKS, MACHINE, claims
from orchestrator.simulation.noise import EVERY, experiments, plans
from orchestrator.simulation.planned import FASTER, judge

N_TRIALS, SEED = 40_000, 1
USUAL, PLANNED, INK = "#c2603f", "#1f6f8b", "#222222"

BARS = (
    ("all A, then all B, 3 % drift, Welch t, n = 6", "all A, then all B"),
    ("ten loads of one start as replicates", "loads of one start as replicates"),
    ("always AB, n = 6", "always A before B"),
    ("bootstrap of pairs, n = 3", "bootstrap of 3 pairs"),
    ("keep if 1 % better in one run", "keep if 1 % better in one run"),
    ("looking after every pair, 3 to 10", "a look after every pair"),
    ("any of four concurrencies", "any of four concurrencies"),
    ("6 pairs, one look: false FASTER or SLOWER", "orch: 6 pairs, one look"),
    ("looks 6, 8, 10: false FASTER or SLOWER", "orch: looks at 6, 8, 10"),
    ("2 variants × 4 concurrencies, three looks: any false", "orch: 2 variants × 4 concurrencies"),
)
"""(claim, as written beside its bar)."""

GAINS_PCT = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)


def main() -> None:
    """Draws both panels into the file named on the command line."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"svg.hashsalt": "orch", "font.size": 10, "svg.fonttype": "path", "text.color": INK, "axes.labelcolor": INK}
    )
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.15, 1), layout="constrained")
    draw_errors(left)
    draw_power(right)
    figure.savefig(sys.argv[1], metadata={"Date": None})


def draw_errors(axes: Any) -> None:
    """False positives, one bar a way, with the 5 % that each of them claims."""
    by_name = {claim.name: claim for claim in claims()}
    for row, (name, label) in enumerate(BARS):
        value = check(by_name[name], SEED, N_TRIALS).value
        axes.barh(row, value, color=PLANNED if label.startswith("orch") else USUAL, height=0.66)
        axes.text(max(value, 5) + 1, row, f"{value:.0f} %" if value >= 10 else f"{value:.1f} %", va="center")
    axes.axvline(5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(6, -0.9, "5 %, as claimed", va="center", fontsize=9)
    axes.set_yticks(range(len(BARS)), [label for _, label in BARS])
    axes.set(xlim=(0, 100), ylim=(len(BARS) - 0.4, -1.5), xlabel="false positives [%]")
    axes.set_title("Nothing differs, and a difference is found", fontsize=11, loc="left")
    _bare(axes)


def draw_power(axes: Any) -> None:
    """How often a true gain is found, under the same drift, position effect and noise."""
    curves: tuple[tuple[str, str, str, Callable[[float], float]], ...] = (
        ("orch: looks at 6, 8, 10", PLANNED, "-", lambda gain: _power(gain, LOOKS)),
        ("orch: 6 pairs, one look", PLANNED, "--", lambda gain: _power(gain, (6,))),
        ("6 pairs AB BA, paired t", USUAL, "-", _paired),
        ("6 pairs AB BA, Mann-Whitney", USUAL, "--", _ranks),
    )
    for label, colour, style, power in curves:
        found = [100 * power(math.log1p(gain / 100)) for gain in GAINS_PCT]
        axes.plot(GAINS_PCT, found, style, color=colour, label=label, linewidth=2)
    axes.set(xlabel="true gain [%]", ylabel="found [%]", ylim=(0, 101), xlim=(0, 3))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    axes.set_title("A gain is there, and is found", fontsize=11, loc="left")
    _bare(axes)


def _power(effect: float, looks: tuple[int, ...]) -> float:
    generator = np.random.default_rng(SEED)
    drawn = plans(generator, 1, 1, looks, 40)
    effects = {"V1": {EVERY: effect}}
    found = [judge(plan, experiments(plan, MACHINE, effects, N_TRIALS // 40, generator)).final() for plan in drawn]
    return float(np.mean(np.concatenate(found)[:, 0, 0] == FASTER))


def _paired(effect: float) -> float:
    return float(usual_ways.fixed_abba(MACHINE, effect, 6, N_TRIALS, np.random.default_rng(SEED)).mean())


def _ranks(effect: float) -> float:
    return float(usual_ways.unpaired_ranks(MACHINE, effect, N_TRIALS, np.random.default_rng(SEED)).mean())


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
