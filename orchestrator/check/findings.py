"""The words that findings about configs share: how a config is named, how a list is read out. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.verdicts import ConfigReport, SentenceKind

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about one architecture, before it is known whether it holds on the others too."""

    kind: SentenceKind
    text: str
    is_fatal: bool = False


def config_named(report: ConfigReport) -> str:
    """``config 2 (BLOCK_T=32 num_warps=4 num_stages=2)``."""
    return f"config {report.index} ({report.config.words})"


def configs_named(reports: Sequence[ConfigReport]) -> str:
    """One config with its knobs, several by their numbers alone: ``configs 0, 1 and 4``."""
    if len(reports) == 1:
        return config_named(reports[0])
    return f"configs {listed(str(report.index) for report in reports)}"


def listed(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def counted(number: int) -> str:
    """``no``, ``one`` … ``nine``, ``10``."""
    return _COUNTS[number] if number < len(_COUNTS) else str(number)


def distinct_launches(reports: Iterable[ConfigReport]) -> dict[tuple[object, ...], list[ConfigReport]]:
    """Launches that differ, each with the configs that make it; configs that cannot launch make none."""
    launches: dict[tuple[object, ...], list[ConfigReport]] = {}
    for report in reports:
        if report.launch_key is not None and report.can_launch is not False:
            launches.setdefault(report.launch_key, []).append(report)
    return launches
