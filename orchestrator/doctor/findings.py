"""``Finding``: what one check found, and what to do about it. Knows no host and no printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.errors import OrchError

Status = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the check; stable, for machines too. A target of several files has one of the same name for each.
        status: ``fail`` when orch cannot work so; ``warn`` when it can, and somebody should know.
        text: one line with the values.
        next_step: what to run or to edit; always there with ``fail``.
        evidence: lines that prove it.
    """

    name: str
    status: Status
    text: str
    next_step: str | None = None
    evidence: tuple[str, ...] = ()


def ok(name: str, text: str) -> Finding:
    """As it should be."""
    return Finding(name, "ok", text)


def warn(name: str, text: str, next_step: str | None = None, evidence: Sequence[str] = ()) -> Finding:
    """It works, and somebody should know."""
    return Finding(name, "warn", text, next_step, tuple(evidence))


def fail(name: str, text: str, next_step: str, evidence: Sequence[str] = ()) -> Finding:
    """orch cannot work so."""
    return Finding(name, "fail", text, next_step, tuple(evidence))


def skipped(name: str, text: str) -> Finding:
    """Not looked at, and why."""
    return Finding(name, "skipped", text)


def failed_by(name: str, error: OrchError, next_step: str) -> Finding:
    """A failure that one of orch's errors already puts into words.

    Args:
        next_step: where the error names none.
    """
    return fail(name, error.message, error.next_step or next_step, error.evidence)


def guarded(name: str, check: Callable[[], Finding], next_step: str) -> Finding:
    """The check's finding; what it raises of orch's errors is a failure, so that the next check can follow."""
    try:
        return check()
    except OrchError as exc:
        return failed_by(name, exc, next_step)
