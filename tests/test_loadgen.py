"""The real load client, as a process of its own, against a server whose truth is known."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clients import loadgen
from tests.support.stub_engine import RunningStub, running_stub, text_of
from tests.support.waiting import wait_until

N_TOKENS = 8


def spec_of(tmp_path: Path, url: str, **fields: Any) -> dict[str, Any]:
    """A small load that would be good."""
    return {
        "url": url,
        "concurrency": 2,
        "n_requests": 6,
        "input_tokens": 16,
        "output_tokens": N_TOKENS,
        "seed": 7,
        "request_timeout_s": 5,
        "load_timeout_s": 20,
        "result_path": str(tmp_path / "result.json"),
        "progress_path": str(tmp_path / "progress.json"),
        **fields,
    }


def started(tmp_path: Path, spec: dict[str, Any]) -> subprocess.Popen[str]:
    """loadgen as orch starts it: one file, no package around it."""
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    return subprocess.Popen([sys.executable, loadgen.__file__, path], stderr=subprocess.PIPE, text=True, cwd=tmp_path)


def result_of(tmp_path: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Runs a load to its end."""
    with started(tmp_path, spec) as process:
        _, stderr = process.communicate(timeout=30)
    assert "Traceback" not in stderr
    result = json.loads((tmp_path / "result.json").read_bytes())
    is_good = result["complete"] and all(one["error"] is None for one in result["requests"])
    assert process.returncode == (0 if is_good else 1)
    return dict(result)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """A load in which nothing goes wrong: (spec, what the server saw, result)."""
    tmp_path = tmp_path_factory.mktemp("good")
    with running_stub("--ttft-ms", 10, "--itl-ms", 2) as stub:
        spec = spec_of(tmp_path, stub.url, concurrency=3, n_requests=12, n_warmup=5)
        spec["cache_flush_url"] = stub.base_url + "/flush_cache"
        result = result_of(tmp_path, spec)
        assert json.loads(stub.get("/health"))["n_flushes"] == 1
        assert json.loads((tmp_path / "progress.json").read_bytes())["n_done"] == 12
        return spec, stub.log(), result


def test_a_good_load_has_no_errors(good: Any) -> None:
    """A load against a well-behaved server is complete, and every request carries the server's counts."""
    _, _, result = good
    assert result["complete"] and result["stopped_by"] is None
    assert [one["i"] for one in result["requests"]] == list(range(12))
    for one in result["requests"]:
        assert one["error"] is None
        assert (one["n_input_tokens"], one["n_output_tokens"], one["n_chunks"]) == (16, N_TOKENS, N_TOKENS)
        assert len(one["itl_ms"]) == N_TOKENS - 1


def test_times_agree_with_what_the_server_did(good: Any) -> None:
    """No chunk is stamped before the server handed it to its socket, and request and chunks are in order."""
    fields, served, result = good
    zero, by_prompt = result["clock_zero_s"], {one["prompt"]: one for one in served}
    measured, _ = loadgen.prompts(loadgen.Spec(**fields))
    for one, ids in zip(result["requests"], measured, strict=True):
        truth = by_prompt[loadgen.prompt_digest(ids).hex()]
        assert one["sent_s"] + zero <= truth["received_s"] + 1e-6
        assert one["first_chunk_s"] + zero >= truth["sent_s"][0] - 1e-6
        assert one["last_chunk_s"] + zero >= truth["sent_s"][-1] - 1e-6


def test_the_text_digest_is_of_the_whole_decoded_text(good: Any) -> None:
    """Escapes inside chunks are decoded: the digest is of the text itself."""
    _, _, result = good
    expected = "sha256:" + hashlib.sha256(text_of(N_TOKENS).encode()).hexdigest()
    assert {one["text_digest"] for one in result["requests"]} == {expected}


def test_the_concurrency_cap_is_kept_and_the_peak_told(good: Any) -> None:
    """Never more than the cap are in flight at the server, and the peak seen is reported."""
    spec, served, result = good
    assert max(one["in_flight"] for one in served) == spec["concurrency"] == result["concurrency_peak"]


def test_connections_are_kept_alive(good: Any) -> None:
    """A slot keeps one connection for warm-up and load."""
    _, served, result = good
    assert len({one["connection"] for one in served}) == 3
    assert result["n_reconnects"] == 0


def test_prompts_are_those_of_the_seed(good: Any) -> None:
    """The server received exactly the prompts that the spec's seed names, and no two were equal."""
    fields, served, _ = good
    measured, warmup = loadgen.prompts(loadgen.Spec(**fields))
    digests = [loadgen.prompt_digest(ids).hex() for ids in (*warmup, *measured)]
    assert sorted(one["prompt"] for one in served) == sorted(digests)
    assert len(set(digests)) == 17


def test_warm_up_is_reported_apart(good: Any) -> None:
    """Warm-up requests are counted on their own and are not among the measured ones."""
    _, served, result = good
    assert (result["warmup"]["n_requests"], result["warmup"]["n_done"], result["warmup"]["n_failed"]) == (5, 5, 0)
    assert len(served) == 17 and len(result["requests"]) == 12


def test_a_prompt_is_the_same_for_ever() -> None:
    """The generator's output is fixed by its definition, not by a library."""
    spec = loadgen.Spec(**spec_of(Path("/"), "http://127.0.0.1:1/", input_tokens=4))
    stream = hashlib.shake_256(b"orch-loadgen-1/7/2/measured/0/0").digest(16)
    words = [int.from_bytes(stream[k : k + 4], "little") for k in range(0, 16, 4)]
    assert loadgen.prompt_ids(spec, "measured", 0) == tuple(1000 + word % 30001 for word in words)
    assert loadgen.prompt_ids(spec, "measured", 0) == (20797, 19823, 6456, 16883)


def test_prompts_stay_distinct_in_a_tiny_vocabulary() -> None:
    """Warm-up never repeats a measured prompt, even where chance would make it so."""
    fields = spec_of(Path("/"), "http://127.0.0.1:1/", input_tokens=1, min_token_id=0, max_token_id=63)
    spec = loadgen.Spec(**{**fields, "n_requests": 20, "n_warmup": 12})
    measured, warmup = loadgen.prompts(spec)
    assert len({*measured, *warmup}) == 32
    assert measured == loadgen.prompts(loadgen.Spec(**{**fields, "n_requests": 20}))[0]


FAULTS = {
    "http:500": "HTTP 500: ",
    "http:429": "HTTP 429: ",
    "error:3": "error inside a 200 answer: the scheduler fell over",
    "error:0": "error inside a 200 answer: the scheduler fell over",
    "stall:2": "no end within 0.5 s: 2 chunks had come",
    "cut:4": "cut answer: connection closed after 4 chunks",
    "short:3": "wrong output length: 3 of 8 tokens",
    "no-usage": "no usage in the answer",
    "wrong-usage": "wrong output length: 9 of 8 tokens",
    "wrong-input": "wrong input length: 15 of 16 tokens",
    "no-done": "no [DONE] at the end: 8 chunks had come",
    "empty-text": "empty text",
    "bad-json:2": "event is not JSON: ",
    "abort": "finish reason abort",
    "not-stream": "answer is not an event stream: content type application/json",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One load in which every second request goes wrong in another way; records by fault."""
    tmp_path = tmp_path_factory.mktemp("faulty")
    faults = [f"{2 * i}={mode}" for i, mode in enumerate(FAULTS)]
    with running_stub("--ttft-ms", 2, "--itl-ms", 1, faults=faults) as stub:
        spec = spec_of(tmp_path, stub.url, concurrency=1, n_requests=2 * len(FAULTS), request_timeout_s=0.5)
        result = result_of(tmp_path, {**spec, "max_failed": 1000})
    assert all(one["error"] is None for one in result["requests"][1::2])
    return {mode: result["requests"][2 * i] for i, mode in enumerate(FAULTS)}


@pytest.mark.parametrize("mode", FAULTS)
def test_a_bad_answer_is_never_called_good(faulty: Any, mode: str) -> None:
    """Each fault is told by its name, and the request after it is good again."""
    assert faulty[mode]["error"].startswith(FAULTS[mode])


def test_an_engine_that_dies_ends_the_load_early(tmp_path: Path) -> None:
    """When the server is gone the load stops at as many failures as its concurrency; the rest is told as not sent.

    The other request that is under way just then may fail by itself as well, before it is cut short.
    """
    with running_stub("--ttft-ms", 2, "--itl-ms", 2, faults=["2=die:3"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, n_requests=40))
    errors = [one["error"] for one in result["requests"] if one["error"] is not None]
    assert not result["complete"] and result["stopped_by"] == "failed requests: 2"
    n_failed = sum(error.startswith(("cut answer", "connection closed", "could not connect")) for error in errors)
    assert n_failed in (2, 3)
    assert errors[-1] == "not sent: failed requests: 2"


def test_nobody_listens(tmp_path: Path) -> None:
    """A refused connection is a failed request with its reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = result_of(tmp_path, spec_of(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}/v1/completions"))
    assert result["requests"][0]["error"].startswith("could not connect: ")
    assert result["requests"][0]["sent_s"] is None


def test_a_connection_that_had_been_idle_is_opened_again(tmp_path: Path) -> None:
    """A server that closes a kept connection without an answer costs a retry, which is told, and no request."""
    with running_stub("--ttft-ms", 2, faults=["2=hang-up"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, concurrency=1))
    assert [one["error"] for one in result["requests"]] == [None] * 6
    assert [one["n_retries"] for one in result["requests"]] == [0, 0, 1, 0, 0, 0]
    assert result["n_reconnects"] == 1


def test_a_fresh_connection_is_not_tried_again(tmp_path: Path) -> None:
    """A server that answers nothing at all fails the request after one retry, instead of looping."""
    with running_stub(faults=["all=hang-up"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, concurrency=1, n_requests=1))
    assert result["requests"][0]["error"] == "connection closed before the answer"
    assert result["requests"][0]["n_retries"] == 1


def test_a_server_that_closes_after_each_answer(tmp_path: Path) -> None:
    """Answers that are whole are good even if the connection then ends; the next request opens another."""
    with running_stub("--ttft-ms", 2, faults=["all=close"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, concurrency=1))
    assert [one["error"] for one in result["requests"]] == [None] * 6


def test_a_failed_warm_up_ends_the_run(tmp_path: Path) -> None:
    """An engine that cannot serve the warm-up is not measured."""
    with running_stub("--ttft-ms", 1, faults=["1=http:503"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, n_warmup=4))
        assert len(stub.log()) == 4
    assert result["stopped_by"] == "failed warm-up requests: 1"
    assert result["warmup"]["errors"][0].startswith("HTTP 503")
    assert {one["error"] for one in result["requests"]} == {"not sent: failed warm-up requests: 1"}


def test_a_refused_cache_flush_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flush that was asked for there is no measurement."""
    monkeypatch.setattr(loadgen, "FLUSH_PATIENCE_S", 0.0)
    with running_stub() as stub:
        spec = loadgen.Spec(**spec_of(tmp_path, stub.url, cache_flush_url=stub.base_url + "/nowhere"))
        load = loadgen.Load(spec)
        loadgen.asyncio.run(load.run())
        assert stub.log() == []
    assert load.stopped_by == f"cache flush: {stub.base_url}/nowhere answered HTTP 404"


def test_sigterm_leaves_what_there_is(tmp_path: Path) -> None:
    """TERM ends the load at once, and its result says that it is not complete."""
    with (
        running_stub("--ttft-ms", 2, "--itl-ms", 1, faults=["4=stall:2", "5=stall:2"]) as stub,
        started(tmp_path, spec_of(tmp_path, stub.url, n_requests=10)) as process,
    ):
        wait_until(lambda: len(stub.log()) == 6 and len(stub.log()[5]["sent_s"]) == 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert process.returncode == 1
    assert (result["complete"], result["stopped_by"]) == (False, "SIGTERM")
    errors = [one["error"] for one in result["requests"]]
    assert errors == [None] * 4 + ["load stopped: SIGTERM"] * 2 + ["not sent: SIGTERM"] * 4


def test_the_whole_load_has_a_deadline(tmp_path: Path) -> None:
    """A load whose requests never end is stopped at the load's own deadline, which comes before theirs."""
    with running_stub(faults=["all=stall:1"]) as stub:
        result = result_of(tmp_path, spec_of(tmp_path, stub.url, request_timeout_s=60, load_timeout_s=0.5))
    assert result["stopped_by"] == "deadline: 0.5 s"
    assert result["requests"][0]["error"] == "load stopped: deadline: 0.5 s"


def test_progress_is_written_while_the_load_runs(tmp_path: Path) -> None:
    """The progress file names the phase and the counts before the load has ended."""
    with running_stub("--ttft-ms", 1, "--itl-ms", 1, faults=["3=stall:1"]) as stub:
        spec = spec_of(tmp_path, stub.url, concurrency=1, n_requests=5)
        with started(tmp_path, spec) as process:

            def progress() -> dict[str, Any]:
                path = tmp_path / "progress.json"
                return dict(json.loads(path.read_bytes())) if path.exists() else {}

            wait_until(lambda: progress().get("n_done") == 3)
            assert (progress()["phase"], progress()["n_total"], progress()["n_failed"]) == ("load", 5, 0)
            process.terminate()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"concurrency": 0}, "concurrency must be a number of at least 1, not 0"),
        ({"concurrency": "8"}, "concurrency must be a number"),
        ({"output_tokens": True}, "output_tokens must be a number"),
        ({"request_timeout_s": 0}, "request_timeout_s must be above 0"),
        ({"url": None}, "url must be a text"),
        ({"colour": 1}, "unknown field: colour"),
        ({"max_token_id": 1000, "input_tokens": 1}, "too few for 6 different prompts"),
    ],
)
def test_a_wrong_spec_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """A spec that is wrong names its field; nothing is sent."""
    fields = {**spec_of(tmp_path, "http://127.0.0.1:1/"), **change}
    with pytest.raises(loadgen.SpecError, match=told):
        loadgen.read_spec(json.dumps(fields).encode())


def test_a_missing_field_ends_with_exit_code_2(tmp_path: Path) -> None:
    """The command line tells what is missing in one line, without a traceback."""
    fields = spec_of(tmp_path, "http://127.0.0.1:1/")
    del fields["seed"]
    with started(tmp_path, fields) as process:
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "seed" in stderr and len(stderr.splitlines()) == 1


# ---- the parser alone, on answers that no stub would send


@contextlib.contextmanager
def scripted_server(pieces: Sequence[bytes]) -> Iterator[str]:
    """A server that sends given pieces, one send a piece, and then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.002)  # so that the next piece is a read of its own

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    thread.join()


def asked(url: str) -> dict[str, Any]:
    """One request through the real connection code."""
    fields = spec_of(Path("/"), url, n_requests=1, concurrency=1, output_tokens=2, progress_path=None)
    load = loadgen.Load(loadgen.Spec(**fields))
    loadgen.asyncio.run(load.run())
    return load.measured.records[0].as_json(0.0)


BODY = (
    b'data: {"choices": [{"index": 0, "text": "caf\\u00e9 \\"error\\": ", "finish_reason": null}], "usage": null}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"text":"\xc3\xbc\\n","finish_reason":null}]}\r\n\r\n'
    b'data: {"choices":[{"text":"","finish_reason":"length"}],"error":null}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(body: bytes, size: int) -> bytes:
    """The body in HTTP chunks that heed no line ends, with an extension and a trailer."""
    parts = [body[k : k + size] for k in range(0, len(body), size)]
    return b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: 1\r\n\r\n"


FRAMINGS = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 7),
    "by length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "until the end": HEAD + b"Connection: close\r\n\r\n" + BODY,
    "after 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("n_bytes", [5, 61, 100_000])
def test_every_framing_and_every_cut_of_the_bytes_reads_the_same(framing: str, n_bytes: int) -> None:
    """However the answer is framed and wherever reads cut it, text and counts come out whole."""
    raw = FRAMINGS[framing]
    with scripted_server([raw[k : k + n_bytes] for k in range(0, len(raw), n_bytes)]) as url:
        record = asked(url)
    assert record["error"] is None
    assert (record["n_chunks"], record["n_input_tokens"], record["n_output_tokens"]) == (2, 16, 2)
    assert record["text_digest"] == "sha256:" + hashlib.sha256('café "error": ü\n'.encode()).hexdigest()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "answer is not HTTP"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "answer is not HTTP"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", "answer is not HTTP"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 40)[:-20], "cut answer"),
        (HEAD + b"Content-Length: 9999\r\n\r\n" + BODY, "cut answer"),
        (
            HEAD + b'\r\ndata: {"object": "error", "message": "no such model"}\n\n',
            "error inside a 200 answer: no such model",
        ),
        (
            HEAD + b'\r\ndata: {"choices": [{"text": "a", "finish_reason": null}], "error": {"message": "late"}}\n\n',
            "error inside a 200 answer: late",
        ),
        (HEAD + b'\r\ndata: {"choices": [{"delta": {}}]}\n\n', "choice without a text"),
        (HEAD + b"\r\n", "no [DONE] at the end"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", "HTTP 404: gone"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP 400"),
    ],
)
def test_what_is_not_a_good_answer_says_why(answer: bytes, told: str) -> None:
    """A broken protocol ends in the request's error, not in an exception of the client."""
    with scripted_server([answer]) as url:
        record = asked(url)
    assert record["error"] is not None and record["error"].startswith(told)


def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    """What a server sends between two answers is never taken for the next answer."""

    class Transport(loadgen.asyncio.Transport):
        is_aborted = False

        def abort(self) -> None:
            self.is_aborted = True

    transport, connection = Transport(), loadgen.Connection()
    connection.connection_made(transport)
    unasked = b"HTTP/1.1 408 Request Timeout\r\n\r\n"
    connection.get_buffer(-1)[: len(unasked)] = unasked
    connection.buffer_updated(len(unasked))
    assert connection.is_closed and transport.is_aborted


def test_it_runs_alone(tmp_path: Path) -> None:
    """loadgen.py needs neither orch nor any package: python -I -S runs it."""
    with running_stub("--ttft-ms", 1) as stub:
        path = tmp_path / "spec.json"
        path.write_text(json.dumps(spec_of(tmp_path, stub.url)))
        copy = tmp_path / "loadgen.py"
        copy.write_bytes(Path(loadgen.__file__).read_bytes())
        subprocess.run([sys.executable, "-I", "-S", copy, path], check=True, cwd=tmp_path, env=dict(os.environ))


def test_stub_log_is_readable(tmp_path: Path) -> None:
    """The stub's own log, on which benchmarks rely, names the send time of every chunk."""
    stub: RunningStub
    with running_stub("--ttft-ms", 1, "--itl-ms", 1) as stub:
        result_of(tmp_path, spec_of(tmp_path, stub.url, n_requests=2))
        assert [len(one["sent_s"]) for one in stub.log()] == [N_TOKENS] * 2
