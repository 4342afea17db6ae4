"""``orch plan``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import example, json_option, target_option
from orchestrator.cli.output import Output
from orchestrator.cli.run import Percent
from orchestrator.cli.table import Table

if TYPE_CHECKING:
    from orchestrator.experiment.planning import Noise, Outlook


@click.command("plan")
@click.option("--effect", type=Percent(), default="2%", show_default=True, help="What should be seen.")
@click.option("--metric", "metric_name", default="output_tokens_per_s", show_default=True, help="Of which metric.")
@click.option("--workload", "workload_name", metavar="NAME", help="Which workload; the only one when left out.")
@target_option
@json_option
@click.pass_obj
@example("orch plan", "orch plan --effect 3% --metric tpot_ms_p50")
def command(
    obj: dict[str, str],
    effect: float,
    metric_name: str,
    workload_name: str | None,
    target_name: str | None,
    is_json: bool,
) -> None:
    """Tell how many pairs an effect needs, and what that costs.

    From the noise of the experiments so far, with 80 % power at 5 %. Without any, `orch run --aa` measures the noise.
    """
    from orchestrator.experiment.planning import outlook
    from orchestrator.project import Project
    from orchestrator.store import Store

    out = Output(is_json=is_json)
    project = Project.open(obj["inventory_path"])
    target = project.target(target_name)
    workload = project.workload(workload_name)
    with Store.open_read_only(project.db_path) as store:
        found = outlook(store, target.name, workload.name, metric_name, effect)
    print_outlook(out, found)
    out.document(
        {
            "target": target.name,
            "workload": workload.name,
            "metric": found.metric,
            "effect": found.effect,
            "experiments": list(found.experiments),
            "pair_s": found.pair_s(),
            "noises": [asdict(noise) for noise in found.noises],
        }
    )


def print_outlook(out: Output, found: Outlook) -> None:
    """The noise at each concurrency and what it lets be seen, then the price."""
    if not found.noises:
        out.line("no experiment has shown the noise yet")
        out.line("next: `orch run --aa --concurrency 1,8,64` measures it: the baseline against itself")
        return
    sizes = list(found.noises[0].detectable)
    columns = ["concurrency", "noise", "n", *(f"{n} pairs" for n in sizes), f"{100 * found.effect:g} % needs"]
    rows = [_row(noise, sizes) for noise in found.noises]
    title = f"{found.metric}: SD of one pair, smallest effect seen with 80 % power, pairs for {100 * found.effect:g} %"
    out.table(Table(columns, rows, right=frozenset(columns), title=title))
    names = ", ".join(map(str, found.experiments))
    out.line(f"noise from experiment{'s' * (len(found.experiments) != 1)} {names}; the range is up to its 95 % bound")
    from orchestrator.metrics import MOST_PAIRS

    pair_s = found.pair_s()
    if pair_s is not None:
        most = min(MOST_PAIRS, max(noise.pairs_needed[1] for noise in found.noises))
        out.line(
            f"a pair takes about {pair_s / 60:.1f} min of the GPU: {most} pairs about {most * pair_s / 60:.0f} min"
        )


def _row(noise: Noise, sizes: list[int]) -> list[str | int]:
    from orchestrator.metrics import needed_words, percent_words

    low, high = map(needed_words, noise.pairs_needed)
    needed = low if low == high else f"{low} to {high}"
    seen = [percent_words(noise.detectable[n]) for n in sizes]
    return [noise.concurrency, percent_words(noise.sigma_d), noise.n_pairs, *seen, needed]
