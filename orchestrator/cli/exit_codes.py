"""The one place where errors become exit codes."""

from __future__ import annotations

from orchestrator.errors import InterruptedError_, OrchError, RevertError, UsageError, VariantError

DONE = 0
FAILED = 1
WRONG_USE = 2
NEGATIVE_VERDICT = 3
WRONG_VARIANT = 4
NOT_RESTORED = 5
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    FAILED: "failed",
    WRONG_USE: "wrong use: the command line or inventory.yaml",
    NEGATIVE_VERDICT: "the verdict is negative or inconclusive, or the file drifted (only with --exit-code)",
    WRONG_VARIANT: "the variant is wrong",
    NOT_RESTORED: "THE HOST IS NOT RESTORED",
    INTERRUPTED: "interrupted, after everything was put back",
}

_BY_ERROR: tuple[tuple[type[OrchError], int], ...] = (
    (RevertError, NOT_RESTORED),
    (VariantError, WRONG_VARIANT),
    (UsageError, WRONG_USE),
    (InterruptedError_, INTERRUPTED),
)


def exit_code_of(error: OrchError) -> int:
    """The exit code of an error: that of its nearest listed ancestor, 1 for every other."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)
