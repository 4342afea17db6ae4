"""Adapter of ``aiperf profile``.

Its own throughputs are divided by a longer time than the one from the first request to the end of the last, so they
are another quantity; orch divides AIPerf's counts by its ``benchmark_duration``. It writes no texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar

from orchestrator.clients.driven import Ask, Candidate, DrivenClient, Reading, with_verb
from orchestrator.clients.judging import refuse_constant
from orchestrator.clients.reading import finite, finite_or_none
from orchestrator.errors import LoadError
from orchestrator.records import Engine, RequestRecord, Workload

VERB = ("profile",)
_QUANTITIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "e2el_ms": "request_latency",
}
_STATISTICS = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99"}


class AiperfClient(DrivenClient):
    """AIPerf."""

    name = "aiperf"
    files: ClassVar[Mapping[str, str]] = {"result": "profile_export_aiperf.json", "records": "profile_export.jsonl"}

    def candidates(self, workload: Workload, engine: Engine) -> Sequence[Candidate]:
        """What the inventory says."""
        return [with_verb(workload.client_command, VERB)]

    def arguments(self, ask: Ask) -> Sequence[str]:
        """Tokens are counted by the server; its own warm-up is off by default."""
        workload = ask.workload
        if ask.engine.model is None:
            raise LoadError(
                f"workload {workload.name}: aiperf must name a model, and engine {ask.engine.name} has no model",
                next_step=f"set model: of engine {ask.engine.name} in inventory.yaml",
            )
        return [
            *("-m", ask.engine.model, "--url", ask.base_url, "--endpoint-type", "completions", "--streaming"),
            *(("--tokenizer", workload.tokenizer) if workload.tokenizer else ()),
            *("--concurrency", str(ask.concurrency), "--request-count", str(ask.n_requests)),
            *("--isl", str(workload.input_tokens), "--isl-stddev", "0"),
            *("--osl", str(workload.output_tokens), "--osl-stddev", "0"),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
            *("--use-server-token-count", "--random-seed", str(ask.seed), "--failed-request-threshold", "0.0"),
            *("--request-timeout-seconds", str(workload.request_timeout_s)),
            *("--export-level", "records", "--artifact-dir", ask.folder, "--ui", "none"),
        ]

    def read(self, files: Mapping[str, str]) -> Reading:
        """Metrics of the one file, requests of the other. A count that is not there is 0."""
        result, *records = (
            json.loads(text, parse_constant=refuse_constant)
            for text in (files["result"], *files["records"].splitlines())
        )
        rows = [row for row in records if _is_measured(row)]
        rows.sort(key=lambda row: (row["metadata"].get("session_num", 0), row["metadata"]["request_start_ns"]))
        starts = [int(row["metadata"]["request_start_ns"]) for row in rows]
        ends = [int(row["metadata"]["request_end_ns"]) for row in rows]
        n_ok, n_output_tokens = int(_average(result, "request_count")), int(_average(result, "total_output_tokens"))
        duration_s = finite(result["benchmark_duration"]["avg"])
        metrics: dict[str, float | None] = {
            "output_tokens_per_s": n_output_tokens / duration_s if duration_s else None,
            "requests_per_s": n_ok / duration_s if duration_s else None,
            "duration_s": duration_s,
        }
        for ours, theirs in _QUANTITIES.items():
            for statistic, key in _STATISTICS.items():
                metrics[f"{ours}_{statistic}"] = _milliseconds(result.get(theirs) or {}, key)
        return Reading(
            n_ok=n_ok,
            n_failed=int(_average(result, "error_request_count")),
            n_output_tokens=n_output_tokens,
            metrics=metrics,
            requests=tuple(_request(i, row, min(starts)) for i, row in enumerate(rows)),
            ttft_ms=[_value(row, "time_to_first_token") for row in rows],
            doubts=list(_doubts(result)),
            started_at=_iso(min(starts)) if starts else None,
            ended_at=_iso(max(ends)) if ends else None,
        )


def _is_measured(row: Mapping[str, Any]) -> bool:
    return bool(row["metadata"].get("benchmark_phase", "profiling") == "profiling")


def _average(result: Mapping[str, Any], key: str) -> float:
    return finite(result[key]["avg"]) if result.get(key) is not None else 0.0


def _milliseconds(metric: Mapping[str, Any], key: str) -> float | None:
    if metric.get(key) is not None and metric.get("unit") != "ms":
        raise ValueError(f"a latency in {metric.get('unit')!r} instead of ms")
    return finite_or_none(metric.get(key))


def _doubts(result: Mapping[str, Any]) -> list[str]:
    doubts = []
    if result.get("was_cancelled"):
        doubts.append("AIPerf was cancelled")
    if result.get("is_complete") is False:
        doubts.append(f"AIPerf says that it is not complete: {result.get('incomplete_reason') or 'no reason given'}")
    return doubts


def _value(row: Mapping[str, Any], key: str) -> float | None:
    return finite_or_none(((row.get("metrics") or {}).get(key) or {}).get("value"))


def _request(i: int, row: Mapping[str, Any], zero_ns: int) -> RequestRecord:
    gaps = ((row["metrics"] or {}).get("inter_chunk_latency") or {}).get("value") or ()
    sent_s = (int(row["metadata"]["request_start_ns"]) - zero_ns) / 1e9
    ttft_ms, e2el_ms = _value(row, "time_to_first_token"), _value(row, "request_latency")
    n_output = _value(row, "usage_completion_tokens")
    if n_output is None:
        n_output = _value(row, "output_sequence_length")
    n_input = _value(row, "usage_prompt_tokens")
    return RequestRecord(
        i=i,
        sent_s=sent_s,
        first_chunk_s=None if ttft_ms is None else sent_s + ttft_ms / 1000,
        last_chunk_s=None if e2el_ms is None else sent_s + e2el_ms / 1000,
        n_input_tokens=None if n_input is None else int(n_input),
        n_output_tokens=None if n_output is None else int(n_output),
        n_chunks=0 if ttft_ms is None else len(gaps) + 1,
        itl_ms=tuple(finite(gap) for gap in gaps),
        error=_error(row),
        text_digest=None,
    )


def _error(row: Mapping[str, Any]) -> str | None:
    error = row.get("error")
    if error is None:
        return "cancelled" if row["metadata"].get("was_cancelled") else None
    if not isinstance(error, dict):
        return str(error)
    words = [str(error[key]) for key in ("code", "type", "message") if error.get(key)]
    return ": ".join([" ".join(words[:-1]), words[-1]]) if len(words) > 1 else (words or ["failed"])[0]


def _iso(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
