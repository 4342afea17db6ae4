"""An error in one line: what a person needs of a compiler's page of text. Prints nothing."""

from __future__ import annotations

import re
from pathlib import Path

_TOOL_ERROR = re.compile(
    r"""^.*?(?:\berror\s*:|\bfatal\s*:|LLVM\ ERROR:)\s*(?P<said>.+)$  # MLIR, ptxas, LLVM
    |(?P<file>\w+\.(?:cpp|h)):(?P<line>\d+):.*\b(?P<assertion>Assertion\ .+)$  # C++""",
    re.MULTILINE | re.VERBOSE,
)
_SAYS_NOTHING = ("Failures have been detected while processing an MLIR pass pipeline",)
_LONGEST = 400


class Failure(Exception):
    """A job that cannot be done, told in one line.

    Attributes:
        kind: ``compile`` or ``import``, as the protocol names them.
    """

    def __init__(self, text: str, kind: str = "compile") -> None:
        super().__init__(text)
        self.kind = kind


def one_line(text: str) -> str:
    """The text without line breaks and runs of spaces, cut where it gets too long to read."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"


def reason_in(log: Path) -> str | None:
    """The first error that the compiler's own parts wrote to a child's log; None when there is none."""
    try:
        return _first_tool_error(log.read_text(errors="replace"))
    except OSError:
        return None


def failure_of(error: BaseException, log: Path) -> Failure:
    """What an exception out of Triton comes to.

    Args:
        log: of the child: passes say there what was wrong, and nothing in the exception.
    """
    if isinstance(error, Failure):
        return error
    compilation_error = _innermost_compilation_error(error)
    if compilation_error is not None:
        return Failure(_of_compilation_error(compilation_error))
    text = str(error)
    if type(error).__name__ == "PTXASError":
        said = text.partition("stderr:")[2]
        return Failure(f"ptxas: {_first_tool_error(said) or one_line(text)}")
    if any(words in text for words in ("PassManager::run failed", "Parse MLIR file failed")):
        reason = reason_in(log)
        return Failure(one_line(text if reason is None else f"{text} {reason}"))
    return Failure(one_line(f"{type(error).__name__}: {text}"))


def _first_tool_error(text: str) -> str | None:
    for found in _TOOL_ERROR.finditer(text):
        said = found["said"] or f"{found['assertion']} ({found['file']}:{found['line']})"
        if not said.startswith(_SAYS_NOTHING):
            return one_line(said)
    return None


def _innermost_compilation_error(error: BaseException | None) -> BaseException | None:
    """The one raised where the mistake is; those around it stand at the calls of the function that holds it."""
    innermost = None
    while error is not None:
        if hasattr(error, "error_message") and hasattr(error, "node"):
            innermost = error
        error = error.__cause__
    return innermost


def _of_compilation_error(error: BaseException) -> str:
    message = getattr(error, "error_message", None) or type(error).__name__
    lines = (getattr(error, "src", None) or "").splitlines()
    number = getattr(getattr(error, "node", None), "lineno", 0)
    if not 0 < number <= len(lines):
        return one_line(str(message))
    return f"{one_line(str(message))} at `{one_line(lines[number - 1])}`"
