"""The adapters of other people's clients: what they ask for, and what they make of real result files, good and bad.

The files in ``samples/`` are of real runs of the named versions, shortened (texts, keys that nobody reads).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.admission import StartFacts, judge, remember
from orchestrator.clients import CLIENTS, ExitEvidence, ParsedLoad, driver, load_client
from orchestrator.clients.driven import seed_of, source
from orchestrator.designs import Arm, Plan
from orchestrator.errors import LoadError
from orchestrator.metrics import METRICS
from orchestrator.records import Engine, LoadResult, Workload
from orchestrator.store import Store
from tests.support import store_records

SAMPLES = Path(__file__).parent / "samples"
EXITED = ExitEvidence("exited", 0, ())
DRIVEN = ("sglang", "vllm", "guidellm", "aiperf")
COMMANDS = {"guidellm": ("/opt/g/bin/guidellm", "run"), "aiperf": ("/opt/a/bin/aiperf", "profile")}
SGLANG = Engine(
    name="sglang",
    command=("/opt/sglang/bin/python", "-m", "sglang.launch_server"),
    python="/opt/sglang/bin/python",
    base_url="http://127.0.0.1:30000/",
    model="tiny",
    cache_flush_path="/flush_cache",
)
VLLM = replace(SGLANG, name="vllm", command=("/opt/vllm/bin/vllm", "serve"), python="/opt/vllm/bin/python")
FILES = {
    "sglang": {"result": "sglang-0.5.23-oai-c8.jsonl"},
    "vllm": {"result": "vllm-0.32.0-c8.json"},
    "guidellm": {"result": "guidellm-0.8.1-c8.json"},
    "aiperf": {"result": "aiperf-0.13.0-c8.json", "records": "aiperf-0.13.0-c8-records.jsonl"},
}


def workload_of(client: str, **fields: Any) -> Workload:
    """The recipe of the good samples: 16 requests at concurrency 8, 64 tokens in and 32 out."""
    recipe = {"input_tokens": 64, "output_tokens": 32, "prompts_per_concurrency": 2, "warmup_per_concurrency": 0}
    return Workload(
        **{
            "name": "small",
            "client": client,
            "tokenizer": "/models/tiny",
            "client_command": COMMANDS.get(client, ()),
            **recipe,
            **fields,
        }
    )


def files_of(client: str) -> dict[str, str]:
    """The good sample of a client."""
    return {key: (SAMPLES / name).read_text() for key, name in FILES[client].items()}


def step(name: str, files: Mapping[str, str | None], **fields: Any) -> dict[str, Any]:
    """One step of the driver's result."""
    return {
        "name": name,
        "argv": ["client", name],
        "how": "exited",
        "exit_code": 0,
        "started_at": "2026-01-01T00:00:00.000Z",
        "ended_at": "2026-01-01T00:00:09.000Z",
        "elapsed_s": 9.0,
        "last_lines": ["Traceback", "IndexError: list index out of range"],
        "files": dict(files),
        **fields,
    }


def bundle(workload: Workload, files: Mapping[str, str | None], **fields: Any) -> dict[str, Any]:
    """What the driver would write of a run at concurrency 8 that left these files."""
    run = load_client(workload.client).prepare(workload, SGLANG, 8, "/r")
    return {
        "schema": 1,
        "client": workload.client,
        "client_version": "9.8.7",
        "recipe": json.loads(run.files["/r/spec.json"])["recipe"],
        "stopped_by": None,
        "started_at": "2026-01-01T00:00:00.000Z",
        "ended_at": "2026-01-01T00:00:09.000Z",
        "steps": [step("load", files)],
        **fields,
    }


def parsed(
    workload: Workload, files: Mapping[str, str | None], evidence: ExitEvidence = EXITED, **fields: Any
) -> ParsedLoad:
    """What the adapter makes of files."""
    raw = json.dumps(bundle(workload, files, **fields)).encode()
    return load_client(workload.client).parse(raw, evidence, workload, 8)


# ---- good files

GOOD = {
    "sglang": {"output_tokens_per_s": 366.732, "ttft_ms_p50": 141.393, "tpot_ms_p90": 19.083, "e2el_ms_p50": 685.355},
    "vllm": {"output_tokens_per_s": 612.665, "ttft_ms_p50": 105.015, "tpot_ms_p50": 10.962, "itl_ms_p99": 144.853},
    "guidellm": {"output_tokens_per_s": 686.742, "ttft_ms_p50": 119.962, "tpot_ms_p50": 7.818, "e2el_ms_p50": 356.258},
    "aiperf": {"output_tokens_per_s": 409.371, "ttft_ms_p50": 135.159, "tpot_ms_p50": 16.849, "itl_ms_p90": 12.001},
}
NOT_MEASURED = {
    "sglang": {"concurrency_peak"},
    "vllm": {"concurrency_peak", "ttft_ms_p90", "tpot_ms_p90", "itl_ms_p90"}
    | {f"e2el_ms_{statistic}" for statistic in ("mean", "p50", "p90", "p99")},
    "guidellm": {"concurrency_peak"} | {f"itl_ms_{statistic}" for statistic in ("mean", "p50", "p90", "p99")},
    "aiperf": {"concurrency_peak"},
}


@pytest.mark.parametrize("client", DRIVEN)
def test_a_good_file_gives_the_clients_own_numbers(client: str) -> None:
    """Counts and metrics are those of the file; what the client does not measure is None, never a substitute."""
    load = parsed(workload_of(client), files_of(client))
    assert (load.status, load.reasons) == ("ok", ())
    assert {name: load.metrics[name] for name in GOOD[client]} == pytest.approx(GOOD[client], abs=0.001)
    assert (load.metrics["n_ok"], load.metrics["n_failed"], load.metrics["n_output_tokens"]) == (16, 0, 512)
    assert set(load.metrics) == set(METRICS)
    assert {name for name, value in load.metrics.items() if value is None} == NOT_MEASURED[client]


@pytest.mark.parametrize("client", DRIVEN)
def test_version_and_arguments_are_those_of_the_client_itself(client: str) -> None:
    """What is stored beside the numbers is what the client told of itself and how it was called."""
    load = parsed(workload_of(client), files_of(client))
    assert (load.version, load.argv) == ("9.8.7", ("client", "load"))


def test_throughput_is_tokens_by_duration() -> None:
    """For each client the throughput is output tokens ÷ duration by the file's own numbers, within its rounding."""
    for client in DRIVEN:
        metrics = parsed(workload_of(client), files_of(client)).metrics
        tokens, duration_s = metrics["n_output_tokens"], metrics["duration_s"]
        assert tokens is not None and duration_s is not None
        assert metrics["output_tokens_per_s"] == pytest.approx(tokens / duration_s, rel=1e-6), client


def test_guidellms_numbers_are_of_every_request() -> None:
    """Its summary stops its clock too early and leaves requests out; its records and scheduler's count are whole."""

    def leave_out_three(result: dict[str, Any]) -> None:
        (one,) = result["benchmarks"]
        one["scheduler_metrics"] = {"requests_made": {"successful": 16, "errored": 0, "incomplete": 0, "total": 16}}
        one["metrics"]["request_totals"].update(successful=13, total=13)
        one["metrics"]["time_to_first_token_ms"]["successful"]["median"] = 1.0

    load = parsed(workload_of("guidellm"), with_json("guidellm", leave_out_three))
    assert (load.status, load.reasons) == ("ok", ())
    assert load.metrics["n_ok"] == 16 and load.metrics["ttft_ms_p50"] == pytest.approx(119.962, abs=0.001)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("ReadTimeout('')", "ReadTimeout ×1"),
        (
            "HTTPStatusError(\"Server error '500' for url 'http://e/v1'\\nFor more information check: https://e\")",
            "HTTPStatusError ×1 (Server error '500' for url 'http://e/v1')",
        ),
        ("Request was cancelled", "Request was cancelled ×1"),
    ],
)
def test_guidellms_errors_are_told_by_their_name(written: str, told: str) -> None:
    """An exception as Python shows it is counted by its name, with its first line as the example."""

    def fail(one: dict[str, Any]) -> None:
        fail_one_of_guidellm(one)
        one["requests"]["errored"][0]["info"]["error"] = written

    load = parsed(workload_of("guidellm"), guide(fail))
    assert load.reasons[0] == f"1 of 16 requests failed: {told}"


def test_requests_are_handed_on() -> None:
    """Each client's own record of a request becomes one, in the order of its prompts where the client keeps one."""
    loads = {client: parsed(workload_of(client), files_of(client)) for client in DRIVEN}
    for client, load in loads.items():
        assert [one.i for one in load.requests] == list(range(16)), client
        assert {(one.n_output_tokens, one.error) for one in load.requests} == {(32, None)}, client
    vllm, sglang, aiperf = (loads[name].requests[3] for name in ("vllm", "sglang", "aiperf"))
    assert vllm.sent_s == pytest.approx(0.0007, abs=1e-4) and vllm.first_chunk_s == pytest.approx(0.2078, abs=1e-4)
    assert (sglang.sent_s, sglang.first_chunk_s, sglang.n_chunks) == (None, None, 32)
    assert vllm.text_digest and sglang.text_digest and aiperf.text_digest is None
    assert aiperf.itl_ms[0] == pytest.approx(771.171, abs=0.001)
    assert loads["aiperf"].started_at == "2026-11-29T17:02:28.272Z"
    assert loads["guidellm"].ended_at == "2026-11-29T17:03:08.846Z"


def test_sglangs_native_backend_has_no_gaps_between_chunks() -> None:
    """It shares a chunk's gap out among the chunk's tokens, which is another quantity: not taken."""
    line = json.loads(files_of("sglang")["result"]) | {"backend": "sglang"}
    load = parsed(workload_of("sglang"), {"result": json.dumps(line)})
    assert load.status == "ok" and load.metrics["itl_ms_p50"] is None and load.metrics["tpot_ms_p50"] is not None
    assert {one.itl_ms for one in load.requests} == {()}


def test_sglang_appends_and_only_the_last_line_counts() -> None:
    """An earlier run's line in the same file is not read."""
    other = (SAMPLES / "sglang-half-failed.jsonl").read_text()
    good = files_of("sglang")["result"]
    assert parsed(workload_of("sglang"), {"result": other + good}).status == "ok"
    assert parsed(workload_of("sglang"), {"result": good + other}).status != "ok"


def test_files_of_older_versions() -> None:
    """Keys that an older version did not write yet are not measured; the rest counts."""
    old = files_of("sglang") | {"result": (SAMPLES / "sglang-0.5.9-vllm-c8.jsonl").read_text()}
    load = parsed(workload_of("sglang"), old)
    assert load.status == "ok" and load.metrics["ttft_ms_p90"] is None and load.metrics["e2el_ms_p90"] is not None
    result = json.loads(files_of("vllm")["result"])
    for name in ("start_times", "latencies", "failed", "queue_times"):
        result.pop(name)
    load = parsed(workload_of("vllm"), {"result": json.dumps(result)})
    assert load.status == "ok" and load.requests[0].sent_s is None


# ---- bad files


def with_json(client: str, change: Callable[[dict[str, Any]], object], key: str = "result") -> dict[str, str]:
    """The good sample with one thing changed."""
    files = files_of(client)
    changed = json.loads(files[key])
    change(changed)
    return {**files, key: json.dumps(changed)}


def at(name: str, i: int, value: object) -> Callable[[dict[str, Any]], object]:
    """A change of one element of an array."""
    return lambda result: result[name].__setitem__(i, value)


def with_record(change: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    """AIPerf's sample with one record changed."""
    files = files_of("aiperf")
    lines = [json.loads(line) for line in files["records"].splitlines()]
    change(lines[5])
    return {**files, "records": "".join(json.dumps(line) + "\n" for line in lines)}


def guide(change: Callable[[dict[str, Any]], object]) -> dict[str, str]:
    """GuideLLM's sample with its benchmark changed."""
    return with_json("guidellm", lambda result: change(result["benchmarks"][0]))


def fail_one_of_guidellm(one: dict[str, Any]) -> None:
    """Moves a good request among those with an error."""
    row = one["requests"]["successful"].pop()
    row["info"]["error"] = "HTTP 500"
    row["output_tokens"] = 0
    one["requests"]["errored"].append(row)
    one["metrics"]["request_totals"] |= {"successful": 15, "errored": 1}


INVALID: dict[str, tuple[str, Callable[[], dict[str, str]], str]] = {
    "sglang: error event counted as success": (
        "sglang",
        lambda: with_json("sglang", at("ttfts", 3, 0.0)),
        "1 of 16 requests: TTFT of 0",
    ),
    "sglang: length without a text": (
        "sglang",
        lambda: with_json("sglang", at("generated_texts", 3, "")),
        "1 of 16 requests: empty text",
    ),
    "sglang: no number": (
        "sglang",
        lambda: with_json("sglang", lambda result: result.update(median_ttft_ms=float("inf"))),
        "the result holds inf, which is no measurement",
    ),
    "sglang: an end before its time": (
        "sglang",
        lambda: with_json("sglang", lambda r: (r["output_lens"].__setitem__(3, 31), r.update(total_output_tokens=511))),
        "1 of 16 requests: output tokens are not the 32 asked for",
    ),
    "sglang: without details": (
        "sglang",
        lambda: {"result": (SAMPLES / "sglang-0.5.9-native-c8.jsonl").read_text()},
        "0 records for 16 requests: a failure counted as success would not be seen",
    ),
    "vllm: error event after some tokens": (
        "vllm",
        lambda: with_json("vllm", at("output_lens", 3, 7)),
        "1 of 16 requests: output tokens are not the 32 asked for",
    ),
    "vllm: no number": (
        "vllm",
        lambda: with_json("vllm", at("ttfts", 3, float("nan"))),
        "the result holds NaN, which is no measurement",
    ),
    "vllm: fewer than asked for": (
        "vllm",
        lambda: with_json("vllm", lambda result: result.update(completed=15)),
        "15 requests completed and 0 failed, of 16 asked for",
    ),
    "vllm: a total that is not that of the records": (
        "vllm",
        lambda: with_json("vllm", lambda result: result.update(total_output_tokens=480)),
        "480 output tokens of 16 requests, asked for were 32 each",
    ),
    "guidellm: an error": (
        "guidellm",
        lambda: guide(fail_one_of_guidellm),
        "1 of 16 requests failed: HTTP 500 ×1",
    ),
    "guidellm: cut off by its limit": (
        "guidellm",
        lambda: guide(lambda one: one["metrics"]["request_totals"].update(incomplete=2)),
        "2 requests were cut off by GuideLLM's own limit",
    ),
    "guidellm: what was cut off counts as failed": (
        "guidellm",
        lambda: guide(lambda one: one["metrics"]["request_totals"].update(incomplete=2)),
        "16 requests completed and 2 failed, of 16 asked for",
    ),
    "guidellm: an infinity anywhere": (
        "guidellm",
        lambda: guide(lambda one: one["metrics"].update(request_concurrency=float("inf"))),
        "the result holds Infinity, which is no measurement",
    ),
    "aiperf: no number in a record": (
        "aiperf",
        lambda: with_record(lambda row: row.update(anything=float("nan"))),
        "the result holds NaN, which is no measurement",
    ),
    "aiperf: an error": (
        "aiperf",
        lambda: with_record(lambda row: row.update(error={"code": 500, "type": "HTTPError", "message": "no memory"})),
        "1 of 16 requests failed: 500 HTTPError ×1 (no memory)",
    ),
    "aiperf: counted failures": (
        "aiperf",
        lambda: with_json("aiperf", lambda r: r.update(error_request_count={"unit": "requests", "avg": 2.0})),
        "2 of 16 requests failed",
    ),
    "aiperf: incomplete": (
        "aiperf",
        lambda: with_json("aiperf", lambda r: r.update(is_complete=False, incomplete_reason="timeout")),
        "AIPerf says that it is not complete: timeout",
    ),
}


@pytest.mark.parametrize("rule", INVALID)
def test_what_a_client_calls_good_and_is_not(rule: str) -> None:
    """One lie in one place makes the load invalid, with the reason in words and no number."""
    client, files, reason = INVALID[rule]
    load = parsed(workload_of(client), files())
    assert (load.status, dict(load.metrics)) == ("invalid", {})
    assert reason in load.reasons


@pytest.mark.parametrize(
    ("client", "file", "reason"),
    [
        ("vllm", "vllm-half-failed.json", "23 of 48 requests failed"),
        ("vllm", "vllm-all-failed-rc0.json", "48 of 48 requests failed"),
        ("sglang", "sglang-half-failed.jsonl", "24 of 48 requests failed"),
    ],
)
def test_real_runs_with_failures_that_ended_with_exit_code_0(client: str, file: str, reason: str) -> None:
    """No exit code is trusted: half or all requests failed, and the client said 0."""
    workload = workload_of(client, prompts_per_concurrency=6, output_tokens=16)
    load = parsed(workload, {"result": (SAMPLES / file).read_text()})
    assert (load.status, dict(load.metrics)) == ("invalid", {})
    assert load.reasons[0] == reason


@pytest.mark.parametrize("client", DRIVEN)
@pytest.mark.parametrize("n_left", [0, 200, -3])
def test_a_cut_file_is_failed(client: str, n_left: int) -> None:
    """Of a file that ends early nothing is used, and the client's last lines are told."""
    for key in FILES[client]:
        files = files_of(client)
        files[key] = files[key].rstrip()[:n_left]
        load = parsed(workload_of(client), files)
        assert (load.status, dict(load.metrics)) in (("failed", {}), ("invalid", {})), key
        if (key, n_left) != ("records", 0):
            assert load.reasons[0].startswith(f"{client}'s result is cut or of another kind"), key
            assert load.reasons[1] == "its last lines: Traceback | IndexError: list index out of range", key


@pytest.mark.parametrize("name", ["ttfts", "itls", "generated_texts", "input_lens", "start_times", "latencies"])
def test_arrays_that_do_not_fit_each_other_are_failed(name: str) -> None:
    """Without one element in one array nobody knows which request is which."""
    load = parsed(workload_of("vllm"), with_json("vllm", lambda result: result[name].pop()))
    assert load.status == "failed" and "arrays of [15, 16] requests" in load.reasons[0]


@pytest.mark.parametrize("client", DRIVEN)
def test_no_file_is_failed(client: str) -> None:
    """A client that ends with 0 and writes nothing has made no load."""
    load = parsed(workload_of(client), dict.fromkeys(FILES[client]))
    assert load.status == "failed" and load.reasons[0].startswith(f"{client} wrote no ")


FAILED: dict[str, tuple[dict[str, Any], ExitEvidence, str]] = {
    "deadline": (
        {"stopped_by": "load: no end within 360 s"},
        ExitEvidence("exited", 1, ()),
        "the load was stopped: load:",
    ),
    "exit code of the load": (
        {"steps": [step("load", files_of("vllm"), exit_code=1)]},
        EXITED,
        "the result says that all is well, and has no load that came to its end",
    ),
    "exit code of the driver": ({}, ExitEvidence("exited", 137, ()), "vllm's driver ended with exit code 137"),
    "our deadline": ({}, ExitEvidence("deadline", None, ()), "vllm's driver was stopped at its deadline"),
    "no load at all": ({"steps": []}, EXITED, "the result says that all is well"),
    "another client": ({"client": "sglang"}, EXITED, "the result is of sglang schema 1, not vllm 1"),
    "another load": ({"recipe": {"seed": 8}}, EXITED, "the result is of another load: concurrency None instead of 8"),
}


@pytest.mark.parametrize("rule", FAILED)
def test_a_load_that_did_not_come_to_its_end_is_failed(rule: str) -> None:
    """What was stopped, died or is of another load has no numbers, however good its file is."""
    fields, evidence, reason = FAILED[rule]
    load = parsed(workload_of("vllm"), files_of("vllm"), evidence, **fields)
    assert (load.status, dict(load.metrics)) == ("failed", {})
    assert load.reasons[0].startswith(reason)


def test_a_warm_up_that_failed_fails_the_load() -> None:
    """The warm-up is read by the same rules as the load, since its exit code says nothing either."""
    workload = workload_of("vllm", warmup_per_concurrency=6, output_tokens=32)
    bad = step("warm-up", {"result": (SAMPLES / "vllm-half-failed.json").read_text()})
    load = parsed(workload, {}, steps=[bad, step("load", files_of("vllm"))])
    assert load.status == "failed" and load.reasons[0] == "warm-up: 23 of 48 requests failed"


def test_sglang_dies_when_every_request_failed() -> None:
    """It writes no line then; its exit code and last words are the reason."""
    dead = step("load", {"result": None}, exit_code=1)
    load = parsed(workload_of("sglang"), {}, steps=[dead], stopped_by="load: exit code 1")
    assert (load.status, load.reasons) == (
        "failed",
        ("the load was stopped: load: exit code 1", "its last lines: Traceback | IndexError: list index out of range"),
    )


@pytest.mark.parametrize("raw", [None, b"", b"{", b"[]", b'{"client_version": null}'])
def test_a_driver_without_a_whole_result(raw: bytes | None) -> None:
    """Nothing, or a file of another shape, is failed without an exception."""
    load = load_client("vllm").parse(raw, ExitEvidence("exited", 2, ("boom",)), workload_of("vllm"), 8)
    assert (load.status, load.metrics) == ("failed", {})


def test_progress_is_the_phase_and_its_time() -> None:
    """These clients do not tell how many requests have ended, so nothing is counted."""
    raw = b'{"phase": "load", "elapsed_s": 2.5}'
    progress = load_client("vllm").parse_progress(raw, 8)
    assert progress is not None and (progress.phase, progress.n_total, progress.elapsed_s) == ("load", 0, 2.5)
    assert load_client("vllm").parse_progress(raw[:9], 8) is None


# ---- what is asked for


def spec_of(workload: Workload, engine: Engine, concurrency: int = 8) -> dict[str, Any]:
    """The driver's spec of a load."""
    run = load_client(workload.client).prepare(workload, engine, concurrency, "/r")
    assert run.argv == (engine.python, "-B", "/r/driver.py", "/r/spec.json")
    assert run.files["/r/driver.py"] == source(driver)
    spec: dict[str, Any] = json.loads(run.files["/r/spec.json"])
    return spec


def options(argv: list[str]) -> list[list[str]]:
    """The arguments, each option with its values."""
    grouped: list[list[str]] = []
    for word in argv:
        if word.startswith("-") and not word.lstrip("-").isdigit():
            grouped.append([word])
        else:
            grouped[-1].append(word)
    return grouped


RECIPE: dict[str, list[list[str]]] = {
    "sglang": [
        ["--random-input-len", "64"],
        ["--random-output-len", "32"],
        ["--random-range-ratio", "1.0"],
        ["--num-prompts", "16"],
        ["--max-concurrency", "8"],
        ["--request-rate", "inf"],
        ["--warmup-requests", "0"],
        ["--output-details"],
    ],
    "vllm": [
        ["--random-input-len", "64"],
        ["--random-output-len", "32"],
        ["--random-range-ratio", "0"],
        ["--num-prompts", "16"],
        ["--max-concurrency", "8"],
        ["--request-rate", "inf"],
        ["--ignore-eos"],
        ["--temperature", "0"],
        ["--ready-check-timeout-sec", "0"],
        ["--save-detailed"],
    ],
    "guidellm": [
        ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"],
        ["--constraint", "kind=max_requests,count=16"],
        ["--data-loader", "kind=pytorch,samples=16"],
        ["--profile", '{"kind": "concurrent", "streams": [8]}'],
    ],
    "aiperf": [
        ["--isl", "64"],
        ["--isl-stddev", "0"],
        ["--osl", "32"],
        ["--osl-stddev", "0"],
        ["--request-count", "16"],
        ["--concurrency", "8"],
        ["--extra-inputs", "ignore_eos:true"],
        ["--extra-inputs", "temperature:0"],
        ["--use-server-token-count"],
    ],
}


@pytest.mark.parametrize("client", DRIVEN)
def test_one_recipe_means_the_same_load_for_every_client(client: str) -> None:
    """Fixed lengths, number, concurrency, greedy decoding; the client's own warm-up and test request are off."""
    (load,) = spec_of(workload_of(client), VLLM)["steps"]
    given = options(load["args"])
    assert [one for one in RECIPE[client] if one not in given] == []
    assert load["name"] == "load"


def test_warm_up_and_every_concurrency_have_prompts_of_their_own() -> None:
    """The same seed gives the same prompts again; warm-up and other concurrencies share none with the load."""
    workload = workload_of("vllm", warmup_per_concurrency=1)
    seeds = []
    for concurrency in (8, 8, 64):
        for one in spec_of(workload, VLLM, concurrency)["steps"]:
            given = options(one["args"])
            seeds.append(next(value for name, *values in given for value in values if name == "--seed"))
    assert seeds[:2] == seeds[2:4] and len(set(seeds)) == 4
    assert seeds[1] == str(seed_of(workload, 8, "load"))


def test_sglangs_client_sends_token_ids_to_sglang_only() -> None:
    """Its native backend is the one that takes ids; any other engine is asked as the rest of the world asks it."""
    workload = workload_of("sglang")
    native = options(spec_of(workload, SGLANG)["steps"][0]["args"])
    other = options(spec_of(workload, VLLM)["steps"][0]["args"])
    assert ["--backend", "sglang"] in native and ["--tokenize-prompt"] in native
    assert ["--backend", "vllm"] in other and ["--tokenize-prompt"] not in other
    in_its_folder = replace(VLLM, kind="vllm", command=("/opt/sglang-bench/bin/vllm", "serve"))
    assert ["--backend", "vllm"] in options(spec_of(workload, in_its_folder)["steps"][0]["args"])
    by_kind = replace(VLLM, kind="sglang", command=("/opt/serve",))
    assert ["--backend", "sglang"] in options(spec_of(workload, by_kind)["steps"][0]["args"])


def test_forms_of_the_clients() -> None:
    """SGLang's new module comes before the old one; vLLM's program is beside the engine's python."""
    sglang = spec_of(workload_of("sglang"), SGLANG)["candidates"]
    assert [one["argv"][1:] for one in sglang] == [["-m", "sglang.benchmark.serving"], ["-m", "sglang.bench_serving"]]
    assert "sglang.bench_serving" in sglang[1]["version_argv"][-1]
    (vllm,) = spec_of(workload_of("vllm"), VLLM)["candidates"]
    assert vllm["argv"] == ["/opt/vllm/bin/vllm", "bench", "serve"]
    assert vllm["version_argv"] == ["/opt/vllm/bin/vllm", "--version"]
    for command in (("/a/aiperf",), ("/a/aiperf", "profile")):
        (aiperf,) = spec_of(workload_of("aiperf", client_command=command), VLLM)["candidates"]
        assert (aiperf["argv"], aiperf["version_argv"]) == (["/a/aiperf", "profile"], ["/a/aiperf", "--version"])


def test_deadlines() -> None:
    """A load has the time of its requests and one more for the start, and never more than the whole."""
    workload = workload_of("vllm", warmup_per_concurrency=1, request_timeout_s=10, load_timeout_s=25)
    assert [one["deadline_s"] for one in spec_of(workload, VLLM)["steps"]] == [20, 25]


def test_flush_and_environment() -> None:
    """The flush is asked for where the recipe says so; the client's environment is its own."""
    workload = workload_of("vllm", cache_policy="flush", client_env={"HF_HUB_OFFLINE": "1"})
    spec = spec_of(workload, VLLM)
    assert (spec["flush_url"], spec["env"]) == ("http://127.0.0.1:30000/flush_cache", {"HF_HUB_OFFLINE": "1"})
    assert spec_of(workload_of("vllm"), VLLM)["flush_url"] is None


@pytest.mark.parametrize("client", DRIVEN)
def test_a_flush_without_an_address_is_refused(client: str) -> None:
    """What cannot be done is said before anything is started."""
    with pytest.raises(LoadError, match="engine vllm has no cache_flush_path"):
        spec_of(workload_of(client, cache_policy="flush"), replace(VLLM, cache_flush_path=None))


@pytest.mark.parametrize("client", [*DRIVEN, "loadgen"])
def test_an_engine_that_takes_no_load_of_ours_is_refused(client: str) -> None:
    """transformers serve answers 422 to ignore_eos and 400 to token ids: said with the way out, by every client."""
    with pytest.raises(LoadError, match=r"engine vllm is transformers: it takes no ignore_eos.*orch has no client"):
        load_client(client).prepare(workload_of(client), replace(VLLM, kind="transformers"), 1, "/")


def test_vllms_client_is_refused_where_it_cannot_count() -> None:
    """llama-server tells its tokens where vLLM's client does not look; it would count those of the text anew."""
    with pytest.raises(LoadError, match="does not see how many tokens llama-server made"):
        spec_of(workload_of("vllm"), replace(VLLM, kind="llama-server"))


def test_the_limit_of_a_request_is_given_to_who_takes_one() -> None:
    """GuideLLM and AIPerf end a request that stalls by themselves."""
    fields = {"request_timeout_s": 7.5}
    guide_args = spec_of(workload_of("guidellm", **fields), VLLM)["steps"][0]["args"]
    assert json.loads(guide_args[guide_args.index("--backend") + 1])["timeout"] == 7.5
    aiperf_args = spec_of(workload_of("aiperf", **fields), VLLM)["steps"][0]["args"]
    assert ["--request-timeout-seconds", "7.5"] in options(aiperf_args)


def test_aiperf_needs_the_models_name() -> None:
    """AIPerf cannot do without one, so an engine without a model is refused before the run."""
    with pytest.raises(LoadError, match="aiperf must name a model, and engine vllm has no model"):
        spec_of(workload_of("aiperf"), replace(VLLM, model=None))


# ---- elsewhere

PLAN = Plan(
    target="t",
    host="h",
    workload="small",
    arms=(Arm("baseline", "d"), Arm("V1", "e")),
    concurrencies=(8,),
    primary_concurrency=8,
    metric="output_tokens_per_s",
    margin=0.01,
    looks=(6,),
    thresholds=(0.05,),
    seed=1,
    starts=(),
)


def test_every_client_of_the_inventory_has_an_adapter() -> None:
    """The names that a workload may give are those that there are adapters for."""
    assert set(CLIENTS) == {"loadgen", *DRIVEN}
    assert [load_client(name).name for name in CLIENTS] == list(CLIENTS)


def result_of(client: str) -> LoadResult:
    """A good load as it is stored."""
    load = parsed(workload_of(client), files_of(client))
    times = {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:09Z"}
    return LoadResult(
        concurrency_cap=8,
        status=load.status,
        reasons=(),
        metrics=load.metrics,
        requests=load.requests,
        client=client,
        client_version="9.8.7",
        argv=(),
        raw=b"{}",
        **times,
    )


@pytest.mark.parametrize("client", DRIVEN)
def test_a_good_load_of_any_client_is_admitted(client: str) -> None:
    """Also of one that does not write when it sent its requests; without texts there is no canary."""
    baseline = start_of(client, "baseline")
    workload = workload_of(client)
    assert judge(baseline, workload, PLAN).reasons == ()
    earlier = [remember(baseline, PLAN.metric)] * 4
    admission = judge(start_of(client, "V1"), workload, PLAN, earlier)
    assert (admission.reasons, admission.flags, admission.is_wrong_output) == ((), (), False)


@pytest.mark.parametrize("client", DRIVEN)
def test_a_load_of_any_client_is_stored_and_read_back(client: str, tmp_path: Path) -> None:
    """Requests without moments, gaps or texts and metrics that were not measured come back as they were."""
    load = result_of(client)
    with Store.open(tmp_path / "results.db") as store:
        store.record_snapshot(store_records.snapshot())
        store.set_baseline(store_records.snapshot())
        store_records.trial(store, loads=(load,))
        back = store.load(1)
    for wanted, found in zip(load.requests, back.requests, strict=True):
        assert found.itl_ms == pytest.approx(wanted.itl_ms, abs=1e-3)
    assert replace(back, requests=()) == replace(load, requests=(), metrics=dict(load.metrics))
    assert [replace(one, itl_ms=()) for one in back.requests] == [replace(one, itl_ms=()) for one in load.requests]


def test_a_load_of_loadgen_still_needs_every_time() -> None:
    """What SGLang's client cannot tell is a fault in a record of loadgen."""
    reasons = judge(start_of("sglang", "baseline"), workload_of("loadgen", client_command=()), PLAN).reasons
    assert reasons == ("concurrency 8: 16 of 16 requests: a time is missing or not finite",)


def start_of(client: str, arm: str) -> StartFacts:
    """An engine start with one good load."""
    return StartFacts(
        block=0,
        arm=arm,
        is_baseline=arm == "baseline",
        status="ok",
        reasons=(),
        digest="d",
        loaded_digest="d",
        digest_before="d",
        digest_after="d",
        process_before=(1, 1),
        process_after=(1, 1),
        loads=(result_of(client),),
    )
