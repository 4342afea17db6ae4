"""A load client that is called and writes like ``vllm bench serve``, and makes real requests, without vLLM.

``python fake_client.py --version``, ``python fake_client.py bench serve --base-url … --num-prompts …``. How it behaves
is told by ``FAKE_MODE`` (``MODE`` for every run, ``load=MODE`` for the measured one): ``ok``, ``exit`` (code 3 after a
result), ``silent`` (code 0, no result), ``hang`` (with a child that ignores TERM), ``worker`` (leaves such one behind),
``aiohttp`` (asks with that). It notes in its result how often the engine's cache had been flushed when it began.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VERSION = "0.99.1+fake"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def options(words: list[str]) -> dict[str, str]:
    """``--name value`` pairs; an option without a value is empty."""
    given, name = {}, ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            given[name] = ""
        else:
            given[name] = word
    return given


def lines_by_urllib(request: urllib.request.Request) -> Iterator[bytes]:
    """The lines of the answer, as they come."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        yield from answer


def lines_by_aiohttp(request: urllib.request.Request) -> Iterator[bytes]:
    """The same as vLLM's and SGLang's clients ask for it: with six hours of patience. All lines at the end."""
    import aiohttp

    async def collect() -> list[bytes]:
        patience = aiohttp.ClientTimeout(total=6 * 60 * 60)
        async with (
            aiohttp.ClientSession(timeout=patience) as session,
            session.post(request.full_url, data=request.data, headers=request.headers) as answer,
        ):
            return [line async for line in answer.content]

    yield from asyncio.run(collect())


def ask(url: str, ids: list[int], n_output: int, lines_of: Callable[..., Iterator[bytes]]) -> dict[str, Any]:
    """One streamed request, measured as vLLM's client does: an error event after the head counts as success."""
    body = {"prompt": ids, "max_tokens": n_output, "temperature": 0, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    began_s = last_s = time.perf_counter()
    found: dict[str, Any] = {"start": began_s, "ttft": 0.0, "itl": [], "text": "", "n": 0, "error": ""}
    try:
        for line in lines_of(request):
            if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[5:])
            now_s = time.perf_counter()
            if event.get("usage"):
                found["n"] = event["usage"]["completion_tokens"]
            elif event.get("choices") and event["choices"][0]["text"]:
                if found["text"]:
                    found["itl"].append(now_s - last_s)
                else:
                    found["ttft"] = now_s - began_s
                found["text"] += event["choices"][0]["text"]
                last_s = now_s
    except (OSError, asyncio.TimeoutError) as exc:
        found["error"] = str(exc) or type(exc).__name__
    found["latency"] = last_s - began_s
    return found


def run(given: dict[str, str], lines_of: Callable[..., Iterator[bytes]]) -> dict[str, Any]:
    """The load, in vLLM's schema."""
    n, concurrency = int(given["num-prompts"]), int(given["max-concurrency"])
    n_input, n_output = int(given["random-input-len"]), int(given["random-output-len"])
    draw = random.Random(int(given["seed"]))
    prompts = [[draw.randrange(1000, 30000) for _ in range(n_input)] for _ in range(n)]
    answers: list[dict[str, Any]] = [{}] * n
    todo = iter(range(n))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                i = next(todo, None)
            if i is None:
                return
            answers[i] = ask(given["base-url"] + given["endpoint"], prompts[i], n_output, lines_of)

    began_s = time.perf_counter()
    places = [threading.Thread(target=work) for _ in range(concurrency)]
    for one in places:
        one.start()
    for one in places:
        one.join()
    duration = time.perf_counter() - began_s
    good = [one for one in answers if not one["error"]]
    tpots = sorted(1000 * (one["latency"] - one["ttft"]) / max(1, one["n"] - 1) for one in good)
    ttfts = sorted(1000 * one["ttft"] for one in good)
    total = sum(one["n"] for one in good)
    return {
        "num_prompts": n,
        "duration": duration,
        "completed": len(good),
        "failed": n - len(good),
        "total_output_tokens": total,
        "request_throughput": len(good) / duration,
        "output_throughput": total / duration,
        "input_lens": [n_input] * n,
        "output_lens": [one["n"] for one in answers],
        "ttfts": [one["ttft"] for one in answers],
        "itls": [one["itl"] for one in answers],
        "latencies": [one["latency"] for one in answers],
        "start_times": [one["start"] for one in answers],
        "generated_texts": [one["text"] for one in answers],
        "errors": [one["error"] for one in answers],
        "median_ttft_ms": ttfts[len(ttfts) // 2] if ttfts else 0.0,
        "median_tpot_ms": tpots[len(tpots) // 2] if tpots else 0.0,
    }


def main(words: list[str]) -> int:
    """The command line."""
    if words == ["--version"]:
        print(f"INFO 01-01 10.20 importing\n{VERSION}")
        return 0
    given = options(words[2:])
    folder = Path(given["result-dir"])
    mode = os.environ.get("FAKE_MODE", "ok")
    if "=" in mode:
        phase, _, mode = mode.partition("=")
        mode = mode if folder.name == phase else "ok"
    print(f"the fake client began: {folder.name}", file=sys.stderr, flush=True)
    if mode in ("hang", "worker"):
        child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        (folder / "child").write_text(str(child.pid))
    if mode == "hang":
        signal.pause()
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(given["base-url"] + "/health") as answer:
        n_flushes = json.load(answer)["n_flushes"]
    result = {**run(given, lines_by_aiohttp if mode == "aiohttp" else lines_by_urllib), "n_flushes_before": n_flushes}
    if mode != "silent":
        (folder / given["result-filename"]).write_text(json.dumps(result))
    return 3 if mode == "exit" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
