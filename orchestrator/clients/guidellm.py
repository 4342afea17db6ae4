"""Adapter of ``guidellm run`` (0.7 or later).

Its prompts are made-up text of so many tokens, not token ids. It does not write single gaps between chunks, so orch's
ITL is not measured; its "inter-token latency" of a request is orch's TPOT.

Its own summary leaves out requests: its clock stops at the end of the request that its scheduler heard of last, and
what another of its processes ended after that moment is not in its numbers, nor in its totals (seen: 3 of 8). So the
numbers are those of its records of single requests, all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar

from orchestrator.clients.driven import Ask, Candidate, DrivenClient, Reading, with_verb
from orchestrator.clients.judging import refuse_constant
from orchestrator.clients.pooling import statistics_of
from orchestrator.clients.reading import finite, finite_or_none
from orchestrator.records import Engine, RequestRecord, Workload

VERB = ("run",)
KINDS = ("successful", "errored", "incomplete")
_QUANTITIES = {
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2el_ms": ("request_latency", 1000.0),
}
"""orch's quantity → GuideLLM's of a request and the factor to milliseconds."""


class GuidellmClient(DrivenClient):
    """GuideLLM."""

    name = "guidellm"
    files: ClassVar[Mapping[str, str]] = {"result": "benchmarks.json"}

    def candidates(self, workload: Workload, engine: Engine) -> Sequence[Candidate]:
        """What the inventory says."""
        return [with_verb(workload.client_command, VERB)]

    def arguments(self, ask: Ask) -> Sequence[str]:
        """End of sequence is ignored by itself where the output length is given. The first error ends the run."""
        workload = ask.workload
        backend = {
            "kind": "openai_http",
            "target": ask.base_url,
            **({"model": ask.engine.model} if ask.engine.model else {}),
            "request_format": "/v1/completions",
            "timeout": workload.request_timeout_s,
            "extras": {"body": {"temperature": 0}},
        }
        tokenizer = {"kind": "hf_auto", "model": workload.tokenizer}
        return [
            *("--backend", json.dumps(backend)),
            *("--tokenizer", json.dumps(tokenizer)),
            *("--profile", json.dumps({"kind": "concurrent", "streams": [ask.concurrency]})),
            *("--constraint", f"kind=max_requests,count={ask.n_requests}"),
            *("--constraint", "kind=max_errors,count=1"),
            "--data",
            f"kind=synthetic_text,prompt_tokens={workload.input_tokens},output_tokens={workload.output_tokens}",
            # all prompts before the run: else a process of its own makes up to 4,096 of them while the load is measured
            *("--data-loader", f"kind=pytorch,samples={ask.n_requests}"),
            *("--seed", f"kind=static,value={ask.seed}"),
            *("--output", f"kind=json,path={ask.folder}/{self.files['result']}"),
            "--disable-console-interactive",
        ]

    def read(self, files: Mapping[str, str]) -> Reading:
        """The one benchmark of the file. What the limit cut off (``incomplete``) is a failure."""
        benchmarks = json.loads(files["result"], parse_constant=refuse_constant)["benchmarks"]
        if len(benchmarks) != 1:
            raise ValueError(f"{len(benchmarks)} benchmarks instead of 1")
        (one,) = benchmarks
        totals = (one.get("scheduler_metrics") or {}).get("requests_made") or one["metrics"]["request_totals"]
        n_cut = int(totals.get("incomplete") or 0)
        rows = sorted(_rows(one["requests"]), key=lambda row: float(row[1].get("request_start_time") or 0.0))
        good = [row for kind, row in rows if kind == "successful"]
        zero_s = float(rows[0][1].get("request_start_time") or 0.0) if rows else 0.0
        return Reading(
            n_ok=int(totals["successful"]),
            n_failed=int(totals["errored"]) + n_cut,
            n_output_tokens=sum(int(row.get("output_tokens") or 0) for row in good),
            metrics=_metrics(good),
            requests=tuple(_request(i, kind, row, zero_s) for i, (kind, row) in enumerate(rows)),
            ttft_ms=[finite_or_none(row.get("time_to_first_token_ms")) for _, row in rows],
            texts=[row.get("output") for _, row in rows],
            doubts=[f"{n_cut} requests were cut off by GuideLLM's own limit"] if n_cut else [],
            started_at=_iso(min((row["request_start_time"] for row in good), default=None)),
            ended_at=_iso(max((row["request_end_time"] for row in good), default=None)),
        )


def _rows(requests: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in KINDS:
        for row in requests.get(kind) or ():
            yield kind, row


def _request(i: int, kind: str, row: Mapping[str, Any], zero_s: float) -> RequestRecord:
    """One record. Its position is the order of sending: GuideLLM keeps no other, so texts cannot be compared by it."""
    info = row["info"]
    times = info["timings"]
    error = None if kind == "successful" else _error(str(info.get("error") or kind))
    return RequestRecord(
        i=i,
        sent_s=_since(zero_s, times.get("request_start")),
        first_chunk_s=_since(zero_s, times.get("first_token_iteration")),
        last_chunk_s=_since(zero_s, times.get("last_token_iteration")),
        n_input_tokens=row.get("prompt_tokens"),
        n_output_tokens=row.get("output_tokens"),
        n_chunks=int(times.get("token_iterations") or 0),
        itl_ms=(),
        error=error,
        text_digest=None,
    )


def _error(text: str) -> str:
    """``ReadTimeout('')`` and the like, exceptions as Python shows them: their name, then their first line."""
    shown = re.fullmatch(r"""(\w+)\(["']?(.*?)["']?\)""", text, re.DOTALL)
    if shown is None:
        return text
    detail = shown[2].replace("\\n", "\n").partition("\n")[0]
    return f"{shown[1]}: {detail}" if detail else shown[1]


def _since(zero_s: float, moment_s: object) -> float | None:
    return None if moment_s is None else finite(moment_s) - zero_s


def _metrics(good: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Of the records of good requests; empty of none."""
    if not good:
        return {}
    starts, ends = ([finite(row[f"request_{edge}_time"]) for row in good] for edge in ("start", "end"))
    duration_s = max(ends) - min(starts)
    n_tokens = sum(int(row.get("output_tokens") or 0) for row in good)
    found: dict[str, float | None] = {"duration_s": duration_s}
    if duration_s > 0:
        found |= {"output_tokens_per_s": n_tokens / duration_s, "requests_per_s": len(good) / duration_s}
    for ours, (theirs, factor) in _QUANTITIES.items():
        found |= statistics_of(ours, [factor * finite(row[theirs]) for row in good if row.get(theirs) is not None])
    return found


def _iso(seconds: object) -> str | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(finite(seconds), timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
