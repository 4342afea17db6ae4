"""HTTP: routes, streaming, readiness, signals. Owns the event loop's side of the engine; computes nothing.

    POST /v1/completions   OpenAI's completions, streaming or not
    GET  /v1/models        the one model
    GET  /health           503 until everything has run once, then 200
    GET  /metrics          Prometheus text
    GET  /loaded           {"modules": {"<dotted name>": "sha256:…"}}: the bytes that this process imported

There is no prefix cache, hence no route to flush one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable

from aiohttp import web

from kernel.engine.options import EngineOptions, parse_options
from kernel.engine.protocol import (
    CompletionHeader,
    CompletionRequest,
    ProtocolError,
    event_of,
    parse_completion,
    usage_of,
)
from kernel.engine.scheduler import Progress, Sequence
from kernel.engine.worker import Worker

MAX_BODY_BYTES = 16 << 20
SHUTDOWN_TIMEOUT_S = 0.5
JOIN_TIMEOUT_S = 1.0
SWITCH_INTERVAL_S = 1e-4
"""How long one thread may keep the interpreter while the other waits for it. The model's thread gives it up at every
call into torch, and would wait Python's 5 ms each time to get it back from a busy event loop: several times a step."""


class EngineStoppedError(Exception):
    """The engine ended while a request waited for it."""


class Engine:
    """The event loop's view of the worker: sequences in, one queue of progress for each out.

    Attributes:
        loaded_modules: dotted name → digest, as soon as the kernel is imported.
        is_ready: everything has run once.
        failure: the traceback that ended the worker, or None.
        ended: set when the worker failed.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.loaded_modules: dict[str, str] = {}
        self.is_ready = False
        self.failure: str | None = None
        self.ended = asyncio.Event()
        self._queues: dict[Sequence, asyncio.Queue[Progress | None]] = {}
        self.worker = Worker(
            options,
            asyncio.get_running_loop(),
            on_loaded=self.loaded_modules.__setitem__,
            on_ready=self._on_ready,
            on_progress=self._on_progress,
            on_failure=self._on_failure,
        )

    async def progress_of(self, request: CompletionRequest) -> AsyncGenerator[Progress, None]:
        """What becomes of a request, token by token. Leaving the iteration early cancels it.

        Raises:
            EngineStoppedError: the engine ended first.
        """
        sequence = Sequence(prompt=request.prompt, max_tokens=request.max_tokens, ignore_eos=request.ignore_eos)
        arrivals = self._queues[sequence] = asyncio.Queue()
        self.worker.add(sequence)
        has_ended = False
        try:
            while not has_ended:
                progress = await arrivals.get()
                if progress is None:
                    raise EngineStoppedError("the engine stopped before the request was complete")
                has_ended = progress.finish_reason is not None
                yield progress
        finally:
            del self._queues[sequence]
            if not has_ended:
                self.worker.metrics.requests_cancelled += 1
                self.worker.cancel(sequence)

    def stop(self) -> None:
        """Take no more work; every waiting request gets ``EngineStoppedError``."""
        self.is_ready = False
        self.worker.stop()
        for arrivals in self._queues.values():
            arrivals.put_nowait(None)

    def _on_ready(self) -> None:
        self.is_ready = True
        print(f"ready: {self.options.kernel_module} {self.loaded_modules[self.options.kernel_module]}", flush=True)

    def _on_progress(self, steps: list[Progress]) -> None:
        for progress in steps:
            if arrivals := self._queues.get(progress.sequence):  # its client may just have left
                arrivals.put_nowait(progress)

    def _on_failure(self, text: str) -> None:
        self.failure = text
        print(text, file=sys.stderr, flush=True)
        self.stop()
        self.ended.set()


class Routes:
    """The handlers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._options = engine.options

    def application(self) -> web.Application:
        """The routes, with errors written as OpenAI writes them."""
        application = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
        application.router.add_post("/v1/completions", self.complete)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/health", self.health)
        application.router.add_get("/metrics", self.metrics)
        application.router.add_get("/loaded", self.loaded)
        return application

    async def health(self, _: web.Request) -> web.Response:
        """200 once everything has run once."""
        if self._engine.is_ready:
            return web.json_response({"status": "ready"})
        return web.json_response({"status": "stopped" if self._engine.failure else "starting"}, status=503)

    async def loaded(self, _: web.Request) -> web.Response:
        """Digests of the bytes that were imported; 503 before that."""
        modules = self._engine.loaded_modules
        return web.json_response({"modules": modules}, status=200 if modules else 503)

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        model = {"id": self._options.model_name, "object": "model", "created": 0, "owned_by": "kernel.engine"}
        return web.json_response({"object": "list", "data": [{**model, "max_model_len": self._options.max_model_len}]})

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(
            text=self._engine.worker.metrics.as_text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def complete(self, http_request: web.Request) -> web.StreamResponse:
        """OpenAI's completions."""
        request = parse_completion(await http_request.read(), self._options)
        if not self._engine.is_ready:
            raise ProtocolError("the engine is not ready: see /health", status=503, kind="service_unavailable_error")
        header = CompletionHeader(
            id=f"cmpl-{uuid.uuid4().hex}", created=int(time.time()), model=self._options.model_name
        )
        if request.stream:
            return await self._stream(http_request, request, header)
        return await self._answer(request, header)

    async def _answer(self, request: CompletionRequest, header: CompletionHeader) -> web.Response:
        tokens, finish_reason = [], None
        async with contextlib.aclosing(self._engine.progress_of(request)) as steps:
            async for progress in steps:
                finish_reason = progress.finish_reason
                if progress.token_id is not None:
                    tokens.append(progress.token_id)
        usage = usage_of(len(request.prompt), len(tokens))
        return web.json_response(header.completion(tokens, finish_reason, usage))

    async def _stream(
        self, http_request: web.Request, request: CompletionRequest, header: CompletionHeader
    ) -> web.StreamResponse:
        """One event a token, as it is made. An engine that ends midway sends an error event and no [DONE]."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(http_request)
        n_output = 0
        try:
            async with contextlib.aclosing(self._engine.progress_of(request)) as steps:
                async for progress in steps:
                    tokens = [] if progress.token_id is None else [progress.token_id]
                    n_output += len(tokens)
                    usage = usage_of(len(request.prompt), n_output)
                    chunk = header.completion(
                        tokens, progress.finish_reason, usage if request.continuous_usage else None
                    )
                    await response.write(event_of(chunk))
            if request.include_usage:
                await response.write(event_of(header.usage_chunk(usage_of(len(request.prompt), n_output))))
            await response.write(b"data: [DONE]\n\n")
        except EngineStoppedError as error:
            await response.write(event_of(_stopped(error).as_body()))
        await response.write_eof()
        return response


@web.middleware
async def errors_as_json(
    http_request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Write every refusal as OpenAI's error object."""
    try:
        return await handler(http_request)
    except ProtocolError as error:
        return web.json_response(error.as_body(), status=error.status)
    except EngineStoppedError as error:
        refusal = _stopped(error)
        return web.json_response(refusal.as_body(), status=refusal.status)
    except web.HTTPException as error:
        refusal = ProtocolError(f"{http_request.method} {http_request.path}: {error.reason}", status=error.status)
        return web.json_response(refusal.as_body(), status=error.status)


def _stopped(error: EngineStoppedError) -> ProtocolError:
    return ProtocolError(str(error), status=503, kind="service_unavailable_error")


async def serve(options: EngineOptions) -> int:
    """Serve until SIGTERM or SIGINT (returns 0) or until the worker fails (returns 1)."""
    engine = Engine(options)
    runner = web.AppRunner(
        Routes(engine).application(),
        access_log=None,
        handler_cancellation=True,  # a client that leaves ends its handler, which cancels its sequence
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        print(f"cannot listen on {options.host}:{options.port}: {error.strerror}", file=sys.stderr)
        await runner.cleanup()
        return 1
    print(f"listening on http://{options.host}:{options.port}", flush=True)
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    engine.worker.start()
    waits = [asyncio.ensure_future(signalled.wait()), asyncio.ensure_future(engine.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    engine.stop()
    await runner.cleanup()
    exit_code = 1 if engine.failure else 0
    if not engine.worker.join(JOIN_TIMEOUT_S):
        # Still importing, compiling or hung in a kernel: the thread cannot be ended from outside, the process can.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return asyncio.run(serve(parse_options(argv)))
