"""A grid as it is typed → configs; their reports → which points are worth GPU time. Pure; compiles nothing."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.check.findings import listed
from orchestrator.errors import UnknownNameError, UsageError
from orchestrator.verdicts import ConfigReport, Constant, KernelConfig

LAUNCH_KNOBS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What every Triton kernel can be launched with, whatever its meta-parameters."""

MAX_POINTS = 4_096

_LAUNCH_VALUES: dict[str, tuple[Sequence[int], str]] = {
    "num_warps": ((1, 2, 4, 8, 16, 32), "1, 2, 4, 8, 16 or 32"),
    "num_stages": (range(1, 65), "1 to 64"),
    "num_ctas": ((1, 2, 4, 8, 16), "1, 2, 4, 8 or 16"),
    "maxnreg": (range(8, 256), "8 to 255"),
}
_SHORT = {"num_warps": "w", "num_stages": "s", "num_ctas": "c", "maxnreg": "r"}
_WORDS: dict[str, Constant] = {"True": True, "False": False, "None": None}
_EXAMPLE = "write it as num_stages=2..7 or num_warps=4,8"

Mark = Literal["new", "same", "baseline", "variant", "does not fit", "does not compile"]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One point of a grid on one architecture.

    Attributes:
        number: of the point, from 1 in the order of the grid.
        mark: ``new`` a launch of its own; ``same`` as an earlier point's; ``baseline`` as one of the baseline's;
            ``variant`` as one of the variant's own, over whose files the grid was laid.
        same_as: number of that earlier point.
    """

    number: int
    report: ConfigReport
    mark: Mark
    same_as: int | None = None

    @property
    def words(self) -> str:
        """``new``, ``= 3``, ``= baseline``, ``= variant``, ``does not fit`` or ``does not compile``."""
        if self.mark == "same":
            return f"= {self.same_as}"
        return f"= {self.mark}" if self.mark in ("baseline", "variant") else self.mark


# ---- what is typed


def parse_sweep(words: Sequence[str], constants: Iterable[str]) -> dict[str, tuple[Constant, ...]]:
    """The values of each knob, in the order typed.

    Args:
        words: one a knob: ``num_stages=2..7``, ``num_warps=4,8``, ``BLOCK_T=16,32..34``. ``..`` counts by one, with
            both ends.
        constants: names that can be swept beside ``LAUNCH_KNOBS``.

    Raises:
        UnknownNameError: there is no such knob; names the nearest.
        UsageError: a knob twice, no or impossible values, or more than ``MAX_POINTS`` points.
    """
    allowed = (*LAUNCH_KNOBS, *constants)
    sweep: dict[str, tuple[Constant, ...]] = {}
    n_points = 1
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not (name and equals and text):
            raise UsageError(f"{word!r} names no values of a knob", next_step=_EXAMPLE)
        _refuse_unknown(name, allowed)
        if name in sweep:
            raise UsageError(f"{name} is swept twice", next_step="give all of its values at once, such as 2..4,7")
        sweep[name] = _values(name, text)
        n_points *= len(sweep[name])
        if n_points > MAX_POINTS:
            raise UsageError(f"this grid has more than {MAX_POINTS:,} points", next_step="sweep fewer values")
    if not sweep:
        raise UsageError("nothing to sweep", next_step=_EXAMPLE)
    return sweep


def _refuse_unknown(name: str, allowed: Sequence[str]) -> None:
    if name not in allowed:
        nearest = difflib.get_close_matches(name, allowed, n=2) or allowed
        raise UnknownNameError(f"the kernel has no knob {name!r}", next_step=f"try {', '.join(nearest)}")


def _values(name: str, text: str) -> tuple[Constant, ...]:
    typed = [value for part in text.split(",") for value in _part_values(name, part.strip())]
    values = {repr(value): value for value in typed}  # once each; 1, 1.0 and True are three values
    if name in LAUNCH_KNOBS:
        possible, said = _LAUNCH_VALUES[name]
        wrong = [word for word, value in values.items() if not (type(value) is int and value in possible)]
        if wrong:
            raise UsageError(f"{name} cannot be {listed(wrong[:4])}", next_step=f"it can be {said}")
    return tuple(values.values())


def _part_values(name: str, text: str) -> Iterable[Constant]:
    """One value, or those of a range; a range is bounded before it is counted out."""
    ends = re.fullmatch(r"(-?\d{1,18})\s*\.\.\s*(-?\d{1,18})", text)
    if ends is None:
        if not text or ".." in text:
            raise UsageError(f"{name}={text} is no value and no range", next_step=_EXAMPLE)
        return [_value(text)]
    first, last = int(ends[1]), int(ends[2])
    if first > last:
        raise UsageError(f"the range {text} of {name} is empty", next_step=f"write {last}..{first}")
    if last - first >= MAX_POINTS:
        raise UsageError(f"the range {text} of {name} has more than {MAX_POINTS:,} values", next_step="sweep fewer")
    return range(first, last + 1)


def _value(text: str) -> Constant:
    """As Python reads it; what is neither a number nor True, False or None is a text, such as ``tl.float16``."""
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d{1,2})?", text):
        return float(text)
    return text


# ---- points


def expand(base: KernelConfig, sweep: Mapping[str, Sequence[Constant]]) -> tuple[KernelConfig, ...]:
    """Every point of the grid as a config; the knob that is named last varies fastest.

    Args:
        base: has the values of the knobs that are not swept.
        sweep: as ``parse_sweep`` gives it.
    """
    return tuple(_with(base, dict(zip(sweep, point, strict=True))) for point in itertools.product(*sweep.values()))


def _with(base: KernelConfig, values: Mapping[str, Constant]) -> KernelConfig:
    knobs: dict[str, Any] = {name: value for name, value in values.items() if name in LAUNCH_KNOBS}
    constants = {name: value for name, value in values.items() if name not in LAUNCH_KNOBS}
    return replace(base, constants={**base.constants, **constants}, **knobs)


def swept_values(config: KernelConfig, swept: Iterable[str]) -> dict[str, Constant]:
    """The values that a config has for the knobs named."""
    own: dict[str, Constant] = {
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "num_ctas": config.num_ctas,
        "maxnreg": config.maxnreg,
    }
    return {name: own[name] if name in own else config.constants.get(name) for name in swept}


def variant_name(config: KernelConfig, swept: Collection[str]) -> str:
    """A name for a variant that is this point: ``w8-s3-BLOCK_T32``, safe as a folder's name."""
    knobs = [name for name in LAUNCH_KNOBS if name in swept] + [name for name in swept if name not in LAUNCH_KNOBS]
    values = swept_values(config, knobs)
    name = "-".join(f"{_SHORT.get(knob, knob)}{value}" for knob, value in values.items())
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "point"


def mark(
    reports: Iterable[ConfigReport],
    baseline_reports: Iterable[ConfigReport],
    variant_reports: Iterable[ConfigReport] = (),
) -> tuple[SweepRow, ...]:
    """Which points are launches of their own.

    Args:
        reports: of the points; ``index`` counts from 0. Points are compared within one architecture.
        baseline_reports: of the baseline's configs. variant_reports: of the variant's own.
    """
    known: dict[object, Mark] = {report.launch_key: "variant" for report in variant_reports}
    known.update({report.launch_key: "baseline" for report in baseline_reports})
    known.pop(None, None)
    first_with: dict[tuple[object, ...], int] = {}
    rows = []
    for report in reports:
        number, launch = report.index + 1, report.launch_key
        if report.compiled.error is not None:
            rows.append(SweepRow(number, report, "does not compile"))
        elif report.can_launch is False:
            rows.append(SweepRow(number, report, "does not fit"))
        elif launch in known:
            rows.append(SweepRow(number, report, known[launch]))
        else:
            earlier = number if launch is None else first_with.setdefault(launch, number)
            rows.append(
                SweepRow(number, report, "new") if earlier == number else SweepRow(number, report, "same", earlier)
            )
    return tuple(rows)
