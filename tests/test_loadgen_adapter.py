"""loadgen's adapter: metrics from records with values worked out by hand, and every rule that fails a load."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from orchestrator.clients import CLIENTS, ExitEvidence, load_client, loadgen
from orchestrator.clients.loadgen_adapter import LoadgenClient, source, version
from orchestrator.clients.pooling import percentile
from orchestrator.errors import LoadError, UnknownNameError
from orchestrator.metrics import METRICS
from orchestrator.records import Engine, Workload, digest_of

WORKLOAD = Workload(
    name="small",
    input_tokens=16,
    output_tokens=3,
    prompts_per_concurrency=2,
    warmup_per_concurrency=1,
    seed=7,
    request_timeout_s=5,
    load_timeout_s=60,
)
ENGINE = Engine(
    name="demo", command=("serve",), python="/opt/engine/bin/python", base_url="http://127.0.0.1:30000/", model="m"
)
EXITED = ExitEvidence("exited", 0, ())
CLIENT = LoadgenClient()


def request(i: int, sent_s: float, gaps_ms: tuple[float, float], ttft_s: float = 0.1, **fields: Any) -> dict[str, Any]:
    """A good record of three tokens in three chunks."""
    first = sent_s + ttft_s
    return {
        "i": i,
        "sent_s": sent_s,
        "first_chunk_s": first,
        "last_chunk_s": first + sum(gaps_ms) / 1000,
        "n_input_tokens": 16,
        "n_output_tokens": 3,
        "n_chunks": 3,
        "itl_ms": list(gaps_ms),
        "error": None,
        "text_digest": "sha256:ab",
        "finish_reason": "length",
        "n_retries": 0,
        **fields,
    }


def result() -> dict[str, Any]:
    """What loadgen would write of a good load of four requests at concurrency 2."""
    spec = json.loads(CLIENT.prepare(WORKLOAD, ENGINE, 2, "/scratch/run").files["/scratch/run/spec.json"])
    return {
        "schema": 1,
        "client": "loadgen",
        "client_version": "1",
        "spec": spec,
        "complete": True,
        "stopped_by": None,
        "started_at": "2026-01-01T00:00:00.000Z",
        "ended_at": "2026-01-01T00:00:02.000Z",
        "concurrency_peak": 2,
        "warmup": {"n_requests": 2, "n_done": 2, "n_failed": 0, "errors": []},
        "requests": [
            request(0, 0.0, (10.0, 30.0), ttft_s=0.1),
            request(1, 0.0, (20.0, 20.0), ttft_s=0.2),
            request(2, 0.5, (40.0, 60.0), ttft_s=0.3),
            request(3, 1.0, (50.0, 70.0), ttft_s=0.4),
        ],
    }


def parsed(changed: dict[str, Any], evidence: ExitEvidence = EXITED) -> Any:
    """What the adapter makes of a result."""
    return CLIENT.parse(json.dumps(changed).encode(), evidence, WORKLOAD, 2)


def test_metrics_are_those_of_the_definitions() -> None:
    """Every metric of a load of four requests equals the value worked out by hand."""
    load = parsed(result())
    assert (load.status, load.reasons) == ("ok", ())
    expected = {
        # last chunk of request 3: 1.0 + 0.4 + 0.12
        "duration_s": 1.52,
        "n_ok": 4,
        "n_failed": 0,
        "n_output_tokens": 12,
        "concurrency_peak": 2,
        "output_tokens_per_s": 12 / 1.52,
        "requests_per_s": 4 / 1.52,
        # 100 200 300 400
        "ttft_ms_mean": 250.0,
        "ttft_ms_p50": 250.0,
        "ttft_ms_p90": 370.0,
        "ttft_ms_p99": 397.0,
        # 20 20 50 60
        "tpot_ms_mean": 37.5,
        "tpot_ms_p50": 35.0,
        "tpot_ms_p90": 57.0,
        "tpot_ms_p99": 59.7,
        # 10 20 20 30 40 50 60 70
        "itl_ms_mean": 37.5,
        "itl_ms_p50": 35.0,
        "itl_ms_p90": 63.0,
        "itl_ms_p99": 69.3,
        # 140 240 400 520
        "e2el_ms_mean": 325.0,
        "e2el_ms_p50": 320.0,
        "e2el_ms_p90": 484.0,
        "e2el_ms_p99": 516.4,
    }
    assert load.metrics == pytest.approx(expected)


def test_every_metric_of_the_registry_is_given_and_no_other() -> None:
    """The registry and the adapter name the same metrics."""
    assert set(parsed(result()).metrics) == set(METRICS)


def test_what_was_not_measured_is_none() -> None:
    """Of one-token answers there is no time per output token and no gap: None, never 0."""
    workload = Workload(name="one", input_tokens=16, output_tokens=1, prompts_per_concurrency=2)
    raw = result()
    raw["spec"].update(output_tokens=1, n_warmup=4, seed=42)
    for one in raw["requests"]:
        one.update(n_output_tokens=1, n_chunks=1, itl_ms=[], last_chunk_s=one["first_chunk_s"])
    load = CLIENT.parse(json.dumps(raw).encode(), EXITED, workload, 2)
    assert load.status == "ok"
    assert {name for name, value in load.metrics.items() if value is None} == {
        f"{quantity}_{statistic}" for quantity in ("tpot_ms", "itl_ms") for statistic in ("mean", "p50", "p90", "p99")
    }


@pytest.mark.parametrize("n", [1, 2, 3, 10, 97])
def test_percentiles_are_numpys(n: int) -> None:
    """The percentile is numpy's default, linear interpolation."""
    values = sorted((37 * k * k) % 101 / 7 for k in range(n))
    for q in (0.0, 0.5, 0.9, 0.99, 1.0):
        assert percentile(values, q) == pytest.approx(numpy.percentile(values, 100 * q))


def test_records_of_requests_are_handed_on() -> None:
    """Each request of the file is a record, with the unit of each field kept."""
    one = parsed(result()).requests[2]
    assert (one.i, one.sent_s, one.itl_ms, one.n_chunks) == (2, 0.5, (40.0, 60.0), 3)
    assert one.first_chunk_s == pytest.approx(0.8)


# ---- the rules: each changes one thing in a good result


def at(position: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one request's record."""
    return lambda raw: raw["requests"][position].update(fields)


INVALID = {
    "a failed request": (
        at(1, error="HTTP 500: CUDA out of memory"),
        "1 of 4 requests failed: HTTP 500 ×1 (CUDA out of memory)",
    ),
    "too few output tokens": (at(1, n_output_tokens=2), "1 of 4 requests: output tokens are not the 3 asked for"),
    "no output count": (at(1, n_output_tokens=None), "1 of 4 requests: output tokens are not the 3 asked for"),
    "other input tokens": (at(1, n_input_tokens=15), "1 of 4 requests: input tokens are not the 16 sent"),
    "empty text": (at(1, text_digest=None), "1 of 4 requests: empty text"),
    "no chunk": (at(1, n_chunks=0, itl_ms=[]), "1 of 4 requests: empty text"),
    "TTFT of 0": (at(2, first_chunk_s=0.5), "1 of 4 requests: TTFT of 0"),
    "TTFT below 0": (at(2, first_chunk_s=0.4), "1 of 4 requests: TTFT of 0"),
    "a time missing": (at(2, last_chunk_s=None), "1 of 4 requests: a time is missing"),
    "end before start": (at(2, last_chunk_s=0.7), "1 of 4 requests: times that contradict each other"),
    "a gap too few": (at(2, itl_ms=[1.0]), "1 of 4 requests: times that contradict each other"),
    "a gap below 0": (at(2, itl_ms=[-1.0, 101.0]), "1 of 4 requests: times that contradict each other"),
    "a number beyond all": (at(2, last_chunk_s=1e999), "the result holds Infinity, which is no measurement"),
    "not a number": (at(2, sent_s=math.nan), "the result holds NaN, which is no measurement"),
    "a record missing": (lambda raw: raw["requests"].pop(), "3 records for 4 requests, or not in their order"),
    "a record twice": (at(2, i=1), "4 records for 4 requests, or not in their order"),
    "above the cap": (
        lambda raw: raw.update(concurrency_peak=3),
        "3 requests were in flight at once, with a cap of 2",
    ),
}


@pytest.mark.parametrize("rule", INVALID)
def test_a_load_that_cannot_be_believed_is_invalid(rule: str) -> None:
    """One fault in one place makes the load invalid, with the reason in words and no number."""
    change, reason = INVALID[rule]
    raw = result()
    change(raw)
    load = parsed(raw)
    assert (load.status, dict(load.metrics)) == ("invalid", {})
    assert reason in load.reasons


def test_a_number_too_large_for_a_float_is_invalid() -> None:
    """1e999 is read as infinity without a word by JSON readers; it is no time all the same."""
    raw = json.dumps(result()).encode().replace(b'"sent_s": 0.5', b'"sent_s": -1e999')
    load = CLIENT.parse(raw, EXITED, WORKLOAD, 2)
    assert (load.status, load.reasons) == ("invalid", ("1 of 4 requests: a time is not finite",))


def test_failures_are_counted_by_kind() -> None:
    """Like failures are told once with their number and one example, the most frequent first."""
    raw = result()
    for i, error in enumerate(["cut answer: after 4 chunks", "HTTP 500: a", "HTTP 500: b", "no usage in the answer"]):
        raw["requests"][i]["error"] = error
    assert parsed(raw, ExitEvidence("exited", 1, ())).reasons == (
        "4 of 4 requests failed: HTTP 500 ×2 (a), cut answer ×1 (after 4 chunks), no usage in the answer ×1",
    )


def test_a_load_that_gave_up_tells_what_was_not_sent() -> None:
    """Stopped by failures is invalid, not failed: it ran; the requests never sent are counted apart."""
    raw = result()
    raw.update(complete=False, stopped_by="failed requests: 2")
    for i in (0, 1):
        raw["requests"][i]["error"] = "HTTP 500"
    for i in (2, 3):
        raw["requests"][i].update(error="not sent: failed requests: 2", sent_s=None, first_chunk_s=None)
    load = parsed(raw, ExitEvidence("exited", 1, ()))
    assert (load.status, load.reasons) == (
        "invalid",
        ("2 of 4 requests failed: HTTP 500 ×2", "2 of 4 requests were never sent"),
    )
    assert load.requests[3].sent_s is None


FAILED = {
    "stopped": (
        lambda raw: raw.update(complete=False, stopped_by="SIGTERM"),
        EXITED,
        "the load was stopped: SIGTERM",
    ),
    "its own deadline": (
        lambda raw: raw.update(complete=False, stopped_by="deadline: 60 s"),
        EXITED,
        "the load was stopped: deadline: 60 s",
    ),
    "our deadline": (
        lambda raw: None,
        ExitEvidence("deadline", None, ()),
        "loadgen was stopped at its deadline, while it still ran",
    ),
    "warm-up": (
        lambda raw: raw["warmup"].update(n_failed=1, errors=["HTTP 503: busy"]),
        EXITED,
        "1 of 2 warm-up requests failed: HTTP 503 ×1 (busy)",
    ),
    "exit code": (
        lambda raw: None,
        ExitEvidence("exited", 137, ("Killed",)),
        "loadgen ended with exit code 137, with a result that says all is well",
    ),
    "another client": (
        lambda raw: raw.update(client="vllm"),
        EXITED,
        "the result is of vllm schema 1, not loadgen 1",
    ),
    "another schema": (
        lambda raw: raw.update(schema=2),
        EXITED,
        "the result is of loadgen schema 2, not loadgen 1",
    ),
    "another load": (
        lambda raw: raw["spec"].update(seed=8, concurrency=4),
        EXITED,
        "the result is of another load: concurrency 4 instead of 2, seed 8 instead of 7",
    ),
}


@pytest.mark.parametrize("rule", FAILED)
def test_a_load_that_did_not_come_to_its_end_is_failed(rule: str) -> None:
    """What was stopped, killed or is of another load has no numbers, whatever its file says."""
    change, evidence, reason = FAILED[rule]
    raw = result()
    change(raw)
    load = parsed(raw, evidence)
    assert (load.status, dict(load.metrics)) == ("failed", {})
    assert load.reasons[0] == reason


def test_no_result_brings_the_clients_last_words() -> None:
    """Without a file the reason names how the client ended and what it said last."""
    load = CLIENT.parse(None, ExitEvidence("exited", 127, ("", "python: not found")), WORKLOAD, 2)
    assert (load.status, load.reasons) == (
        "failed",
        ("loadgen ended with exit code 127, without a result", "its last lines: python: not found"),
    )
    gone = CLIENT.parse(None, ExitEvidence("vanished", None, ()), WORKLOAD, 2)
    assert gone.reasons == ("loadgen is gone from the host, without a result and without an exit code",)


@pytest.mark.parametrize("n_bytes", [0, 1, 200, -1])
def test_a_cut_result_is_failed(n_bytes: int) -> None:
    """A file that ends early is told with its size; nothing of it is used."""
    raw = json.dumps(result()).encode()[:n_bytes]
    load = CLIENT.parse(raw, EXITED, WORKLOAD, 2)
    assert load.status == "failed" and f"cut or not loadgen's ({len(raw)} bytes" in load.reasons[0]


@pytest.mark.parametrize("raw", [b"[]", b"null", b'"text"', b'{"requests": 3}', b'{"requests": [{}]}'])
def test_a_file_of_another_shape_is_failed(raw: bytes) -> None:
    """JSON that is no result is failed, without an exception."""
    assert CLIENT.parse(raw, EXITED, WORKLOAD, 2).status == "failed"


# ---- prepare


def test_prepare_names_everything_that_the_host_needs() -> None:
    """The run holds loadgen's own source and a spec that loadgen accepts, and starts them by the engine's python."""
    run = CLIENT.prepare(WORKLOAD, ENGINE, 2, "/scratch/run")
    spec = loadgen.read_spec(run.files["/scratch/run/spec.json"])
    assert run.argv == ("/opt/engine/bin/python", "-B", "/scratch/run/loadgen.py", "/scratch/run/spec.json")
    assert run.files["/scratch/run/loadgen.py"] == source()
    assert (spec.url, spec.model) == ("http://127.0.0.1:30000/v1/completions", "m")
    assert (spec.n_requests, spec.n_warmup, spec.concurrency, spec.seed) == (4, 2, 2, 7)
    assert (spec.result_path, spec.progress_path) == (run.result_path, run.progress_path)
    assert spec.cache_flush_url is None
    assert run.deadline_s > WORKLOAD.load_timeout_s


def test_the_version_changes_with_the_source() -> None:
    """The client's version holds the digest of the bytes that run on the host."""
    assert version() == "1+" + digest_of(source()).removeprefix("sha256:")[:12]


def test_a_flush_is_asked_for_only_where_the_engine_has_one() -> None:
    """cache_policy flush gives the flush address, and is refused where the engine names none."""
    flushing = Workload(name="cold", cache_policy="flush")
    engine = Engine(name="e", command=("x",), python="/p", base_url="http://h:1", cache_flush_path="/flush_cache")
    spec = json.loads(CLIENT.prepare(flushing, engine, 1, "/r").files["/r/spec.json"])
    assert spec["cache_flush_url"] == "http://h:1/flush_cache"
    with pytest.raises(LoadError, match="engine demo has no cache_flush_path"):
        CLIENT.prepare(flushing, ENGINE, 1, "/r")


def test_a_vocabulary_too_small_is_refused_before_anything_starts() -> None:
    """Prompts that cannot all differ are told by the controller."""
    tiny = Workload(name="tiny", input_tokens=1, min_token_id=5, max_token_id=6)
    with pytest.raises(LoadError, match=r"workload tiny at concurrency 8: 2 token ids \(5 to 6\) are too few"):
        CLIENT.prepare(tiny, ENGINE, 8, "/r")


def test_progress_is_read_or_none() -> None:
    """A whole progress file is a record; an empty or cut one is None."""
    raw = b'{"phase": "load", "n_done": 3, "n_total": 4, "n_failed": 1, "elapsed_s": 0.5}'
    progress = CLIENT.parse_progress(raw, 2)
    assert progress is not None and (progress.n_done, progress.n_total, progress.n_failed) == (3, 4, 1)
    assert CLIENT.parse_progress(raw[:-3], 2) is None
    assert CLIENT.parse_progress(b"", 2) is None


def test_the_registry_gives_every_client_by_its_name() -> None:
    """Each name in the registry is the name that its adapter gives itself; another is refused with the choice."""
    assert {load_client(name).name for name in CLIENTS} == set(CLIENTS)
    with pytest.raises(UnknownNameError, match=r"no load client 'wrk'.*loadgen"):
        load_client("wrk")
