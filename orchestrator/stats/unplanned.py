"""Measurements of two arms → ``Comparison``: values, ratios, the order of the starts, and why there is no verdict.

Pure: no I/O, and nothing is left out without a warning. A verdict needs an experiment whose order was drawn before its
first run; measurements that were taken by hand get their ratios and the reason, never a verdict.
"""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from orchestrator.errors import ComparisonError, UnknownNameError
from orchestrator.metrics import METRICS
from orchestrator.records import NOT_RECORDED, Comparison, ConcurrencyComparison, Measurement, short
from orchestrator.stats.family import MIN_PAIRS

"""With three starts an arm no exact rank or permutation test can reach 5 % at all."""

BASELINE_LETTER, VARIANT_LETTER = "A", "B"

_SHOWN_VALUE_LENGTH = 60


def compare(baseline: Sequence[Measurement], variant: Sequence[Measurement], *, metric: str) -> Comparison:
    """Sets the variant against the baseline at each concurrency.

    Starts under other conditions than the variant's newest (an older driver, another seed) are set aside with a
    warning, as long as both arms keep some; when they do not, the arms are not comparable.

    Args:
        baseline, variant: of one arm and one digest each; at least one each.
        metric: a name of ``metrics.py``.

    Returns:
        Ratios and warnings. ``verdict`` is None, and ``why_no_verdict`` and ``next_step`` say why and what to run.

    Raises:
        ComparisonError: the arms have no common conditions (names each key and both values), an arm is empty or
            mixes digests, or the two arms share a start.
        UnknownNameError: there is no such metric.
    """
    if metric not in METRICS:
        nearest = difflib.get_close_matches(metric, METRICS, n=3) or list(METRICS)
        raise UnknownNameError(f"there is no metric {metric!r}", next_step=f"try {', '.join(nearest)}")
    _refuse_mixed(baseline, variant)
    a, b, set_aside = _like_newest(baseline, variant)
    starts = _starts(a, b)
    rows = tuple(_row(cap, a, b) for cap in sorted({m.concurrency_cap for m in (*a, *b)}))
    why, next_step = _no_verdict(a, b, starts)
    return Comparison(
        metric=metric,
        baseline_arm=a[0].arm,
        variant_arm=b[0].arm,
        baseline_digest=a[0].digest,
        variant_digest=b[0].digest,
        rows=rows,
        order=tuple(letter for _, letter in starts),
        verdict=None,
        why_no_verdict=why,
        next_step=next_step,
        warnings=(*_direction_warning(metric), *set_aside, *_warnings(a, b, rows)),
    )


def comparable(a: Measurement, b: Measurement) -> None:
    """Refuses two measurements that were taken under different conditions.

    Raises:
        ComparisonError: names each key that differs, with both values; whole values are in the evidence.
    """
    differing = _differing(a, b)
    if not differing:
        return
    shown = ", ".join(f"{key} ({_shown(x)} against {_shown(y)})" for key, x, y in differing)
    raise ComparisonError(
        f"{a.arm} (trial {a.trial_id}) and {b.arm} (trial {b.trial_id}) are not comparable, these differ: {shown}",
        next_step="measure both under the same conditions, each with `orch bench`",
        evidence=[line for key, x, y in differing for line in (f"{key}:", f"  {a.arm}: {x}", f"  {b.arm}: {y}")],
    )


def _differing(a: Measurement, b: Measurement) -> list[tuple[str, str, str]]:
    """(key, value of a, value of b) of every fact in which they differ."""
    keys = sorted({*a.comparison_key, *b.comparison_key})
    pairs = ((key, a.comparison_key.get(key, NOT_RECORDED), b.comparison_key.get(key, NOT_RECORDED)) for key in keys)
    return [(key, x, y) for key, x, y in pairs if x != y]


def _shown(value: str) -> str:
    return value if len(value) <= _SHOWN_VALUE_LENGTH else value[: _SHOWN_VALUE_LENGTH - 1] + "…"


# ---- what may be compared


def _refuse_mixed(baseline: Sequence[Measurement], variant: Sequence[Measurement]) -> None:
    for role, arm in (("baseline", baseline), ("variant", variant)):
        if not arm:
            raise ComparisonError(f"nothing was measured for the {role}", next_step="run `orch bench` on it first")
        digests = sorted({m.digest for m in arm})
        if len(digests) > 1 or len({m.arm for m in arm}) > 1:
            raise ComparisonError(f"the {role} mixes arms or digests: {', '.join(map(short, digests))}")
    shared = {m.trial_id for m in baseline} & {m.trial_id for m in variant}
    if shared:
        raise ComparisonError(
            f"both arms hold the same engine start (trial {', '.join(map(str, sorted(shared)))})",
            next_step="compare two different variants",
        )


def _like_newest(
    baseline: Sequence[Measurement], variant: Sequence[Measurement]
) -> tuple[list[Measurement], list[Measurement], list[str]]:
    """Both arms under the conditions of the variant's newest start, and a warning for what was set aside."""
    reference = max(variant, key=_when)
    kept_a, kept_b = (
        sorted((m for m in arm if not _differing(m, reference)), key=_when) for arm in (baseline, variant)
    )
    if not kept_a:
        comparable(max(baseline, key=_when), reference)
    warnings = []
    for arm, kept in ((baseline, kept_a), (variant, kept_b)):
        dropped = [m for m in arm if _differing(m, reference)]
        if dropped:
            keys = sorted({key for m in dropped for key, _, _ in _differing(m, reference)})
            n_starts = len({m.trial_id for m in dropped})
            warnings.append(
                f"{n_starts} start{'s' * (n_starts != 1)} of {kept[0].arm} set aside, taken under other conditions"
                f" ({', '.join(keys)} differ{'s' * (len(keys) == 1)}): trial "
                + ", ".join(map(str, sorted({m.trial_id for m in dropped})))
            )
    return kept_a, kept_b, warnings


def _when(measurement: Measurement) -> tuple[datetime, int]:
    started_at = datetime.fromisoformat(measurement.started_at.replace("Z", "+00:00"))
    return (started_at if started_at.tzinfo else started_at.replace(tzinfo=timezone.utc)), measurement.trial_id


# ---- values


def _row(cap: int, a: Sequence[Measurement], b: Sequence[Measurement]) -> ConcurrencyComparison:
    baseline_values = tuple(m.value for m in a if m.concurrency_cap == cap)
    variant_values = tuple(m.value for m in b if m.concurrency_cap == cap)
    return ConcurrencyComparison(cap, baseline_values, variant_values, _ratio(baseline_values, variant_values))


def _ratio(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Geometric mean of the variant ÷ that of the baseline; None without values or where one has no logarithm."""
    if not baseline or not variant or min(*baseline, *variant) <= 0:
        return None
    return math.exp(_mean_log(variant) - _mean_log(baseline))


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)


# ---- the order of the starts

_Start = tuple[int, str]
"""(trial, letter of its arm)."""


def _starts(a: Iterable[Measurement], b: Iterable[Measurement]) -> list[_Start]:
    """Every start of both arms once, by time."""
    lettered = {(_when(m), BASELINE_LETTER) for m in a} | {(_when(m), VARIANT_LETTER) for m in b}
    return [(trial_id, letter) for (_, trial_id), letter in sorted(lettered)]


def _complete_pairs(
    starts: Sequence[_Start], a: Sequence[Measurement], b: Sequence[Measurement]
) -> list[tuple[str, str]]:
    """Neighbours in time of different arms, no start used twice, that both have every concurrency compared."""
    shared = {m.concurrency_cap for m in a} & {m.concurrency_cap for m in b}
    measured: dict[int, set[int]] = {}
    for m in (*a, *b):
        measured.setdefault(m.trial_id, set()).add(m.concurrency_cap)
    pairs, i = [], 0
    while i + 1 < len(starts):
        (first, first_letter), (second, second_letter) = starts[i], starts[i + 1]
        if first_letter != second_letter and shared and shared <= measured[first] & measured[second]:
            pairs.append((first_letter, second_letter))
            i += 2
        else:
            i += 1
    return pairs


def _no_verdict(a: Sequence[Measurement], b: Sequence[Measurement], starts: Sequence[_Start]) -> tuple[str, str]:
    """Why there is no verdict, and what to run."""
    pairs = _complete_pairs(starts, a, b)
    what_to_run = _what_to_run(b[0].arm, sorted({m.concurrency_cap for m in (*a, *b)}))
    imbalance = _imbalance("".join(letter for _, letter in starts), pairs, a[0].arm, b[0].arm)
    if len(pairs) >= MIN_PAIRS and imbalance is None:
        return (
            f"verdicts need a planned experiment, whose order is drawn and stored before the first start; these"
            f" {len(pairs)} complete pairs are counterbalanced, but their order was chosen by hand",
            f"{what_to_run}; until then report the ratios together with the order of the starts",
        )
    reasons = []
    if len(pairs) < MIN_PAIRS:
        reasons.append(
            f"{len(pairs)} complete pair{'s' * (len(pairs) != 1)} (a start of {a[0].arm} beside a start of {b[0].arm},"
            f" both with every concurrency compared), at least {MIN_PAIRS} are needed"
        )
    if imbalance is not None:
        reasons.append(f"not counterbalanced: {imbalance}")
    return "; ".join(reasons), what_to_run


def _imbalance(order: str, pairs: Sequence[tuple[str, str]], a: str, b: str) -> str | None:
    """What is wrong with the order of the starts; None when as many pairs began with one arm as with the other."""
    n_ab = sum(pair == (BASELINE_LETTER, VARIANT_LETTER) for pair in pairs)
    n_ba = len(pairs) - n_ab
    if pairs and n_ab == n_ba:
        return None
    legend = f'the order of starts was "{order}" ({BASELINE_LETTER} = {a}, {VARIANT_LETTER} = {b})'
    if order == "".join(sorted(order)):
        return (
            f"{legend}, all {BASELINE_LETTER} before all {VARIANT_LETTER}: a slow change of the machine looks the same"
        )
    if order == "".join(sorted(order, reverse=True)):
        return (
            f"{legend}, all {VARIANT_LETTER} before all {BASELINE_LETTER}: a slow change of the machine looks the same"
        )
    return f"{legend}, {n_ab} pair{'s' * (n_ab != 1)} began with {BASELINE_LETTER} and {n_ba} with {VARIANT_LETTER}"


def _what_to_run(variant: str, concurrencies: Sequence[int]) -> str:
    caps = ",".join(map(str, concurrencies))
    return f"`orch run {shlex.quote(variant)} --concurrency {caps}` plans and makes the starts that a verdict needs"


# ---- warnings


def _direction_warning(metric: str) -> list[str]:
    direction = METRICS[metric].direction
    if direction == "lower":
        return [f"{metric}: lower is better, so a ratio below 1 is a gain"]
    if direction == "none":
        return [f"{metric} is a count or a fact: no direction is better"]
    return []


def _warnings(a: Sequence[Measurement], b: Sequence[Measurement], rows: Sequence[ConcurrencyComparison]) -> list[str]:
    warnings = []
    unknown = sorted(key for key, value in b[-1].comparison_key.items() if value == NOT_RECORDED)
    if unknown:
        warnings.append(f"not recorded for either arm, so nobody knows whether it agrees: {', '.join(unknown)}")
    if a[0].digest == b[0].digest:
        warnings.append(f"both arms are the same bytes ({short(a[0].digest)}): every difference is noise")
    for arm in (a, b):
        if len({m.trial_id for m in arm}) == 1:
            warnings.append(f"{arm[0].arm} was started once: the noise between two starts cannot be seen")
    for row in rows:
        warnings.extend(
            _row_warnings(row, a[0].arm, b[0].arm, len({m.trial_id for m in a}), len({m.trial_id for m in b}))
        )
    return warnings


def _row_warnings(row: ConcurrencyComparison, a: str, b: str, n_starts_a: int, n_starts_b: int) -> list[str]:
    warnings = []
    for arm, values, n_starts in ((a, row.baseline_values, n_starts_a), (b, row.variant_values, n_starts_b)):
        if len(values) < n_starts:
            warnings.append(
                f"concurrency {row.concurrency_cap}: {len(values)} of {n_starts} starts of {arm} have a value"
            )
    if row.ratio is None and row.baseline_values and row.variant_values:
        warnings.append(f"concurrency {row.concurrency_cap}: a value is not above 0, so there is no ratio")
    return warnings
