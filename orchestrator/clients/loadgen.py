"""orch's own load client: a closed loop of streamed completions, written so that it cannot call a bad answer good.

This one file runs on the GPU host, by the engine's own python (3.8 or newer), with the standard library alone:
``python loadgen.py SPEC.json``. It must not import anything of orch. It owns the load, the clock and the result file;
metrics are computed from that file by ``loadgen_adapter.py``.

How it works: ``concurrency`` slots, each with one keep-alive connection, take the next request of a fixed, seeded order
as soon as their last one has ended. HTTP and the event stream are parsed here, straight from the socket: a chunk is
stamped when its bytes are read, before anything is parsed, and costs some 15 µs, so that 96 streams do not
slow down the program that measures them.

Exit codes: 0 every request is good; 1 a result was written, but the load failed or was stopped; 2 the spec is wrong.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import platform
import re
import resource
import signal
import ssl
import struct
import sys
import time
import urllib.error
import urllib.request
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

SCHEMA = 1
VERSION = "1"

PROGRESS_INTERVAL_S = 0.5
FLUSH_PATIENCE_S = 10.0
READ_BYTES = 65_536
MAX_HEAD_BYTES = 65_536
MAX_DETAIL_CHARACTERS = 200
CLOSED_UNANSWERED = "connection closed before the answer"
STOPPED_BY_FAILURES = "failed requests"


# ---- what is asked for


class SpecError(Exception):
    """The spec file is wrong; the message names the field."""


@dataclass(frozen=True)
class Spec:
    """One load.

    Attributes:
        url: where completions are posted. model: sent only when given.
        n_requests, n_warmup: measured and discarded requests.
        input_tokens, output_tokens: fixed length of every request.
        min_token_id, max_token_id: prompts are drawn from this range, ends included.
        request_timeout_s: a request that takes longer has failed.
        load_timeout_s: the whole run, with warm-up, is stopped after that.
        cache_flush_url: POSTed between warm-up and load; anything but 2xx stops the run.
        max_failed: the load is stopped at so many failures, since it is lost anyway; the concurrency when None.
    """

    url: str
    concurrency: int
    n_requests: int
    input_tokens: int
    output_tokens: int
    seed: int
    request_timeout_s: float
    load_timeout_s: float
    result_path: str
    progress_path: str | None = None
    n_warmup: int = 0
    model: str | None = None
    min_token_id: int = 1000
    max_token_id: int = 31000
    cache_flush_url: str | None = None
    max_failed: int | None = None


_LEAST = {
    "concurrency": 1,
    "n_requests": 1,
    "input_tokens": 1,
    "output_tokens": 1,
    "seed": 0,
    "n_warmup": 0,
    "min_token_id": 0,
    "max_token_id": 0,
    "max_failed": 1,
    "request_timeout_s": 0,
    "load_timeout_s": 0,
}
_MAY_BE_NONE = {"progress_path", "model", "cache_flush_url", "max_failed"}


def read_spec(raw: bytes) -> Spec:
    """The spec of a file's content, with every field checked.

    Raises:
        SpecError: not JSON, an unknown or missing field, a value of the wrong kind or out of range.
    """
    try:
        given = json.loads(raw)
    except ValueError as exc:
        raise SpecError(f"spec is not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise SpecError("spec is not a JSON object")
    unknown = sorted(set(given) - {field.name for field in fields(Spec)})
    if unknown:
        raise SpecError("unknown field: " + ", ".join(unknown))
    for name, value in given.items():
        _check_field(name, value)
    try:
        spec = Spec(**given)
    except TypeError as exc:
        raise SpecError(f"field missing: {exc}") from exc
    _check_prompt_space(spec)
    return spec


def _check_field(name: str, value: object) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if name not in _LEAST:
        if not isinstance(value, str) or not value:
            raise SpecError(f"{name} must be a text, not {value!r}")
        return
    kinds = (int, float) if name.endswith("_s") else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or value < _LEAST[name]:
        raise SpecError(f"{name} must be a number of at least {_LEAST[name]}, not {value!r}")
    if name.endswith("_s") and not 0 < value < float("inf"):
        raise SpecError(f"{name} must be above 0 and finite, not {value!r}")


def _check_prompt_space(spec: Spec) -> None:
    n_ids = spec.max_token_id - spec.min_token_id + 1
    needed = 2 * (spec.n_requests + spec.n_warmup)
    if n_ids < 1 or n_ids ** min(spec.input_tokens, 64) < needed:
        raise SpecError(
            f"{max(n_ids, 0)} token ids ({spec.min_token_id} to {spec.max_token_id}) are too few for "
            f"{needed // 2} different prompts of {spec.input_tokens} tokens"
        )


# ---- prompts


def prompt_ids(spec: Spec, phase: str, i: int, attempt: int = 0) -> tuple[int, ...]:
    """Token ids of one prompt: the same on every machine and version of Python.

    SHAKE-256 of ``orch-loadgen-1/SEED/CONCURRENCY/PHASE/I/ATTEMPT`` gives 4 bytes a token, read as little-endian
    numbers w; the id is ``min_token_id + w mod (max_token_id − min_token_id + 1)``. The concurrency is part of the name
    so that the prefix cache left by a load at 8 knows nothing of the load at 64 that follows it.
    """
    name = f"orch-loadgen-1/{spec.seed}/{spec.concurrency}/{phase}/{i}/{attempt}"
    words = struct.unpack(f"<{spec.input_tokens}I", hashlib.shake_256(name.encode()).digest(4 * spec.input_tokens))
    n_ids = spec.max_token_id - spec.min_token_id + 1
    return tuple(spec.min_token_id + word % n_ids for word in words)


def prompts(spec: Spec) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """(measured, warm-up) prompts, no two of them equal.

    The measured ones are drawn first, so that they do not depend on how many warm-up requests there are.
    """
    seen: set[bytes] = set()

    def distinct(phase: str, i: int) -> tuple[int, ...]:
        attempt = 0
        while True:
            ids = prompt_ids(spec, phase, i, attempt)
            mark = prompt_digest(ids)
            if mark not in seen:
                seen.add(mark)
                return ids
            attempt += 1

    measured = [distinct("measured", i) for i in range(spec.n_requests)]
    return measured, [distinct("warm-up", i) for i in range(spec.n_warmup)]


def prompt_digest(ids: tuple[int, ...] | list[int]) -> bytes:
    """SHA-256 of the ids as little-endian 32-bit numbers."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).digest()


def request_bytes(spec: Spec, ids: tuple[int, ...]) -> bytes:
    """The whole HTTP request, ready to be written: nothing is formatted while the load runs."""
    body: dict[str, Any] = {
        "prompt": ids,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if spec.model is not None:
        body["model"] = spec.model
    content = json.dumps(body, separators=(",", ":")).encode()
    address = urlsplit(spec.url)
    path = (address.path or "/") + ("?" + address.query if address.query else "")
    head = (
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: orch-loadgen/{}\r\nAccept: text/event-stream\r\n"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    )
    return head.format(path, address.netloc.rpartition("@")[2], VERSION, len(content)).encode() + content


# ---- what comes back

_TEXT = re.compile(rb'"text"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_UNFINISHED = re.compile(rb'"finish_reason"\s*:\s*null')
_USAGE = re.compile(rb'"usage"\s*:\s*[^\sn]')


class Answer:
    """The event stream of one request, as far as it has come.

    An ordinary chunk (some text, not the last, no usage, no error) is recognised by four searches of its bytes. A
    quotation mark inside a JSON string is escaped, so text that the model wrote can never look like a key. Whatever
    is not plainly ordinary is parsed in full.
    """

    __slots__ = (
        "content_s",
        "error",
        "finish_reason",
        "is_done",
        "last_s",
        "n_bytes",
        "n_input_tokens",
        "n_output_tokens",
        "tail",
        "text_parts",
    )

    def __init__(self) -> None:
        self.content_s: list[float] | array[float] = []
        self.text_parts: list[bytes] = []
        self.last_s: float | None = None
        self.n_bytes = 0
        self.n_input_tokens: int | None = None
        self.n_output_tokens: int | None = None
        self.finish_reason: str | None = None
        self.is_done = False
        self.error: str | None = None
        self.tail = b""

    def fail(self, kind: str, detail: str = "") -> None:
        """Notes the first failure; a later one is its consequence. ``kind`` is what failures are counted by."""
        if self.error is None:
            detail = " ".join(detail.split())[:MAX_DETAIL_CHARACTERS]
            self.error = f"{kind}: {detail}" if detail else kind

    def feed(self, payload: bytes, now: float) -> None:
        """Takes bytes of the stream that were read at ``now``; each ``data:`` line is one event."""
        lines = (self.tail + payload if self.tail else payload).split(b"\n")
        self.tail = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, event: bytes, now: float) -> None:
        if event == b"[DONE]":
            self.is_done = True
            return
        text = _TEXT.search(event)
        if text and b'"error"' not in event and _UNFINISHED.search(event) and not _USAGE.search(event):
            self.last_s = now
            if text.group(1):
                self.content_s.append(now)
                self.text_parts.append(text.group(1))
        else:
            self._take_in_full(event, now)

    def _take_in_full(self, raw: bytes, now: float) -> None:
        try:
            event = json.loads(raw)
        except ValueError:
            return self.fail("event is not JSON", raw.decode("utf-8", "replace"))
        if not isinstance(event, dict):
            return self.fail("event is not a JSON object", raw.decode("utf-8", "replace"))
        if event.get("error") is not None or event.get("object") == "error":
            return self.fail("error inside a 200 answer", _error_message(event))
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.n_input_tokens = _count(usage.get("prompt_tokens"))
            self.n_output_tokens = _count(usage.get("completion_tokens"))
        for choice in (event.get("choices") or [])[:1]:
            self._take_choice(choice, now)
        return None

    def _take_choice(self, choice: object, now: float) -> None:
        if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
            return self.fail("choice without a text", repr(choice))
        self.last_s = now
        if choice.get("finish_reason") is not None:
            self.finish_reason = str(choice["finish_reason"])
        if choice["text"]:
            self.content_s.append(now)
            self.text_parts.append(json.dumps(choice["text"])[1:-1].encode())
        return None

    def pack(self) -> None:
        """Lets go of an object per chunk: a long load ends thousands of answers."""
        self.content_s = array("d", self.content_s)
        self.text_parts = [b"".join(self.text_parts)]

    def text(self) -> str:
        """The output so far. Parts are the insides of JSON strings, so together they are one again."""
        return str(json.loads(b'"' + b"".join(self.text_parts) + b'"'))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _error_message(event: dict[str, Any]) -> str:
    error = event.get("error", event)
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


class Record:
    """One request and what became of it.

    When an answer ends, others are waiting to be read, and every microsecond spent here is added to their times. So
    ``settle`` only judges and packs; gaps, text and digest are worked out by ``as_json`` when the load is over.
    """

    def __init__(self, i: int) -> None:
        self.i = i
        self.answer = Answer()
        self.sent_s: float | None = None
        self.error: str | None = None
        self.n_retries = 0

    def settle(self, spec: Spec, answer: Answer, sent_s: float | None) -> None:
        """Takes an answer over, judged and packed."""
        _judge(spec, answer, sent_s)
        answer.pack()
        self.answer, self.sent_s, self.error = answer, sent_s, answer.error

    def as_json(self, zero_s: float) -> dict[str, Any]:
        """The record in the result file; times in seconds since ``zero_s``, when the phase began."""
        answer, times = self.answer, self.answer.content_s
        text_digest = None
        try:
            text = answer.text()
            if text:
                text_digest = "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        except ValueError:
            self.error = self.error or "text is not valid JSON"
        return {
            "i": self.i,
            "sent_s": _since(zero_s, self.sent_s),
            "first_chunk_s": _since(zero_s, times[0] if times else None),
            "last_chunk_s": _since(zero_s, answer.last_s),
            "n_input_tokens": answer.n_input_tokens,
            "n_output_tokens": answer.n_output_tokens,
            "n_chunks": len(times),
            "itl_ms": [round(1000 * (times[k] - times[k - 1]), 4) for k in range(1, len(times))],
            "error": self.error,
            "text_digest": text_digest,
            "finish_reason": answer.finish_reason,
            "n_retries": self.n_retries,
        }


def _since(zero_s: float, moment_s: float | None) -> float | None:
    return None if moment_s is None else round(moment_s - zero_s, 7)


def _judge(spec: Spec, answer: Answer, sent_s: float | None) -> None:
    """Fails an answer that is not exactly what was asked for. The first failure found is the one that is told."""
    if answer.finish_reason not in (None, "length", "stop"):
        answer.fail(f"finish reason {answer.finish_reason}")
    if not answer.is_done:
        answer.fail("no [DONE] at the end", f"{len(answer.content_s)} chunks had come")
    if answer.n_output_tokens is None:
        answer.fail("no usage in the answer")
    elif answer.n_output_tokens != spec.output_tokens:
        answer.fail("wrong output length", f"{answer.n_output_tokens} of {spec.output_tokens} tokens")
    if answer.n_input_tokens is not None and answer.n_input_tokens != spec.input_tokens:
        answer.fail("wrong input length", f"{answer.n_input_tokens} of {spec.input_tokens} tokens")
    if not answer.content_s:
        answer.fail("empty text")
    elif sent_s is None or answer.content_s[0] <= sent_s:
        answer.fail("TTFT of 0")


# ---- the connection


class Connection(asyncio.BufferedProtocol):
    """One HTTP/1.1 connection: one request at a time, its answer parsed as it arrives.

    It reads into a buffer of its own: asyncio would make one of 256 KiB for every read of some 200 bytes, which took
    half of the CPU time of a load.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(READ_BYTES))
        self.is_closed = False
        self.n_answers = 0
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self._start_answer()

    def _start_answer(self) -> None:
        self._tail = b""
        self._status: int | None = None
        self._is_stream = False
        self._must_close = False
        self._left: int | None = None  # bytes left by Content-Length; None: until the connection ends
        self._is_chunked = False
        self._error_body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: bytes, answer: Answer) -> asyncio.Future[None]:
        """Writes a request; the future is done when its answer has ended, well or badly."""
        assert self._transport is not None and self._answer is None
        self._start_answer()
        self._answer = answer
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._ended

    def fail(self, kind: str, detail: str = "") -> None:
        """Gives the running answer up and closes: what still comes would be taken for the next one."""
        if self._answer is not None:
            self._answer.fail(kind, detail)
        self._give_up()

    def _give_up(self) -> None:
        self._must_close = True
        self._end()

    def close(self) -> None:
        """Closes at once; may be called twice."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by asyncio before it reads."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when it has read. The clock is read before anything else."""
        now = perf_counter()
        data = bytes(self._buffer[:nbytes])
        if self._answer is None:
            return self.close()  # nobody asked
        self._answer.n_bytes += len(data)
        try:
            self._parse(self._tail + data if self._tail else data, now)
        except ValueError as exc:
            self.fail("answer is not HTTP", str(exc))
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.is_closed = True
        answer = self._answer
        if answer is None:
            return
        why = "connection closed" if exc is None else f"connection lost ({exc})"
        if self._status is not None and not self._is_chunked and self._left is None and exc is None:
            self._end()  # an answer without a length ends with its connection
        elif answer.n_bytes:
            self.fail("cut answer", f"{why} after {len(answer.content_s)} chunks")
        else:
            self.fail(CLOSED_UNANSWERED, "" if exc is None else str(exc))

    def _parse(self, data: bytes, now: float) -> None:
        position = 0
        while self._status is None:
            end = data.find(b"\r\n\r\n", position)
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise ValueError(f"head of more than {MAX_HEAD_BYTES} bytes")
                self._tail = data[position:]
                return
            self._read_head(data[position:end])
            position = end + 4
        if self._is_chunked:
            self._parse_chunks(data, position, now)
        else:
            self._parse_plain(data[position:], now)

    def _read_head(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(lines[0][:80])
        status = int(rest[:3])
        if status < 200:
            return  # 100 Continue and its like: the answer follows
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self._status = status
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left = int(length) if length is not None and not self._is_chunked else None
        self._must_close = version == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
        content_type = headers.get("content-type", "none")
        self._is_stream = status == 200 and content_type.startswith("text/event-stream")
        if status == 200 and not self._is_stream:
            self.fail("answer is not an event stream", f"content type {content_type}")

    def _parse_chunks(self, data: bytes, position: int, now: float) -> None:
        while self._answer is not None:
            end = data.find(b"\r\n", position)
            if end < 0:
                break
            size = int(data[position:end].partition(b";")[0], 16)
            if size < 0:
                raise ValueError(f"chunk of {size} bytes")
            after = end + 2 + size
            if len(data) < after + 2:
                break
            if size == 0:
                last = (
                    data.find(b"\r\n", after) if data[after : after + 2] == b"\r\n" else data.find(b"\r\n\r\n", after)
                )
                if last < 0:
                    break  # trailers that have not all come
                return self._end()
            if data[after : after + 2] != b"\r\n":
                raise ValueError(f"chunk of {size} bytes does not end where it says")
            self._take(data[end + 2 : after], now)
            position = after + 2
        self._tail = data[position:]
        return None

    def _parse_plain(self, data: bytes, now: float) -> None:
        self._tail = b""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        self._take(data, now)
        if self._left == 0:
            self._end()

    def _take(self, payload: bytes, now: float) -> None:
        if self._answer is None:
            return
        if self._is_stream:
            self._answer.feed(payload, now)
            if self._answer.error is not None:
                self._give_up()  # the rest of the stream is of no use
        else:
            self._error_body += payload[: 4096 - len(self._error_body)]

    def _end(self) -> None:
        answer, ended = self._answer, self._ended
        if answer is None or ended is None:
            return
        if self._status is not None and self._status != 200:
            answer.fail(f"HTTP {self._status}", self._error_body.decode("utf-8", "replace"))
        self._answer = self._ended = None
        self._tail = b""
        self.n_answers += 1
        if self._must_close:
            self.close()
        if not ended.done():
            ended.set_result(None)


# ---- the load


class Phase:
    """Requests in their order and what became of each: the warm-up, or the measured load."""

    def __init__(self, name: str, spec: Spec, ids: list[tuple[int, ...]]) -> None:
        self.name = name
        self.requests = [request_bytes(spec, one) for one in ids]
        self.records = [Record(i) for i in range(len(ids))]
        self.order: Iterator[int] = iter(range(len(ids)))
        self.n_done = self.n_failed = self.n_in_flight = self.n_reconnects = 0
        self.concurrency_peak = 0
        self.zero_s: float | None = None
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.elapsed_s = self.cpu_s = 0.0
        self.cpu_wait_s: float | None = None

    def enter(self) -> None:
        """A request is about to be sent."""
        self.n_in_flight += 1
        self.concurrency_peak = max(self.concurrency_peak, self.n_in_flight)


class Attempt:
    """One sending of a request: its answer, and the moment when it was written."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.sent_s: float | None = None


class Slot:
    """One of the ``concurrency`` places in the closed loop, with its connection."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.connection: Connection | None = None

    def open_connection(self) -> Connection | None:
        """The slot's connection, unless there is none or the server has closed it."""
        return None if self.connection is None or self.connection.is_closed else self.connection

    async def connect(self, timeout_s: float) -> Connection:
        """A new connection.

        Raises:
            OSError, asyncio.TimeoutError: nobody answers.
        """
        load = self.load
        opening = asyncio.get_running_loop().create_connection(
            Connection, load.address.hostname or "", load.port, ssl=load.tls
        )
        _, connection = await asyncio.wait_for(opening, timeout_s)
        self.connection = connection
        return connection

    async def work(self, phase: Phase) -> None:
        """Takes requests until none is left or the load is stopped."""
        for i in phase.order:
            record = phase.records[i]
            await self._ask(phase, phase.requests[i], record)
            phase.n_done += 1
            if record.error is not None:
                phase.n_failed += 1
                self.load.count_failure(phase)
            if self.load.stopped_by is not None:
                return

    async def _ask(self, phase: Phase, request: bytes, record: Record) -> None:
        attempt = Attempt()
        try:
            was_open = True
            while was_open:
                was_open = self.open_connection() is not None
                attempt = Attempt()
                await self._exchange(phase, request, attempt)
                if attempt.answer.n_bytes or not (attempt.answer.error or "").startswith(CLOSED_UNANSWERED):
                    break
                record.n_retries += was_open  # it had been idle, and the server closed it: nothing was answered
        finally:
            record.settle(self.load.spec, attempt.answer, attempt.sent_s)

    async def _exchange(self, phase: Phase, request: bytes, attempt: Attempt) -> None:
        answer, timeout_s = attempt.answer, self.load.spec.request_timeout_s
        connection = self.open_connection()
        try:
            if connection is None:
                phase.n_reconnects += self.connection is not None
                connection = await self.connect(timeout_s)
            phase.enter()
            attempt.sent_s = perf_counter()
            ended = connection.send(request, answer)
            timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out, connection, answer)
            try:
                await ended
            finally:
                timer.cancel()
                phase.n_in_flight -= 1
        except (OSError, asyncio.TimeoutError) as exc:
            answer.fail("could not connect", str(exc) or f"no answer within {timeout_s:g} s")
        except asyncio.CancelledError:
            answer.fail("load stopped", self.load.stopped_by or "")
            if connection is not None:
                connection.close()
            raise

    def _time_out(self, connection: Connection, answer: Answer) -> None:
        limit_s = self.load.spec.request_timeout_s
        connection.fail(f"no end within {limit_s:g} s", f"{len(answer.content_s)} chunks had come")


class Load:
    """Warm-up, cache flush and measured load, one after another, with what stops them."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.address = urlsplit(spec.url)
        self.port = self.address.port or (443 if self.address.scheme == "https" else 80)
        self.tls = ssl.create_default_context() if self.address.scheme == "https" else None
        measured, warmup = prompts(spec)
        self.warmup = Phase("warm-up", spec, warmup)
        self.measured = Phase("load", spec, measured)
        self.phase = self.warmup
        self.slots = [Slot(self) for _ in range(spec.concurrency)]
        self.stopped_by: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def stop(self, reason: str) -> None:
        """Gives up what is in flight and sends nothing more; the first reason stays."""
        if self.stopped_by is None:
            self.stopped_by = reason
            for task in self._tasks:
                task.cancel()

    def count_failure(self, phase: Phase) -> None:
        """Stops a load that is lost anyway: a dead engine must not cost a deadline for each request."""
        limit = self.spec.max_failed if self.spec.max_failed is not None else self.spec.concurrency
        if phase.n_failed >= limit and phase.n_done < len(phase.records):
            self.stop(f"{STOPPED_BY_FAILURES}: {phase.n_failed}")

    async def run(self) -> None:
        """The whole load. Failures end up in the records, never as an exception."""
        loop = asyncio.get_running_loop()
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")):
            loop.add_signal_handler(number, self.stop, name)
        loop.call_later(self.spec.load_timeout_s, self.stop, f"deadline: {self.spec.load_timeout_s:g} s")
        reporter = asyncio.ensure_future(self._report())
        if self.warmup.requests:
            await self._run_phase(self.warmup)
            if self.warmup.n_failed:
                self.stop(f"failed warm-up requests: {self.warmup.n_failed}")
        if self.stopped_by is None and self.spec.cache_flush_url is not None:
            await self._flush(self.spec.cache_flush_url)
        if self.stopped_by is None:
            await self._run_phase(self.measured)
        reporter.cancel()
        for slot in self.slots:
            if slot.connection is not None:
                slot.connection.close()

    async def _run_phase(self, phase: Phase) -> None:
        for slot in self.slots[: len(phase.requests)]:  # one by one: a burst could overflow the accept queue
            try:
                slot.open_connection() or await slot.connect(5.0)
            except (OSError, asyncio.TimeoutError):
                break  # the request that needs it tries again, and tells
        self.phase = phase
        phase.started_at = utc_now()
        cpu_s, waited_s = time.process_time(), cpu_wait_s()
        phase.zero_s = perf_counter()
        if self.stopped_by is None:
            self._tasks = [asyncio.ensure_future(slot.work(phase)) for slot in self.slots]
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
            for end in ends:
                if isinstance(end, Exception):
                    raise end
        phase.elapsed_s = perf_counter() - phase.zero_s
        phase.cpu_s, now_waited_s = time.process_time() - cpu_s, cpu_wait_s()
        if waited_s is not None and now_waited_s is not None:
            phase.cpu_wait_s = round(now_waited_s - waited_s, 6)
        phase.ended_at = utc_now()

    async def _flush(self, url: str) -> None:
        loop = asyncio.get_running_loop()
        give_up_s = perf_counter() + FLUSH_PATIENCE_S
        while self.stopped_by is None:
            problem = await loop.run_in_executor(None, post_empty, url)
            if problem is None:
                return
            if perf_counter() > give_up_s:
                self.stop(f"cache flush: {problem}")
            await asyncio.sleep(0.2)  # an engine refuses while the last request is still being put away

    async def _report(self) -> None:
        if self.spec.progress_path is None:
            return
        path = Path(self.spec.progress_path)
        while True:
            # in a thread: a slow file system must not hold up the reading of chunks
            await asyncio.get_running_loop().run_in_executor(None, replace_file, path, self.progress(), False)
            await asyncio.sleep(PROGRESS_INTERVAL_S)

    def progress(self) -> bytes:
        """The progress file's content."""
        phase = self.phase
        elapsed_s = 0.0 if phase.zero_s is None else perf_counter() - phase.zero_s
        return json.dumps(
            {
                "phase": phase.name,
                "n_done": phase.n_done,
                "n_total": len(phase.records),
                "n_failed": phase.n_failed,
                "elapsed_s": round(elapsed_s, 2),
            }
        ).encode()

    def result(self, started_at: str) -> dict[str, Any]:
        """The result file's content. Requests that were never sent are in it, as failures."""
        phase = self.measured
        for record in phase.records:
            if record.sent_s is None and record.error is None:
                record.error = f"not sent: {self.stopped_by}"
        return {
            "schema": SCHEMA,
            "client": "loadgen",
            "client_version": VERSION,
            "python_version": platform.python_version(),
            "spec": asdict(self.spec),
            "complete": self.stopped_by is None,
            "stopped_by": self.stopped_by,
            "started_at": phase.started_at or started_at,
            "ended_at": phase.ended_at or utc_now(),
            "clock_zero_s": phase.zero_s,
            "elapsed_s": round(phase.elapsed_s, 6),
            "cpu_s": round(phase.cpu_s, 6),
            "cpu_wait_s": phase.cpu_wait_s,
            "concurrency_peak": phase.concurrency_peak,
            "n_reconnects": phase.n_reconnects,
            "warmup": _warmup_summary(self.warmup),
            "requests": [record.as_json(phase.zero_s or 0.0) for record in phase.records],
        }


def _warmup_summary(phase: Phase) -> dict[str, Any]:
    return {
        "n_requests": len(phase.records),
        "n_done": phase.n_done,
        "n_failed": phase.n_failed,
        "elapsed_s": round(phase.elapsed_s, 6),
        "errors": [record.error for record in phase.records if record.error is not None],
    }


def post_empty(url: str) -> str | None:
    """POSTs nothing to an address, past any proxy; None when it answers 2xx, else what went wrong."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=b"", method="POST"), timeout=30):
            return None
    except urllib.error.HTTPError as exc:
        return f"{url} answered HTTP {exc.code}"
    except (OSError, ValueError) as exc:
        return f"{url}: {exc}"


def utc_now() -> str:
    """Now, ISO 8601, UTC, with milliseconds."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def replace_file(path: Path, content: bytes, is_lasting: bool) -> None:
    """Replaces a file at once, so that no reader sees half of it; ``is_lasting``: through to the disk."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        if is_lasting:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def cpu_wait_s() -> float | None:
    """How long this process has been ready to run and was not let: its times are late by that. None if unknown."""
    try:
        return int(Path("/proc/self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def allow_open_files(n: int) -> None:
    """Raises the soft limit of open files where the hard one permits; a connection each is needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < n:
        limit = n if hard == resource.RLIM_INFINITY else min(n, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def main(arguments: list[str]) -> int:
    """``loadgen.py SPEC.json``: runs the load and writes its result."""
    if len(arguments) != 1:
        print("usage: loadgen.py SPEC.json", file=sys.stderr)
        return 2
    started_at = utc_now()
    try:
        spec = read_spec(Path(arguments[0]).read_bytes())
    except (OSError, SpecError) as exc:
        print(f"{arguments[0]}: {exc}", file=sys.stderr)
        return 2
    allow_open_files(spec.concurrency + 64)
    load = Load(spec)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection in the middle of the load would be measured as the engine's
    asyncio.run(load.run())
    result = load.result(started_at)
    replace_file(Path(spec.result_path), json.dumps(result, allow_nan=False).encode(), True)
    if spec.progress_path is not None:
        replace_file(Path(spec.progress_path), load.progress(), False)
    n_failed = sum(record["error"] is not None for record in result["requests"])
    if load.stopped_by is not None:
        print(f"stopped: {load.stopped_by}", file=sys.stderr)
    if n_failed:
        print(f"{n_failed} of {spec.n_requests} requests failed", file=sys.stderr)
    return 1 if n_failed or load.stopped_by is not None else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
