"""A completions server whose truth is known: when it sends each chunk, and what is wrong with which answer.

``python stub_engine.py --ttft-ms 20 --itl-ms 5 --fault 3=error:5`` prints ``listening PORT`` and serves
``POST /v1/completions`` and SGLang's ``POST /generate`` (streamed, prompts as token ids or text), ``GET /health``,
``GET /v1/models``, ``POST /flush_cache``, ``GET /truth`` (how it is paced) and ``GET /log``, one JSON line for each
request with the moments at which its chunks were handed to the socket, on the machine's monotonic clock, which
``time.perf_counter`` of another process on the same Linux machine shares.

Chunks follow an absolute schedule: chunk k leaves at received + ttft + k × itl, so lateness never adds up. The loop
waits with ``select``, whose timeouts are exact to microseconds (those of epoll are whole milliseconds). How late it was
all the same stands in the log: ``late_ms`` of a request. ``--urgent`` asks for real-time priority, where it is let.

It can be of a kernel's kind: with ``--kernel-file FILE`` it reads that file when it starts, and ``--pace TEXT=FACTOR``
(times longer), ``--odd TEXT`` (other words), ``--broken TEXT`` (ends while it starts) hold where the file has the text.
``--fault-file FILE`` holds more faults, a line each, which are read with every request. ``--loaded-file FILE`` is what
``GET /loaded`` answers.

Faults, ``--fault INDEX=MODE[:K]`` by order of arrival (``all`` for every request; ``--skip N`` numbers from the N-th):
    http:STATUS   answers with that status         hang-up      closes the connection without an answer
    error:K       an error event after K chunks    stall:K      nothing more after K chunks
    cut:K         connection closed after K        die:K        the process ends after K chunks
    short:K       only K tokens, honestly counted  wrong-usage  counts one output token too many
    wrong-input   counts one input token too few   no-usage     no usage event
    no-done       no [DONE]                        empty-text   every text is empty, counted as usual
    bad-json:K    chunk K is not JSON              abort        finish reason "abort"
    not-stream    one JSON object, not a stream    close        closes after the answer without having said so
    wait:K        goes on after K chunks only when the fault file is gone
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import math
import os
import selectors
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
BREAKS = ("error", "stall", "cut", "die", "bad-json")
"""Faults that end the answer after K chunks."""
WAIT_S = 0.01
MODES = (
    *BREAKS,
    *("http", "hang-up", "not-stream", "short", "abort", "close", "no-done", "empty-text", "wait"),
    *("no-usage", "wrong-usage", "wrong-input"),
)


def text_of(n_tokens: int) -> str:
    """What an answer of so many tokens says."""
    return "".join(f' "w{k}"' for k in range(n_tokens))


def framed(content: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event in its own HTTP chunk."""
    return framed(b"data: " + json.dumps(body).encode() + b"\n\n")


def choice_event(text: str, finish_reason: str | None = None) -> bytes:
    """A piece of a completion as engines send it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "stub"}
    return event({**head, "choices": [choice], "usage": None})


def native_event(text: str, n_input: int, n_output: int, finish_reason: dict[str, Any] | None = None) -> bytes:
    """A piece of an answer of SGLang's own: the whole text so far, with the count of its tokens."""
    meta = {"id": "1", "finish_reason": finish_reason, "prompt_tokens": n_input, "completion_tokens": n_output}
    return event({"text": text, "meta_info": meta})


def usage_event(n_input: int, n_output: int) -> bytes:
    """The last event, with the server's own counts."""
    usage = {"prompt_tokens": n_input, "completion_tokens": n_output, "total_tokens": n_input + n_output}
    return event({"id": "cmpl-1", "object": "text_completion", "model": "stub", "choices": [], "usage": usage})


@dataclass
class Fault:
    """What goes wrong with one request."""

    mode: str = ""
    k: int = 0


@dataclass
class Served:
    """One request as the stub saw it."""

    index: int
    prompt: str
    n_input: int
    n_output: int
    received_s: float
    in_flight: int
    connection: int
    is_native: bool = False
    wants_usage: bool = True
    sent_s: list[float] = field(default_factory=list)
    ended_s: float | None = None


def late_ms(served: Served, truth: Truth) -> list[float]:
    """How long after its moment each chunk was handed to the socket."""
    first_s = served.received_s + truth.ttft_s
    return [round(1000 * (moment_s - first_s - k * truth.itl_s), 4) for k, moment_s in enumerate(served.sent_s)]


@dataclass
class Truth:
    """What the stub was told to be."""

    ttft_s: float
    itl_s: float
    faults: dict[int, Fault]
    every: Fault
    skip: int
    served: list[Served] = field(default_factory=list)
    n_in_flight: int = 0
    n_flushes: int = 0
    n_connections: int = 0
    pieces: dict[int, bytes] = field(default_factory=dict)
    word: str = "w"
    fault_file: Path | None = None
    loaded_file: Path | None = None

    def fault_of(self, index: int) -> Fault:
        """What goes wrong with a request."""
        if self.fault_file is not None and self.fault_file.exists():
            told = dict(map(read_fault, self.fault_file.read_text().split()))
            if index >= 0 and (str(index) in told or "all" in told):
                return told.get(str(index)) or told["all"]
        return self.faults.get(index, self.every if index >= 0 else Fault())

    def piece(self, k: int, is_empty: bool) -> bytes:
        """Chunk k; made once, so that a fast stub is not busy with JSON."""
        if is_empty:
            return choice_event("")
        if k not in self.pieces:
            self.pieces[k] = choice_event(self.text(k))
        return self.pieces[k]

    def native_piece(self, k: int, n_input: int, is_empty: bool) -> bytes:
        """Chunk k in SGLang's own words."""
        text = "" if is_empty else "".join(map(self.text, range(k + 1)))
        return native_event(text, n_input, k + 1)

    def text(self, k: int) -> str:
        """What chunk k says."""
        return f' "{self.word}{k}"'


class Stream:
    """One answer on its schedule."""

    def __init__(self, truth: Truth, transport: asyncio.Transport, served: Served, fault: Fault) -> None:
        self.truth, self.transport, self.served, self.fault = truth, transport, served, fault
        self.n = min(fault.k, served.n_output) if fault.mode == "short" else served.n_output
        self.k = 0
        self.loop = asyncio.get_running_loop()
        transport.write(STREAM_HEAD)
        self.timer = self.loop.call_at(self._due(), self._send)

    def _due(self) -> float:
        return self.served.received_s + self.truth.ttft_s + self.k * self.truth.itl_s

    def _send(self) -> None:
        batch = []
        while self.k < self.n and self.loop.time() >= self._due():
            if self._breaks():
                return
            if self._waits():
                self.timer = self.loop.call_later(WAIT_S, self._send)
                return
            piece = self._piece(self.fault.mode == "empty-text")
            self.served.sent_s.append(time.perf_counter())
            if self.truth.itl_s:
                self.transport.write(piece)
            else:
                batch.append(piece)
            self.k += 1
        self.transport.write(b"".join(batch))
        if self.k < self.n:
            self.timer = self.loop.call_at(self._due(), self._send)
        elif not self._breaks():
            self._close()

    def _piece(self, is_empty: bool) -> bytes:
        if self.served.is_native:
            return self.truth.native_piece(self.k, self.served.n_input, is_empty)
        return self.truth.piece(self.k, is_empty)

    def _waits(self) -> bool:
        file = self.truth.fault_file
        return self.fault.mode == "wait" and self.k == self.fault.k and file is not None and file.exists()

    def _breaks(self) -> bool:
        """Does what the fault says when its moment has come; true when the ordinary answer is over."""
        if self.k != self.fault.k or self.fault.mode not in BREAKS:
            return False
        if self.fault.mode == "error":
            self.transport.write(event({"error": {"message": "the scheduler fell over", "code": 500}}))
            self._finish(framed(b"data: [DONE]\n\n"))
        elif self.fault.mode == "cut":
            self.transport.close()
        elif self.fault.mode == "die":
            os._exit(1)
        elif self.fault.mode == "bad-json":
            self._finish(framed(b'data: {"choices": [{"text"\n\n'))
        return True

    def _close(self) -> None:
        mode, served = self.fault.mode, self.served
        last = choice_event("", {"abort": "abort", "short": "stop"}.get(mode, "length"))
        n_output = self.n + (mode == "wrong-usage")
        n_input = served.n_input - (mode == "wrong-input")
        if served.is_native:
            text = "" if mode == "empty-text" else "".join(map(self.truth.text, range(self.n)))
            last = native_event(text, n_input, n_output, {"type": "length", "length": n_output})
        has_usage = served.wants_usage and mode != "no-usage"
        usage = usage_event(n_input, n_output) if has_usage else b""
        done = b"" if mode == "no-done" else framed(b"data: [DONE]\n\n")
        self._finish(last + usage + done)
        if mode == "close":
            self.transport.close()

    def _finish(self, content: bytes) -> None:
        self.served.ended_s = time.perf_counter()
        self.truth.n_in_flight -= 1
        self.transport.write(content + b"0\r\n\r\n")


class Server(asyncio.Protocol):
    """One connection."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.number = truth.n_connections
        truth.n_connections += 1
        self.received = b""
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.stream is not None:
            self.stream.timer.cancel()
            if self.stream.served.ended_s is None:
                self.truth.n_in_flight -= 1

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if len(body) < (int(lengths[0]) if lengths else 0):
            return
        self.received = b""
        path = head.split(b" ", 2)[1].decode()
        if path in ("/v1/completions", "/generate"):
            self._complete(json.loads(body), now)
        else:
            self._answer_plain(path)

    def _answer_plain(self, path: str) -> None:
        if path == "/flush_cache":
            self.truth.n_flushes += 1
        state = {"n_flushes": self.truth.n_flushes, "n_connections": self.truth.n_connections}
        body = json.dumps(state)
        if path == "/truth":
            body = json.dumps({"ttft_s": self.truth.ttft_s, "itl_s": self.truth.itl_s})
        if path == "/v1/models":
            body = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "orch"}]})
        if path == "/loaded" and self.truth.loaded_file is not None:
            body = self.truth.loaded_file.read_text()
        if path == "/log":
            rows = ({**vars(one), "late_ms": late_ms(one, self.truth)} for one in self.truth.served)
            body = "\n".join(map(json.dumps, rows))
        self._respond(404 if path == "/nowhere" else 200, body.encode())

    def _respond(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    def _complete(self, request: dict[str, Any], now: float) -> None:
        truth, is_native = self.truth, "sampling_params" in request
        prompt = request.get("input_ids") or request["text"] if is_native else request["prompt"]
        n_output = request["sampling_params"]["max_new_tokens"] if is_native else request["max_tokens"]
        index = len(truth.served) - truth.skip
        truth.n_in_flight += 1
        # of a text, the characters are counted: a stub has no tokenizer
        raw = prompt.encode() if isinstance(prompt, str) else struct.pack(f"<{len(prompt)}I", *prompt)
        digest = hashlib.sha256(raw).hexdigest()
        wants_usage = not is_native and bool((request.get("stream_options") or {}).get("include_usage"))
        served = Served(
            index, digest, len(prompt), n_output, now, truth.n_in_flight, self.number, is_native, wants_usage
        )
        truth.served.append(served)
        fault = truth.fault_of(index)
        if fault.mode in ("http", "hang-up", "not-stream"):
            truth.n_in_flight -= 1
            served.ended_s = now
        if fault.mode == "hang-up":
            self.transport.close()
        elif fault.mode == "http":
            self._respond(fault.k or 500, b'{"error": {"message": "CUDA out of memory"}}')
        elif fault.mode == "not-stream":
            self._respond(200, b'{"choices": [{"text": "all at once"}]}')
        else:
            self.stream = Stream(truth, self.transport, served, fault)


async def serve(truth: Truth, port: int) -> None:
    """Serves until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(truth), "127.0.0.1", port, backlog=1024)
    print(f"listening {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def read_fault(text: str) -> tuple[str, Fault]:
    """``INDEX=MODE[:K]`` → (index, fault)."""
    index, _, rest = text.partition("=")
    mode, _, k = rest.partition(":")
    if mode not in MODES:
        raise argparse.ArgumentTypeError(f"unknown fault {mode!r}")
    return index, Fault(mode, int(k or 0))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=5.0)
    parser.add_argument("--itl-ms", type=float, default=1.0)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--urgent", action="store_true")
    parser.add_argument("--fault", type=read_fault, action="append", default=[])
    parser.add_argument("--fault-file", type=Path)
    parser.add_argument("--kernel-file", type=Path)
    parser.add_argument("--loaded-file", type=Path)
    for name in ("--pace", "--odd", "--broken"):
        parser.add_argument(name, action="append", default=[])
    given = parser.parse_args()
    kernel = given.kernel_file.read_text() if given.kernel_file else ""
    if any(text in kernel for text in given.broken):
        raise SystemExit("RuntimeError: no kernel image is available for execution on the device")
    paces = [one.rpartition("=") for one in given.pace]
    factor = math.prod(float(value) for text, _, value in paces if text in kernel)
    faults = dict(given.fault)
    every = faults.pop("all", Fault())
    truth = Truth(
        factor * given.ttft_ms / 1000,
        factor * given.itl_ms / 1000,
        {int(i): one for i, one in faults.items()},
        every,
        given.skip,
        word="odd" if any(text in kernel for text in given.odd) else "w",
        fault_file=given.fault_file,
        loaded_file=given.loaded_file,
    )
    if given.urgent:
        with contextlib.suppress(OSError, AttributeError):  # not permitted; not on this system
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()  # a collection would be lateness
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    with contextlib.suppress(KeyboardInterrupt):
        loop.run_until_complete(serve(truth, given.port))


class RunningStub:
    """A stub in a process of its own, as a test or a benchmark holds it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.base_url = f"http://127.0.0.1:{port}"
        self.url = self.base_url + "/v1/completions"

    def get(self, path: str) -> bytes:
        """The body of a GET."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.base_url + path, timeout=10) as answer:
            return bytes(answer.read())

    def log(self) -> list[dict[str, Any]]:
        """Every request so far, in order of arrival."""
        return [json.loads(line) for line in self.get("/log").splitlines()]


@contextlib.contextmanager
def running_stub(*arguments: str | int | float, faults: Sequence[str] = ()) -> Iterator[RunningStub]:
    """A stub on a free port, ended when the block ends."""
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    for one in faults:
        command += ["--fault", one]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            yield RunningStub(process, int(line[1]))
        finally:
            process.kill()


if __name__ == "__main__":
    main()
