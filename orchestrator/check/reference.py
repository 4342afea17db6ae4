"""What a reference command said of a variant, read from its exit code and from the JSON document that it printed.

Pure. The document is ``{"passed": bool, "results": [{"name": str, "passed": bool, "problem": str | null, …}]}``; every
key is optional, others are kept as they are, and a command that prints none is judged by its exit code alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.records import short
from orchestrator.verdicts import RemoteFinding

MAX_FAILURES = 10
MAX_DETAIL_LENGTH = 300
N_EVIDENCE_LINES = 25
MAX_LINE_LENGTH = 1000
GRAPH_PREFIX = "CUDA graph"


def read_document(seen: Mapping[str, Any]) -> dict[str, Any] | None:
    """The JSON object that is all of standard output, or its last line; None when there is none, or it was cut.

    Numbers that JSON does not know (``NaN``, ``Infinity``) become text.
    """
    text = seen["stdout"].strip()
    if not seen["is_whole"] or not text:
        return None
    for candidate in (text, text.splitlines()[-1]):
        try:
            document = json.loads(candidate, parse_constant=str)
        except (ValueError, RecursionError):
            continue
        return document if isinstance(document, dict) else None
    return None


def reference_findings(
    seen: Mapping[str, Any], document: Mapping[str, Any] | None, digest: str, timeout_s: float
) -> list[RemoteFinding]:
    """A summary, one finding for each failed result up to ``MAX_FAILURES``, and whether a CUDA graph could be made.

    Args:
        seen: how the command ended. digest: of the file that it had to judge.
    """
    results = _results(document)
    graphs = [one for one in results if one["name"].startswith(GRAPH_PREFIX)]
    failed = [one for one in results if not one["passed"] and one not in graphs]
    findings = [_summary(seen, document, results, digest, timeout_s)]
    findings += [RemoteFinding(_name(one), False, _problem(one)) for one in failed[:MAX_FAILURES]]
    if len(failed) > MAX_FAILURES:
        findings.append(RemoteFinding("more", False, f"{len(failed) - MAX_FAILURES} more results failed"))
    return [*findings, _graph_finding(graphs, document)]


def _results(document: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The results that have a name and say whether they passed."""
    results = (document or {}).get("results")
    return [
        one
        for one in (results if isinstance(results, list) else [])
        if isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("passed"), bool)
    ]


def _name(result: Mapping[str, Any]) -> str:
    config = result.get("config")
    return f"{result['name']} [{config}]" if isinstance(config, str) else str(result["name"])


def _problem(result: Mapping[str, Any]) -> str:
    return one_line(result.get("problem")) or "failed, without a reason"


def one_line(text: object) -> str:
    """The first line of a text, cut where it is long; empty for anything else."""
    line = next(iter(text.strip().splitlines()), "") if isinstance(text, str) else ""
    return line if len(line) <= MAX_DETAIL_LENGTH else line[: MAX_DETAIL_LENGTH - 1] + "…"


def _summary(
    seen: Mapping[str, Any],
    document: Mapping[str, Any] | None,
    results: Sequence[Mapping[str, Any]],
    digest: str,
    timeout_s: float,
) -> RemoteFinding:
    """The command as a whole."""
    printed = [] if document is not None else seen["stdout"].splitlines()
    evidence = tuple(line[:MAX_LINE_LENGTH] for line in [*printed, *seen["stderr"]][-N_EVIDENCE_LINES:])
    why_not = _why_not(seen, document, digest, timeout_s)
    words = [why_not] if why_not else []
    if results:
        n_passed = sum(one["passed"] for one in results)
        words.append(f"{n_passed} of {len(results)} cases" + _largest_errors(results))
    elif not why_not:
        words.append("exit code 0")
    took = f" in {seen['elapsed_s']:.1f} s"
    return RemoteFinding("reference", why_not is None, "; ".join(words) + took, evidence if why_not else ())


def _why_not(seen: Mapping[str, Any], document: Mapping[str, Any] | None, digest: str, timeout_s: float) -> str | None:
    """Why the variant is not right; None when it is."""
    document = document or {}
    judged = document.get("digest")
    if seen["exit_code"] is None:
        return f"did not end within {timeout_s:g} s and was killed"
    if seen["signal"]:
        return f"killed by {seen['signal']}"
    if isinstance(judged, str) and judged.startswith("sha256:") and judged != digest:
        return f"judged another file: {short(judged)}, the variant's is {short(digest)}"
    if seen["exit_code"]:
        last = next((line for line in reversed(seen["stderr"]) if line.strip()), "")
        reason = one_line(document.get("problem")) or ("" if _results(document) else one_line(last))
        return f"exit code {seen['exit_code']}" + (f": {reason}" if reason else "")
    if document.get("passed") is False:
        return "exit code 0, but its document says that it did not pass"
    return None


def _largest_errors(results: Sequence[Mapping[str, Any]]) -> str:
    """``, largest error out 2.5e-03, lse 4.0e-07`` of the results' ``out_error`` and ``lse_error``, where given."""
    words = []
    for name in ("out", "lse"):
        errors = [one.get(f"{name}_error") for one in results]
        numbers = [error for error in errors if isinstance(error, (int, float)) and not isinstance(error, bool)]
        if numbers:
            words.append(f"{name} {max(numbers):.1e}")
    return ", largest error " + ", ".join(words) if words else ""


def _graph_finding(graphs: Sequence[Mapping[str, Any]], document: Mapping[str, Any] | None) -> RemoteFinding:
    """Whether the kernel can be captured in a CUDA graph and replayed, as the results say whose names begin so."""
    failed = next((one for one in graphs if not one["passed"]), None)
    if failed:
        return RemoteFinding(GRAPH_PREFIX, False, f"{_name(failed)}: {_problem(failed)}")
    if graphs:
        return RemoteFinding(GRAPH_PREFIX, True, f"{len(graphs)} of {len(graphs)} replays right")
    device = (document or {}).get("device")
    if isinstance(device, str) and not device.startswith("cuda"):
        return RemoteFinding(GRAPH_PREFIX, None, f"not tried: no CUDA GPU on the host (the command ran on {device})")
    return RemoteFinding(GRAPH_PREFIX, None, "not tried: the reference command reports no CUDA graph case")
