"""What is wrong in an inventory, collected and told together. Knows no YAML and no record."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.errors import InventoryError

SHOWN_VALUE_LENGTH = 60


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong: its line (1 is the first), its dotted key (empty for the whole file), and why."""

    line: int
    key: str
    text: str

    def located(self, shown_path: str) -> str:
        """``inventory.yaml:12: targets.flash_mla.kernal: unknown key; …``."""
        return f"{shown_path}:{self.line}: {self.key + ': ' if self.key else ''}{self.text}"


def refusal(shown_path: str, problems: Iterable[Problem]) -> InventoryError:
    """The error that tells all problems: the first as its message, every one of several as evidence."""
    ordered = sorted(set(problems))
    first, others = ordered[0], ordered[1:]
    more = f" (and {len(others)} more)" if others else ""
    return InventoryError(
        first.located(shown_path) + more,
        evidence=[problem.located(shown_path) for problem in ordered] if others else (),
    )


def nearest(name: str, allowed: Sequence[str]) -> str:
    """`` (did you mean kernel?)``, or nothing when no allowed name is near."""
    matches = difflib.get_close_matches(name, allowed, n=1, cutoff=0.6)
    return f" (did you mean {matches[0]}?)" if matches else ""


def shown(value: object) -> str:
    """A value as it goes into a message: on one line, and cut when long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"
