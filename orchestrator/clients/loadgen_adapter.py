"""Adapter of ``loadgen``: makes its spec, and turns its result file into metrics or into reasons why there are none.

Pure: no host, no clock, no files but loadgen's own source. Nothing that loadgen concluded is taken on trust: every
rule is checked again on the records, and every metric is computed here, by the definitions of ``metrics.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.clients import loadgen
from orchestrator.clients.base import ClientRun, ExitEvidence, ParsedLoad, refuse_unfit
from orchestrator.clients.judging import NonFiniteError, failed, how_it_ended, last_words, refuse_constant, told
from orchestrator.clients.pooling import statistics_of
from orchestrator.errors import LoadError
from orchestrator.records import Engine, LoadProgress, RequestRecord, Workload, digest_of, short

GRACE_S = 60.0
"""Beyond the client's own deadline: start of the interpreter, cache flush, writing of the result."""


class LoadgenClient:
    """orch's own closed-loop client."""

    name = "loadgen"

    def prepare(self, workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> ClientRun:
        """Two files, the client and its spec, and one command by the engine's own python."""
        refuse_unfit(workload, engine)
        program, spec_path = f"{run_dir}/loadgen.py", f"{run_dir}/spec.json"
        spec = dataclasses.asdict(_spec(workload, engine, concurrency, run_dir))
        raw = json.dumps(spec, indent=1).encode()
        try:
            loadgen.read_spec(raw)
        except loadgen.SpecError as exc:
            raise LoadError(f"workload {workload.name} at concurrency {concurrency}: {exc}") from exc
        return ClientRun(
            argv=(engine.python, "-B", program, spec_path),
            files={program: source(), spec_path: raw},
            result_path=spec["result_path"],
            progress_path=spec["progress_path"],
            deadline_s=workload.load_timeout_s + GRACE_S,
            version=version(),
        )

    def parse(self, raw: bytes | None, evidence: ExitEvidence, workload: Workload, concurrency: int) -> ParsedLoad:
        """The metrics, or why there are none; the records of the requests in any case where they can be read."""
        if raw is None:
            return failed([how_it_ended("loadgen", evidence, "without a result"), *last_words(evidence.log_tail)])
        try:
            result = json.loads(raw, parse_constant=refuse_constant)
            requests = tuple(_request(one) for one in result["requests"])
            problems = [*_why_failed(result, evidence), *_why_another_load(result["spec"], workload, concurrency)]
            doubts = _why_invalid(result, requests, workload, concurrency)
            times = (str(result["started_at"]), str(result["ended_at"]))
        except NonFiniteError as exc:
            return ParsedLoad("invalid", (f"the result holds {exc}, which is no measurement",), {}, (), None, None)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            why = f"the result file is cut or not loadgen's ({len(raw)} bytes, {type(exc).__name__}: {exc})"
            return failed([why, *last_words(evidence.log_tail)])
        if problems:
            return ParsedLoad("failed", (*problems, *doubts), {}, requests, *times)
        if doubts:
            return ParsedLoad("invalid", tuple(doubts), {}, requests, *times)
        return ParsedLoad("ok", (), metrics_of(requests, result["concurrency_peak"]), requests, *times)

    def parse_progress(self, raw: bytes, concurrency: int) -> LoadProgress | None:
        """loadgen's progress file; None when it is empty or cut."""
        try:
            seen = json.loads(raw)
            return LoadProgress(
                concurrency,
                str(seen["phase"]),
                int(seen["n_done"]),
                int(seen["n_total"]),
                int(seen["n_failed"]),
                float(seen["elapsed_s"]),
            )
        except (ValueError, KeyError, TypeError):
            return None


@functools.cache
def source() -> bytes:
    """loadgen's own source, as it is sent to the host."""
    return Path(loadgen.__file__).read_bytes()


def version() -> str:
    """loadgen's version with the digest of its source: any edit of the client makes loads incomparable."""
    return f"{loadgen.VERSION}+{short(digest_of(source()))}"


def _spec(workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> loadgen.Spec:
    base_url = engine.base_url.rstrip("/")
    flush = engine.cache_flush_path if workload.cache_policy == "flush" else None
    return loadgen.Spec(
        url=f"{base_url}/v1/completions",
        model=engine.model,
        concurrency=concurrency,
        result_path=f"{run_dir}/result.json",
        progress_path=f"{run_dir}/progress.json",
        cache_flush_url=None if flush is None else f"{base_url}/{flush.lstrip('/')}",
        request_timeout_s=workload.request_timeout_s,
        load_timeout_s=workload.load_timeout_s,
        **_asked(workload, concurrency),
    )


def _asked(workload: Workload, concurrency: int) -> dict[str, int]:
    """The fields of the spec that make two loads the same load."""
    return {
        "n_requests": workload.prompts_per_concurrency * concurrency,
        "n_warmup": workload.warmup_per_concurrency * concurrency,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "seed": workload.seed,
        "min_token_id": workload.min_token_id,
        "max_token_id": workload.max_token_id,
    }


# ---- reading


def _request(raw: Mapping[str, Any]) -> RequestRecord:
    return RequestRecord(
        i=int(raw["i"]),
        sent_s=_number(raw["sent_s"]),
        first_chunk_s=_number(raw["first_chunk_s"]),
        last_chunk_s=_number(raw["last_chunk_s"]),
        n_input_tokens=raw["n_input_tokens"],
        n_output_tokens=raw["n_output_tokens"],
        n_chunks=int(raw["n_chunks"]),
        itl_ms=tuple(float(gap) for gap in raw["itl_ms"] or ()),
        error=raw["error"],
        text_digest=raw["text_digest"],
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


# ---- the rules


def _why_failed(result: Mapping[str, Any], evidence: ExitEvidence) -> list[str]:
    """Reasons for which there is no load to speak of."""
    reasons = []
    if result["client"] != "loadgen" or result["schema"] != loadgen.SCHEMA:
        reasons.append(f"the result is of {result['client']} schema {result['schema']}, not loadgen {loadgen.SCHEMA}")
    if evidence.how == "deadline":
        reasons.append(how_it_ended("loadgen", evidence, "while it still ran"))
    if result["complete"] is not True and not _was_stopped_by_failures(result):
        reasons.append(f"the load was stopped: {result['stopped_by']}")
    if result["warmup"]["n_failed"]:
        reasons.append(told("warm-up requests", result["warmup"]["errors"], result["warmup"]["n_requests"]))
    has_failures = any(one["error"] is not None for one in result["requests"])
    if not reasons and not has_failures and evidence.exit_code not in (0, None):
        reasons += [
            how_it_ended("loadgen", evidence, "with a result that says all is well"),
            *last_words(evidence.log_tail),
        ]
    return reasons


def _was_stopped_by_failures(result: Mapping[str, Any]) -> bool:
    """Whether loadgen gave up because so many requests had failed: then it ran, and is invalid."""
    return str(result["stopped_by"]).partition(": ")[0] == loadgen.STOPPED_BY_FAILURES


def _why_another_load(spec: Mapping[str, Any], workload: Workload, concurrency: int) -> list[str]:
    asked = {"concurrency": concurrency, **_asked(workload, concurrency)}
    unlike = [f"{name} {spec.get(name)} instead of {value}" for name, value in asked.items() if spec.get(name) != value]
    return ["the result is of another load: " + ", ".join(unlike)] if unlike else []


def _why_invalid(
    result: Mapping[str, Any], requests: Sequence[RequestRecord], workload: Workload, concurrency: int
) -> list[str]:
    """Reasons for which the load ran and is not to be believed."""
    reasons = []
    n_asked = workload.prompts_per_concurrency * concurrency
    if [one.i for one in requests] != list(range(n_asked)):
        reasons.append(f"{len(requests)} records for {n_asked} requests, or not in their order")
    errors = [one.error for one in requests if one.error is not None and not one.error.startswith("not sent")]
    if errors:
        reasons.append(told("requests", errors, n_asked))
    n_not_sent = sum((one.error or "").startswith("not sent") for one in requests)
    if n_not_sent:
        reasons.append(f"{n_not_sent} of {n_asked} requests were never sent")
    faults = Counter(fault for one in requests if one.error is None for fault in _faults(one, workload))
    reasons += [f"{count} of {n_asked} requests: {fault}" for fault, count in sorted(faults.items())]
    peak = result["concurrency_peak"]
    if not 1 <= peak <= concurrency and not errors and not n_not_sent:
        reasons.append(f"{peak} requests were in flight at once, with a cap of {concurrency}")
    return reasons


def _faults(request: RequestRecord, workload: Workload) -> list[str]:
    """What contradicts a record that says it is good."""
    faults = []
    if request.n_output_tokens != workload.output_tokens:
        faults.append(f"output tokens are not the {workload.output_tokens} asked for")
    if request.n_input_tokens not in (None, workload.input_tokens):
        faults.append(f"input tokens are not the {workload.input_tokens} sent")
    if request.text_digest is None or request.n_chunks < 1:
        faults.append("empty text")
    sent, first, last = request.sent_s, request.first_chunk_s, request.last_chunk_s
    if sent is None or first is None or last is None:
        return [*faults, "a time is missing"]
    if not all(map(math.isfinite, (sent, first, last, *request.itl_ms))):
        faults.append("a time is not finite")
    if first <= sent:
        faults.append("TTFT of 0")
    if last < first or len(request.itl_ms) != request.n_chunks - 1 or any(gap < 0 for gap in request.itl_ms):
        faults.append("times that contradict each other")
    return faults


# ---- metrics


def metrics_of(requests: Sequence[RequestRecord], concurrency_peak: int) -> dict[str, float | None]:
    """Every metric of ``metrics.py`` from the records of good requests.

    Percentiles are linear interpolations between order statistics at (n − 1) × q, numpy's default.
    """
    pools: dict[str, list[float]] = {"ttft_ms": [], "tpot_ms": [], "itl_ms": [], "e2el_ms": []}
    n_output_tokens = 0
    began_s, ended_s = math.inf, -math.inf
    for one in requests:
        assert one.sent_s is not None and one.first_chunk_s is not None and one.last_chunk_s is not None
        assert one.n_output_tokens is not None
        pools["ttft_ms"].append(1000 * (one.first_chunk_s - one.sent_s))
        pools["e2el_ms"].append(1000 * (one.last_chunk_s - one.sent_s))
        if one.n_output_tokens >= 2:
            pools["tpot_ms"].append(1000 * (one.last_chunk_s - one.first_chunk_s) / (one.n_output_tokens - 1))
        pools["itl_ms"] += one.itl_ms
        n_output_tokens += one.n_output_tokens
        began_s, ended_s = min(began_s, one.sent_s), max(ended_s, one.last_chunk_s)
    duration_s = ended_s - began_s
    metrics: dict[str, float | None] = {
        "output_tokens_per_s": n_output_tokens / duration_s,
        "requests_per_s": len(requests) / duration_s,
    }
    for quantity, values in pools.items():
        metrics |= statistics_of(quantity, values)
    return metrics | {
        "duration_s": duration_s,
        "n_ok": len(requests),
        "n_failed": 0,
        "n_output_tokens": n_output_tokens,
        "concurrency_peak": concurrency_peak,
    }
