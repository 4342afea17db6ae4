"""``orch selfcheck``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, json_option
from orchestrator.cli.output import Output
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.simulation import Check

TITLES = {
    "usual": "usual ways: false positives at a nominal 5 %, or power",
    "planned": "planned experiments: error rates and power",
    "exact": "numbers worked out",
}


@click.command("selfcheck")
@click.option("--full", "is_full", is_flag=True, help="400,000 trials a rate instead of 100,000; takes minutes.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the random numbers.")
@json_option
@example("orch selfcheck", "orch selfcheck --full --seed 7")
def command(is_full: bool, seed: int, is_json: bool) -> None:
    """Simulate the statistics: how often verdicts are wrong, against what is claimed.

    Experiments are made up from a known truth, with drift, warm-up, an effect of the order and noise between starts,
    and judged by the program's own plan and analysis. Exit code 1 when a claim does not hold. Touches no host.
    """
    from orchestrator.errors import OrchError
    from orchestrator.simulation import check_all
    from orchestrator.simulation.check import N_FULL, N_QUICK

    out = Output(is_json=is_json)
    n_trials = N_FULL if is_full else N_QUICK
    checks = check_all(seed, n_trials)
    for group, title in TITLES.items():
        out.table(_table(title, [check for check in checks if check.group == group]))
        out.line()
    failed = [check.name for check in checks if not check.has_passed]
    out.line(f"{len(checks) - len(failed)} of {len(checks)} claims hold, seed {seed}")
    out.document(
        {"seed": seed, "n_trials": n_trials, "n_failed": len(failed), "checks": [asdict(check) for check in checks]}
    )
    if failed:
        raise OrchError(
            f"{len(failed)} of {len(checks)} claims do not hold: {'; '.join(failed)}",
            next_step="do not trust this installation's verdicts; try another --seed, then report it",
        )


def _table(title: str, checks: list[Check]) -> Table:
    columns = ("claim", "claimed", "found", "99.9 % interval", "trials", "holds")
    rows = [
        (
            check.name,
            check.claimed,
            _shown(check.value, check.unit),
            None if check.n_trials is None else f"{check.low:.2f} to {check.high:.2f} %",
            None if check.n_trials is None else f"{check.n_trials:,}",
            "yes" if check.has_passed else "NO",
        )
        for check in checks
    ]
    return Table(columns, rows, right=frozenset(columns[1:5]), title=title)


def _shown(value: float, unit: str) -> str:
    return f"{value:.5f} {unit}" if unit == "p" else f"{value:.2f} {unit}"
