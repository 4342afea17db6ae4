"""The engine as its users meet it: a process, started from a folder that holds a copy of ``kernel/``, over HTTP."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")

from tests.support.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]
PROMPT = [7, 300, 12, 4000, 99, 1, 2, 3, 500, 501]


class EngineProcess:
    """One engine on a free port."""

    def __init__(self, cwd: Path, log: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kernel.engine", "--port", str(self.port), "--device", "cpu", *arguments],
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )

    def health(self) -> int | None:
        """Status of /health, None while nothing listens."""
        try:
            return self.get("/health")[0]
        except OSError:
            return None

    def wait_ready(self) -> EngineProcess:
        wait_until(lambda: self.health() == 200 or self.process.poll() is not None, timeout_s=60)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"engine_{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def post(self, body: Any) -> tuple[int, dict[str, Any]]:
        connection = self.open(body)
        try:
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def open(self, body: Any) -> http.client.HTTPConnection:
        """A request on its way; the answer is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/v1/completions", payload, {"Content-Type": "application/json"})
        return connection

    def events(self, body: dict[str, Any]) -> list[str]:
        """The data of all events of a stream."""
        connection = self.open({**body, "stream": True})
        try:
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            lines = answer.read().decode().split("\n\n")
            return [line.removeprefix("data: ") for line in lines if line]
        finally:
            connection.close()

    def tokens(self, prompt: Any, max_tokens: int) -> list[int]:
        """The output of one request."""
        status, body = self.post({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True})
        assert status == 200, body
        return body["choices"][0]["token_ids"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of ``kernel/`` and nothing else."""
    path = tmp_path_factory.mktemp("host")
    shutil.copytree(ROOT / "kernel", path / "kernel", ignore=shutil.ignore_patterns("__pycache__"))
    return path


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine with room for everything."""
    log = tmp_path_factory.mktemp("log") / "engine.log"
    started = EngineProcess(folder, log, "--layers", "2", "--max-model-len", "512").wait_ready()
    yield started
    if started.process.poll() is None:
        started.stop()


@pytest.fixture(scope="module")
def tight_engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The same weights, but room for few: 2 rows, 12 pages of 16 tokens, short prefill chunks."""
    log = tmp_path_factory.mktemp("log") / "engine.log"
    arguments = "--layers 2 --max-model-len 512 --max-batch 2 --n-pages 13 --page-size 16 --prefill-chunk 24"
    started = EngineProcess(folder, log, *arguments.split()).wait_ready()
    yield started
    if started.process.poll() is None:
        started.stop()


def prompts(n: int, n_tokens: int = 20) -> list[list[int]]:
    """Different prompts, the same each time."""
    return [[(31 * number + 7 * position) % 4096 for position in range(n_tokens)] for number in range(n)]


def test_loaded_is_the_digest_of_the_file(engine: EngineProcess, folder: Path) -> None:
    """/loaded names the bytes of the copy in the engine's own folder."""
    content = (folder / "kernel" / "sparse_mla_decode.py").read_bytes()
    status, body = engine.get("/loaded")
    assert status == 200
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    assert json.loads(body) == {"modules": {"kernel.sparse_mla_decode": digest}}


def test_streaming_sends_one_visible_token_a_chunk(engine: EngineProcess) -> None:
    """Every chunk has one token id and its text; the last has the reason; usage and [DONE] follow."""
    *chunks, usage, done = engine.events(
        {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "stream_options": {"include_usage": True}}
    )
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert done == "[DONE]"
    assert all(choice["text"] and len(choice["token_ids"]) == 1 for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
    assert [choice["token_ids"][0] for choice in choices] == engine.tokens(PROMPT, 12)


def test_stream_without_usage_has_none(engine: EngineProcess) -> None:
    """Usage is sent only where it was asked for; asked for continuously, it counts up."""
    *chunks, done = engine.events({"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True})
    assert done == "[DONE]"
    assert [json.loads(chunk)["usage"] for chunk in chunks] == [None] * 3
    options = {"continuous_usage_stats": True}
    *chunks, done = engine.events({"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True, "stream_options": options})
    assert [json.loads(chunk)["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]


@pytest.mark.parametrize("max_tokens", [1, 2, 33])
def test_token_counts_are_exact(engine: EngineProcess, max_tokens: int) -> None:
    """A request gets the tokens that it asked for, and the usage and the counters say so."""
    before = engine.metric("generation_tokens_total"), engine.metric("prompt_tokens_total")
    status, body = engine.post({"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True})
    assert status == 200
    assert body["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": max_tokens,
        "total_tokens": 10 + max_tokens,
    }
    assert len(body["choices"][0]["token_ids"]) == max_tokens
    assert engine.metric("generation_tokens_total") == before[0] + max_tokens
    assert engine.metric("prompt_tokens_total") == before[1] + 10


def test_text_prompts_are_bytes(engine: EngineProcess) -> None:
    """A text and the list of its bytes are the same prompt."""
    assert engine.tokens("hé", 5) == engine.tokens([104, 195, 169], 5)


def test_same_seed_same_tokens_whatever_the_load(engine: EngineProcess, tight_engine: EngineProcess) -> None:
    """One by one, 8 at once, or on a starved engine with 2 rows, few pages and chunked prompts: the same tokens.

    On the starved engine 9 requests of 4 pages each want 36 of its 12 pages and 9 of its 2 rows: all finish.
    """
    many = prompts(9, n_tokens=40)
    alone = [engine.tokens(prompt, 10) for prompt in many]
    assert len({tuple(tokens) for tokens in alone}) == 9
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda prompt: engine.tokens(prompt, 10), many))
        starved = list(pool.map(lambda prompt: tight_engine.tokens(prompt, 10), many))
    assert together == alone
    assert starved == alone
    assert tight_engine.metric("kv_pages_used") == 0
    assert engine.metric("decode_rows_total") > engine.metric("decode_step_seconds_count")


def test_another_seed_gives_other_tokens(folder: Path, engine: EngineProcess, tmp_path: Path) -> None:
    """The weights come from the seed; and SIGTERM ends an idle engine with exit code 0."""
    other = EngineProcess(folder, tmp_path / "log", "--layers", "2", "--seed", "1").wait_ready()
    try:
        assert other.tokens(PROMPT, 8) != engine.tokens(PROMPT, 8)
    finally:
        assert other.stop() == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(engine: EngineProcess, stream: bool) -> None:
    """When the client closes the line, its request ends and its pages are free again."""
    before = engine.metric("requests_cancelled_total")
    connection = engine.open({"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "stream": stream})
    if stream:
        assert connection.getresponse().readline().startswith(b"data: ")
    wait_until(lambda: engine.metric("kv_pages_used") > 0)
    assert connection.sock is not None or stream
    connection.close()
    wait_until(lambda: engine.metric("requests_cancelled_total") == before + 1)
    wait_until(lambda: engine.metric("kv_pages_used") == 0 and engine.metric("requests_running") == 0)


def test_a_waiting_client_that_leaves_is_forgotten(tight_engine: EngineProcess) -> None:
    """A request that waits for pages is dropped when its client leaves; the running one is not disturbed."""
    running = tight_engine.open({"prompt": PROMPT, "max_tokens": 180, "ignore_eos": True})
    wait_until(lambda: tight_engine.metric("requests_running") == 1)
    waiting = tight_engine.open({"prompt": PROMPT, "max_tokens": 180, "ignore_eos": True})
    wait_until(lambda: tight_engine.metric("requests_waiting") == 1)
    waiting.close()
    wait_until(lambda: tight_engine.metric("requests_waiting") == 0)
    assert len(json.loads(running.getresponse().read())["choices"][0]["token_ids"]) == 180
    running.close()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (b"{not json", None, "not JSON"),
        ([1, 2], None, "JSON object"),
        ({}, "prompt", "prompt"),
        ({"prompt": ""}, "prompt", "not empty"),
        ({"prompt": [1, -1]}, "prompt", "-1"),
        ({"prompt": [1, 4096]}, "prompt", "4096"),
        ({"prompt": [1, True]}, "prompt", "True"),
        ({"prompt": ["a", "b"]}, "prompt", "2 prompts"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": [1], "max_tokens": 512}, "max_tokens", "at most 512"),
        ({"prompt": [1] * 600}, "prompt", "at most 512"),
        ({"prompt": [1], "temperature": 0.7}, "temperature", "greedy"),
        ({"prompt": [1], "n": 2}, "n", "not supported"),
        ({"prompt": [1], "stop": ["x"]}, "stop", "not supported"),
        ({"prompt": [1], "stream": "yes"}, "stream", "true or false"),
        ({"prompt": [1], "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"prompt": [1], "prompts": 3}, "prompts", "unknown field"),
    ],
)
def test_bad_requests_are_refused(engine: EngineProcess, body: Any, param: str | None, words: str) -> None:
    """A field that is wrong or cannot be obeyed is a 400 with OpenAI's error object, naming the field."""
    status, answer = engine.post(body)
    assert status == 400
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"
    assert words in answer["error"]["message"]


def test_fields_of_load_clients_are_accepted_when_neutral(engine: EngineProcess) -> None:
    """The fields that load clients always send change nothing at their neutral values."""
    neutral = {"n": 1, "best_of": 1, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": None, "stop": None, "seed": 3}
    status, _ = engine.post({"prompt": PROMPT, "model": "sparse-mla-random", "temperature": 0.0, **neutral})
    assert status == 200


def test_what_is_not_there_is_404(engine: EngineProcess) -> None:
    """An unknown model or path is a 404 with an error object; there is no cache, so no route to flush one."""
    status, answer = engine.post({"prompt": PROMPT, "model": "gpt"})
    assert (status, answer["error"]["param"]) == (404, "model")
    status, text = engine.get("/flush_cache")
    assert (status, json.loads(text)["error"]["code"]) == (404, 404)


def test_models_and_metrics(engine: EngineProcess) -> None:
    """The one model is listed, and the metrics are Prometheus text with a consistent histogram."""
    assert json.loads(engine.get("/v1/models")[1])["data"][0]["id"] == "sparse-mla-random"
    text = engine.get("/metrics")[1]
    assert "# TYPE engine_decode_step_seconds histogram" in text
    (last_bucket,) = [
        line for line in text.splitlines() if line.startswith('engine_decode_step_seconds_bucket{le="+Inf"}')
    ]
    assert float(last_bucket.split()[1]) == engine.metric("decode_step_seconds_count")
    assert engine.metric("kv_pages") == 1023


def test_health_is_503_until_the_kernel_is_loaded_and_warm(folder: Path, tmp_path: Path) -> None:
    """While the kernel module is still importing: 503 everywhere. After it: 200, and its digest is the module's."""
    gate = tmp_path / "gate"
    content = (folder / "kernel" / "sparse_mla_decode.py").read_text()
    wait = f"import os as _os, time as _time\nwhile not _os.path.exists({str(gate)!r}):\n    _time.sleep(0.01)\n"
    module = folder / "kernel" / "gated.py"
    module.write_text(content + wait)
    slow = EngineProcess(folder, tmp_path / "log", "--layers", "1", "--kernel-module", "kernel.gated")
    try:
        wait_until(lambda: slow.health() is not None, timeout_s=60)
        assert slow.health() == 503
        assert slow.get("/loaded")[0] == 503
        status, answer = slow.post({"prompt": PROMPT})
        assert (status, "error" in answer) == (503, True)
        gate.touch()
        slow.wait_ready()
        digest = "sha256:" + hashlib.sha256(module.read_bytes()).hexdigest()
        assert json.loads(slow.get("/loaded")[1]) == {"modules": {"kernel.gated": digest}}
        assert slow.post({"prompt": PROMPT})[0] == 200
    finally:
        assert slow.stop() == 0


def test_sigterm_while_starting(folder: Path, tmp_path: Path) -> None:
    """An engine whose kernel never finishes importing still ends on SIGTERM."""
    (folder / "kernel" / "stuck.py").write_text("import time\nwhile True:\n    time.sleep(0.01)\n")
    stuck = EngineProcess(folder, tmp_path / "log", "--kernel-module", "kernel.stuck")
    wait_until(lambda: stuck.health() == 503, timeout_s=60)
    assert stuck.stop() == 0


def test_a_kernel_that_does_not_import_ends_the_engine(folder: Path, tmp_path: Path) -> None:
    """A broken kernel file: exit code 1, and the log's end says what and where."""
    (folder / "kernel" / "broken.py").write_text("def sparse_mla_decode(:\n")
    broken = EngineProcess(folder, tmp_path / "log", "--kernel-module", "kernel.broken")
    assert broken.process.wait(timeout=60) == 1
    assert "SyntaxError" in broken.log.read_text()
    assert "broken.py" in broken.log.read_text()


def test_a_kernel_that_fails_while_serving_ends_the_engine(folder: Path, tmp_path: Path) -> None:
    """A kernel that raises in a step: the waiting request gets an error, the log the traceback, the exit code is 1."""
    content = (folder / "kernel" / "sparse_mla_decode.py").read_text()
    fault = """
_calls, _right = [], sparse_mla_decode
def sparse_mla_decode(*args, **kwargs):
    _calls.append(None)
    if len(_calls) > 20:
        raise RuntimeError("kernel fault")
    return _right(*args, **kwargs)
"""
    (folder / "kernel" / "faulty.py").write_text(content + fault)
    faulty = EngineProcess(folder, tmp_path / "log", "--layers", "1", "--kernel-module", "kernel.faulty").wait_ready()
    status, answer = faulty.post({"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True})
    assert (status, answer["error"]["code"]) == (503, 503)
    assert faulty.process.wait(timeout=60) == 1
    assert "RuntimeError: kernel fault" in faulty.log.read_text()


def test_a_taken_port_is_one_line(folder: Path, engine: EngineProcess) -> None:
    """A port in use: exit code 1 and one line, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "kernel.engine", "--port", str(engine.port)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{engine.port}" in done.stderr


def test_sigterm_ends_running_streams_and_the_process(tight_engine: EngineProcess) -> None:
    """SIGTERM during a stream: the stream ends with an error event and without [DONE]; the process exits 0."""
    connection = tight_engine.open({"prompt": PROMPT, "max_tokens": 180, "ignore_eos": True, "stream": True})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    assert tight_engine.stop() == 0
    rest = answer.read().decode()
    assert "[DONE]" not in rest
    assert '"error"' in rest
    connection.close()
