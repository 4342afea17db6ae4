"""What every adapter says in the same words: how a client ended, which requests failed, which numbers are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.clients.base import ExitEvidence, ParsedLoad

N_KINDS_TOLD = 4


class NonFiniteError(Exception):
    """NaN or an infinity stands where a measurement should."""


def refuse_constant(name: str) -> None:
    """For ``json.loads(parse_constant=…)``.

    Raises:
        NonFiniteError: always.
    """
    raise NonFiniteError(name)


def failed(reasons: Iterable[str], version: str | None = None, argv: tuple[str, ...] | None = None) -> ParsedLoad:
    """A load without a result."""
    return ParsedLoad("failed", tuple(reasons), {}, (), None, None, version, argv)


def how_it_ended(client: str, evidence: ExitEvidence, suffix: str) -> str:
    """``loadgen ended with exit code 1, without a result``."""
    if evidence.how == "deadline":
        return f"{client} was stopped at its deadline, {suffix}"
    if evidence.how == "vanished":
        return f"{client} is gone from the host, {suffix} and without an exit code"
    return f"{client} ended with exit code {evidence.exit_code}, {suffix}"


def last_words(log_tail: Sequence[str]) -> list[str]:
    """One reason with the last lines that a client wrote; none when it wrote nothing."""
    lines = [line.strip() for line in log_tail if line.strip()]
    return ["its last lines: " + " | ".join(lines[-5:])] if lines else []


def told(what: str, errors: Sequence[str], n_asked: int) -> str:
    """``3 of 48 requests failed: HTTP 500 ×3 (CUDA out of memory)``: kinds with counts, each with one example."""
    kinds: dict[str, list[str]] = {}
    for error in errors:
        kind, _, detail = error.partition(": ")
        kinds.setdefault(kind, []).append(detail)
    ranked = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    words = [
        f"{kind} ×{len(details)}" + (f" ({details[0]})" if details[0] else "")
        for kind, details in ranked[:N_KINDS_TOLD]
    ]
    rest = sum(len(details) for _, details in ranked[N_KINDS_TOLD:])
    return f"{len(errors)} of {n_asked} {what} failed: " + ", ".join(words + ([f"others ×{rest}"] if rest else []))
