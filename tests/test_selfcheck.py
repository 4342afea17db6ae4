"""Every number that the documents state is simulated or worked out again, and a false one is found."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.cli import run_command as run
from orchestrator.simulation import check as checking
from orchestrator.simulation import check_all, planned
from orchestrator.simulation.check import check, wilson
from orchestrator.simulation.claims import claims
from orchestrator.simulation.noise import EVERY, Noise, experiments, plans

METHOD = Path(__file__).parents[1] / "docs" / "method.md"


@pytest.mark.parametrize(("n_variants", "n_concurrencies", "effect"), [(1, 1, 0.0), (1, 3, 0.02), (2, 4, 0.015)])
def test_what_is_simulated_is_what_decides(n_variants: int, n_concurrencies: int, effect: float) -> None:
    """The simulation and ``stats.analyse`` agree on every verdict, ship and end of random experiments."""
    generator = np.random.default_rng(n_variants)
    effects = {"V1": {EVERY: effect}, "V2": {1: -effect}}
    for plan in plans(generator, n_variants, n_concurrencies, (6, 8, 10), 2):
        logs = experiments(plan, Noise(), effects, 8, generator)
        assert planned.agreement(plan, logs).all()


def test_they_would_be_seen_to_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is not blind: a simulation that never gives up differs from the analysis."""
    generator = np.random.default_rng(0)
    plan = next(plans(generator, 1, 1, (6, 8, 10), 1))
    logs = experiments(plan, Noise(), {}, 40, generator)
    assert planned.agreement(plan, logs).all()
    monkeypatch.setattr(planned, "LEAST_CHANCE", -1.0)
    assert not planned.agreement(plan, logs).all()


@pytest.mark.slow
def test_every_claim_holds() -> None:
    """The quick form of the self-check passes."""
    failed = [one for one in check_all(seed=11, n_trials=20_000) if not one.has_passed]
    assert not failed


def test_the_same_seed_gives_the_same_numbers() -> None:
    """And another seed others."""
    claim = next(claim for claim in claims() if claim.name.startswith("always AB"))
    assert check(claim, 5, 500) == check(claim, 5, 500)
    assert check(claim, 5, 500).value != check(claim, 6, 500).value


def test_a_false_claim_is_found() -> None:
    """A promise that is off by more than chance fails, for a rate as for an exact number."""
    by_name = {claim.name: claim for claim in claims()}
    rate = by_name["keep if 1 % better in one run"]
    assert check(rate, 1, 4000).has_passed
    assert not check(replace(rate, low=0, high=20), 1, 4000).has_passed
    exact = by_name["detectable at 80 % power, 6 pairs"]
    assert check(exact, 1, 1).has_passed
    assert not check(replace(exact, low=1.6, high=1.7), 1, 1).has_passed
    agrees = by_name["stats.analyse says what is simulated here"]
    once_off = replace(agrees, rate=lambda _, n: np.arange(n) > 0)
    assert not check(once_off, 1, 400_000).has_passed


def test_the_interval_of_a_rate() -> None:
    """Never outside 0 to 1, never without width, and around the rate."""
    for n_hits, n in ((0, 50), (50, 50), (5, 100), (1, 3)):
        low, high = wilson(n_hits, n)
        assert 0 <= low <= n_hits / n <= high + 1e-12 <= 1 + 1e-12 and high > low


def test_the_noise_is_what_it_says() -> None:
    """Starts of a made-up experiment have the drift, position and scatter that were asked for."""
    generator = np.random.default_rng(2)
    plan = next(plans(generator, 1, 2, (10,), 1))
    logs = experiments(plan, Noise(), {"V1": {2: 0.5}}, 20_000, generator)
    means = logs.mean(axis=0)
    expected = [
        [-0.03 * s.index / 19 - 0.01 * s.position + (0.5 if s.arm == "V1" and cap == 2 else 0.0) for cap in (1, 2)]
        for s in plan.starts
    ]
    assert means == pytest.approx(np.array(expected), abs=0.0004)
    assert logs.std(axis=0) == pytest.approx(np.full((20, 2), math.hypot(0.007, 0.005)), rel=0.03)
    assert np.corrcoef(logs[:, 0, 0], logs[:, 0, 1])[0, 1] == pytest.approx(0.49 / 0.74, abs=0.03)


# ---- the command


def test_the_command_prints_every_claim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what was claimed and found; with ``--json`` as one document."""
    few = claims()[-3:]
    monkeypatch.setattr(checking, "claims", lambda: few)
    assert run(["selfcheck", "--seed", "4"]) == 0
    shown = capsys.readouterr().out
    assert all(claim.name in shown for claim in few) and "3 of 3 claims hold, seed 4" in shown
    assert run(["selfcheck", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["checks"]] == [claim.name for claim in few]
    assert (document["seed"], document["n_failed"]) == (1, 0)
    page = METHOD.with_name("json.md").read_text(encoding="utf-8")
    example = json.loads(re.findall(r"^## orch selfcheck$.*?^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    assert document.keys() == example.keys()
    assert document["checks"][0].keys() == example["checks"][0].keys()


def test_the_command_fails_with_a_claim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the table all the same, and the claim named on standard error."""
    broken = replace(claims()[-1], low=0.0, high=1.0)
    monkeypatch.setattr(checking, "claims", lambda: (broken,))
    assert run(["selfcheck"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"\bNO\b", shown.out) and broken.name in shown.err


# ---- the page


def test_the_page_states_every_claim() -> None:
    """docs/method.md has a row for each claim, with the same words and number, and none besides."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", METHOD.read_text(encoding="utf-8"), re.MULTILINE)
    stated = {(name, claimed) for name, claimed, _ in rows if name not in ("claim", "---")}
    assert {(claim.name, claim.claimed) for claim in claims()} == stated
