"""What people do without a plan, on the same made-up machine: how often each way finds a difference.

Each function returns one bool a trial: found. With no true difference that is a false positive.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from orchestrator.simulation.noise import Noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

N_SHARING = 250
"""Trials that share their resamples, to save time."""

STEADY = Noise(ramp=-0.03, position=0, boot=0.01, run=0)
"""A slow change of 3 % and a scatter of 1 %."""


def all_a_then_all_b(n: int, n_trials: int, generator: np.random.Generator) -> Bools:
    """n starts of A, then n of B, under a steady change of 3 % and a scatter of 1 %; Welch's t test."""
    x = generator.normal(0, STEADY.sigma, (n_trials, 2 * n)) + STEADY.drift(2 * n)
    return _welch_p(x[:, :n], x[:, n:]) < 0.05


def always_ab(noise: Noise, n: int, n_trials: int, generator: np.random.Generator) -> Bools:
    """AB AB AB: the variant always second; paired t test."""
    x = _series("AB" * n, noise, 0.0, n_trials, generator)
    return _one_sample_p(x[:, 1::2] - x[:, ::2]) < 0.05


def fixed_abba(noise: Noise, effect: float, n: int, n_trials: int, generator: np.random.Generator) -> Bools:
    """AB BA AB BA: balanced, but a paired t test that knows nothing of the order."""
    x = _series(("ABBA" * n)[: 2 * n], noise, effect, n_trials, generator)
    d = x[:, 1::2] - x[:, ::2]
    d[:, 1::2] *= -1
    return _one_sample_p(d) < 0.05


def unpaired_ranks(noise: Noise, effect: float, n_trials: int, generator: np.random.Generator) -> Bools:
    """The same six pairs, AB BA, by an exact two-sided Mann-Whitney test: U ≤ 5 or ≥ 31 of 36 at 5 %."""
    import numpy as np

    order = "ABBA" * 3
    x = _series(order, noise, effect, n_trials, generator)
    a, b = ([i for i, arm in enumerate(order) if arm == name] for name in "AB")
    u = np.sum(x[:, b][:, :, None] > x[:, a][:, None, :], axis=(1, 2))
    return np.asarray((u <= 5) | (u >= 31))


def runs_as_replicates(n_trials: int, generator: np.random.Generator) -> Bools:
    """One start a side, ten loads in each counted as replicates; SD of starts 1 %, of loads 0.5 %; Welch's t test."""
    a, b = (generator.normal(0, 0.01, (n_trials, 1)) + generator.normal(0, 0.005, (n_trials, 10)) for _ in "AB")
    return _welch_p(a, b) < 0.05


def bootstrap(n: int, n_trials: int, generator: np.random.Generator) -> Bools:
    """The 2.5 and 97.5 % points of the mean of n pairs, resampled."""
    import numpy as np

    found = []
    for _ in range(math.ceil(n_trials / N_SHARING)):
        weights = generator.multinomial(n, [1 / n] * n, size=2001) / n
        low, high = np.quantile(generator.normal(size=(N_SHARING, n)) @ weights.T, [0.025, 0.975], axis=1)
        found.append((low > 0) | (high < 0))
    return np.asarray(np.concatenate(found)[:n_trials])


def peeking(n_trials: int, generator: np.random.Generator) -> Bools:
    """p < 0.05 looked at after each pair from 3 to 10, stopping at the first."""
    import numpy as np

    d = generator.normal(size=(n_trials, 10))
    return np.asarray(np.any([_one_sample_p(d[:, :n]) < 0.05 for n in range(3, 11)], axis=0))


def keep_if_better(n_trials: int, generator: np.random.Generator) -> Bools:
    """One run a side, kept when it is 1 % better; scatter 1 %."""
    import numpy as np

    a, b = generator.normal(0, 0.01, (2, n_trials))
    return np.asarray(b - a > 0.01)


def any_of_four(noise: Noise, n_trials: int, generator: np.random.Generator) -> Bools:
    """Four concurrencies in the same six pairs, any of them below 0.05; paired t test."""
    import numpy as np

    boot = generator.normal(0, noise.boot, (n_trials, 6, 1))
    d = math.sqrt(2) * (boot + generator.normal(0, noise.run, (n_trials, 6, 4)))
    return np.asarray(np.any([_one_sample_p(d[:, :, i]) < 0.05 for i in range(4)], axis=0))


# ---- tests


def _series(order: str, noise: Noise, effect: float, n_trials: int, generator: np.random.Generator) -> Floats:
    """ln(value) of starts in this order, in pairs, with the machine's drift and the pair's second position."""
    import numpy as np

    fixed = [noise.position * (i % 2) + effect * (arm == "B") for i, arm in enumerate(order)]
    x = generator.normal(0, noise.sigma, (n_trials, len(order))) + noise.drift(len(order)) + np.array(fixed)
    return np.asarray(x)


def _one_sample_p(d: Floats) -> Floats:
    import numpy as np
    from scipy import special

    n = d.shape[1]
    t = d.mean(axis=1) / (d.std(axis=1, ddof=1) / math.sqrt(n))
    return np.asarray(2 * special.stdtr(n - 1, -np.abs(t)))


def _welch_p(a: Floats, b: Floats) -> Floats:
    import numpy as np
    from scipy import special

    n = a.shape[1]
    v, w = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / n
    t = (b.mean(axis=1) - a.mean(axis=1)) / np.sqrt(v + w)
    return np.asarray(2 * special.stdtr((v + w) ** 2 / ((v**2 + w**2) / (n - 1)), -np.abs(t)))
