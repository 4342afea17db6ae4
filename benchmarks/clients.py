"""How truly load clients measure, how much their numbers scatter, and what CPU time they take, beside each other.

    python -m benchmarks.clients --folder FOLDER [--clients loadgen,vllm] [--repeat 3] [--engine-repeat 2] [--json FILE]

FOLDER is the one that ``tests/engines/install.sh`` and ``install_clients.sh`` fill. Two parts:

truth     A stub engine whose time to the first token and between tokens is set, and which writes down when it handed
          each chunk to its socket. Each client loads it at each concurrency, so often as told, in another order each
          time. Error: what the client says − what the stub wrote down, so what the stub itself is late is in neither;
          it is in a column of its own all the same ("late"), because a stub that is late is no even pace.
engine    The same loads of a real engine, which has no truth: medians and spread, and each client beside loadgen.

CPU seconds are those of a client's whole process tree, start included: they are read by a parent that adopts whatever
of it is left behind. "Under load" are those between the stub's first request and its last chunk, from a look every
0.1 s. Clients, stub and engine share the cores of one machine; nothing is pinned, and other work on it spoils all
numbers. The stub asks for real-time priority, so that it is late as seldom as can be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.clients import ExitEvidence, load_client
from orchestrator.clients.pooling import percentile, statistics_of
from orchestrator.records import Engine
from tests.engines.clients import CLIENTS, Place
from tests.support.stub_engine import running_stub
from tests.support.tiny_host import free_port

FIVE = ("loadgen", "sglang", "vllm", "guidellm", "aiperf")
CONCURRENCIES = (1, 8, 64, 96)
SHOWN = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "itl_ms_p99", "e2el_ms_p50", "output_tokens_per_s")
INPUT_TOKENS, OUTPUT_TOKENS = 32, 32
TTFT_MS, ITL_MS = 50.0, 10.0
ADOPTING = r"""
import ctypes, json, os, resource, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what loses its parent becomes ours, and counts
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""


def cpu_s(pid):
    # of a process, what it has waited for and what is below it
    fields = read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()[11:15]
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        tasks = []
    below = [int(one) for task in tasks for one in read(f"/proc/{pid}/task/{task}/children").split()]
    return TICK_S * sum(map(int, fields)) + sum(map(cpu_s, below))


process = subprocess.Popen(sys.argv[2:])
own_s, seen = time.process_time, []
while process.poll() is None:
    seen.append((time.perf_counter(), cpu_s(os.getpid()) - own_s()))
    time.sleep(0.1)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seen.append((time.perf_counter(), used.ru_utime + used.ru_stime))
with open(sys.argv[1], "w") as file:
    json.dump({"code": process.returncode, "cpu_s": used.ru_utime + used.ru_stime, "seen": seen}, file)
"""
"""Runs a client, and writes down its exit code and the CPU time of its whole process tree, over time too."""


@dataclass(frozen=True)
class Made:
    """One load by one client.

    Attributes:
        client: name of ``tests.engines.clients``. status, reasons, metrics: as orch judges and reads it.
        truth: the same metrics by the stub's log; empty for a real engine.
        late_ms_p99, late_ms_max: of the stub's chunks.
        cpu_s: of the client's process tree, start included. loading_cpu_s: of it, between the stub's first request and
            its last chunk. wall_s: from its start to its end.
    """

    client: str
    concurrency: int
    status: str
    reasons: tuple[str, ...]
    metrics: Mapping[str, float | None]
    truth: Mapping[str, float | None]
    late_ms_p99: float | None
    late_ms_max: float | None
    n_chunks: int
    cpu_s: float
    loading_cpu_s: float | None
    wall_s: float


@dataclass(frozen=True)
class Cost:
    """What a run of a client took. ``seen``: moments of ``perf_counter`` and the CPU seconds until then."""

    cpu_s: float
    wall_s: float
    seen: Sequence[tuple[float, float]]

    def between_s(self, began_s: float, ended_s: float) -> float | None:
        """CPU seconds between two moments, linear between two looks; None when nobody looked in time."""
        moments = [moment for moment, _ in self.seen]
        if len(moments) < 2 or began_s < moments[0] - 1:
            return None
        return self._until(ended_s) - self._until(began_s)

    def _until(self, moment_s: float) -> float:
        for (a_s, a), (b_s, b) in zip(self.seen, self.seen[1:], strict=False):
            if moment_s <= b_s:
                return a + (b - a) * min(1.0, max(0.0, (moment_s - a_s) / (b_s - a_s)))
        return self.seen[-1][1]


def prompts_of(concurrency: int) -> int:
    """Requests for each place: enough of them at a small concurrency too."""
    return {1: 8, 8: 4}.get(concurrency, 3)


def run_client(place: Place, engine: Engine, concurrency: int, seed: int) -> tuple[Any, Cost]:
    """What orch makes of one load by a client that is called as orch's adapter calls it, and what it cost."""
    workload = place.workload(
        input_tokens=INPUT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        prompts_per_concurrency=prompts_of(concurrency),
        seed=seed,
        **({} if place.client.words else {"min_token_id": 1000, "max_token_id": 4000}),
    )
    client = load_client(workload.client)
    run = client.prepare(workload, engine, concurrency, str(place.folder))
    for path, content in run.files.items():
        Path(path).write_bytes(content)
    spec = json.loads(run.files[f"{place.folder}/spec.json"])
    argv, step = list(run.argv), None
    if place.client.words:
        (step,) = spec["steps"]
        argv = [*spec["candidates"][0]["argv"], *step["args"]]
        (place.folder / "load").mkdir()
    cpu_path, log_path = place.folder / "cpu", place.folder / "log"
    began_s = time.perf_counter()
    with log_path.open("wb") as log:
        command = [sys.executable, "-c", ADOPTING, str(cpu_path), *argv]
        env = {**os.environ, **place.client.env, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        subprocess.run(command, check=True, stdout=log, stderr=log, cwd=place.folder, env=env)
    wall_s = time.perf_counter() - began_s
    told = json.loads(cpu_path.read_text())
    code, cost = int(told["code"]), Cost(told["cpu_s"], wall_s, told["seen"])
    tail = tuple(log_path.read_text(errors="replace").splitlines()[-5:])
    raw = Path(run.result_path).read_bytes() if step is None else bundle(spec, step, argv, code, tail)
    parsed = client.parse(raw, ExitEvidence("exited", code, tail), workload, concurrency)
    return parsed, cost


def bundle(
    spec: Mapping[str, Any], step: Mapping[str, Any], argv: Sequence[str], code: int, tail: Sequence[str]
) -> bytes:
    """What the driver would have written of this run."""
    files = {key: Path(path).read_text() if Path(path).exists() else None for key, path in step["files"].items()}
    now = "2026-01-01T00:00:00.000Z"
    one = {"name": "load", "argv": argv, "how": "exited", "exit_code": code, "last_lines": list(tail), "files": files}
    whole = {"schema": 1, "client": spec["client"], "client_version": None, "recipe": spec["recipe"]}
    times = {"started_at": now, "ended_at": now}
    return json.dumps({**whole, **times, "stopped_by": None, "steps": [{**one, **times}]}).encode()


def truth_of(served: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The metrics by the stub's log: from the moment when a request was read to those when chunks were handed on."""
    found: dict[str, float | None] = {}
    firsts = [1000 * (one["sent_s"][0] - one["received_s"]) for one in served]
    wholes = [1000 * (one["sent_s"][-1] - one["received_s"]) for one in served]
    found |= statistics_of("ttft_ms", firsts) | statistics_of("e2el_ms", wholes)
    found |= statistics_of(
        "tpot_ms", [(whole - first) / (OUTPUT_TOKENS - 1) for whole, first in zip(wholes, firsts, strict=True)]
    )
    gaps = [1000 * (b - a) for one in served for a, b in zip(one["sent_s"], one["sent_s"][1:], strict=False)]
    found |= statistics_of("itl_ms", gaps)
    duration_s = max(one["sent_s"][-1] for one in served) - min(one["received_s"] for one in served)
    return {**found, "output_tokens_per_s": sum(one["n_output"] for one in served) / duration_s}


def engine_at(base_url: str, model: str, **fields: Any) -> Engine:
    """An engine that is served there."""
    return Engine(name="engine", command=("engine",), python=sys.executable, base_url=base_url, model=model, **fields)


def load_stub(place: Place, concurrency: int, seed: int) -> Made:
    """One load of a stub of its own."""
    with running_stub("--ttft-ms", TTFT_MS, "--itl-ms", ITL_MS, "--urgent") as stub:
        parsed, cost = run_client(place, engine_at(stub.base_url, "stub"), concurrency, seed)
        served = [one for one in stub.log() if one["sent_s"]]
    late_ms = sorted(late for one in served for late in one["late_ms"])
    truth = truth_of(served) if served else {}
    loading_cpu_s = None
    if served:
        loading_cpu_s = cost.between_s(
            min(one["received_s"] for one in served), max(one["sent_s"][-1] for one in served)
        )
    late = (percentile(late_ms, 0.99), late_ms[-1] if late_ms else None)
    return made(place, concurrency, parsed, truth, late, len(late_ms), cost, loading_cpu_s)


def made(
    place: Place,
    concurrency: int,
    parsed: Any,
    truth: Mapping[str, float | None],
    late: tuple[float | None, float | None],
    n_chunks: int,
    cost: Cost,
    loading_cpu_s: float | None,
) -> Made:
    """A load as it is told, with a line about it."""
    name = next(key for key, one in CLIENTS.items() if one is place.client)
    words = "; ".join(parsed.reasons)[:200]
    print(f"  {name} at {concurrency}: {parsed.status} {words} ({cost.wall_s:.1f} s)", file=sys.stderr, flush=True)
    metrics = {key: parsed.metrics.get(key) for key in SHOWN} if parsed.status == "ok" else {}
    costs = (cost.cpu_s, loading_cpu_s, cost.wall_s)
    return Made(name, concurrency, parsed.status, parsed.reasons, metrics, truth, *late, n_chunks, *costs)


@contextlib.contextmanager
def real_engine(folder: Path) -> Iterator[str]:
    """vLLM with a small model, on a free port; its base URL."""
    port = free_port()
    command = [
        str(folder / "vllm/bin/vllm"),
        "serve",
        str(folder / "models/llama-small"),
        "--served-model-name",
        "tiny",
    ]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "2048"]
    command += ["--max-num-seqs", "128", "--enforce-eager"]
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True, close_fds=True
        )
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Until the engine answers; ends the program when it does not come up."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up_s = time.monotonic() + 300
    while True:
        if process.poll() is not None or time.monotonic() > give_up_s:
            raise SystemExit("the engine did not start")
        with contextlib.suppress(OSError), opener.open(url, timeout=5):
            return
        time.sleep(0.5)


def load_engine(place: Place, base_url: str, concurrency: int, seed: int) -> Made:
    """One load of the real engine."""
    parsed, cost = run_client(place, engine_at(base_url, "tiny"), concurrency, seed)
    n_chunks = prompts_of(concurrency) * concurrency * OUTPUT_TOKENS
    return made(place, concurrency, parsed, {}, (None, None), n_chunks, cost, None)


def series(
    folder: Path, clients: Sequence[str], concurrencies: Sequence[int], n_repeats: int, base_url: str | None
) -> list[Made]:
    """Every client at every concurrency so often, with another client first each time; the stub's when no URL."""
    found = []
    for repeat in range(n_repeats):
        for turn, concurrency in enumerate(concurrencies):
            for i in range(len(clients)):
                client = CLIENTS[clients[(repeat + turn + i) % len(clients)]]
                with tempfile.TemporaryDirectory() as run:
                    place = Place(client, folder, folder / "models" / "llama-tiny", Path(run))
                    if base_url is None:
                        found.append(load_stub(place, concurrency, repeat))
                    else:
                        found.append(load_engine(place, base_url, concurrency, repeat))
    return found


# ---- tables


def median(values: Sequence[float | None]) -> float | None:
    """Of what was measured; None of nothing."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def cv_pct(values: Sequence[float | None]) -> float | None:
    """Standard deviation ÷ mean, in per cent; None of fewer than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or not statistics.mean(known):
        return None
    return 100 * statistics.stdev(known) / statistics.mean(known)


def errors_of(rows: Sequence[Made], metric: str) -> list[float]:
    """What the client says − what the stub wrote down, where it measures that."""
    pairs = [(one.metrics.get(metric), one.truth.get(metric)) for one in rows]
    return [told - true for told, true in pairs if told is not None and true is not None]


def summary(rows: Sequence[Made]) -> list[dict[str, Any]]:
    """A row for each client and concurrency."""
    found = []
    for concurrency in dict.fromkeys(one.concurrency for one in rows):
        for client in sorted(dict.fromkeys(one.client for one in rows), key=[*CLIENTS].index):
            ours = [one for one in rows if (one.client, one.concurrency) == (client, concurrency)]
            good = [one for one in ours if one.status == "ok"]
            found.append(
                {
                    "concurrency": concurrency,
                    "client": client,
                    "n": len(good),
                    "n_bad": len(ours) - len(good),
                    "measured": {metric: median([one.metrics.get(metric) for one in good]) for metric in SHOWN},
                    "truth": {metric: median([one.truth.get(metric) for one in good]) for metric in SHOWN},
                    "error": {metric: median(errors_of(good, metric)) for metric in SHOWN},
                    "cv_pct": {metric: cv_pct([one.metrics.get(metric) for one in good]) for metric in SHOWN},
                    "late_ms_p99": median([one.late_ms_p99 for one in good]),
                    "late_ms_max": max((one.late_ms_max for one in good if one.late_ms_max is not None), default=None),
                    "cpu_s": median([one.cpu_s for one in good]),
                    "loading_cpu_s": median([one.loading_cpu_s for one in good]),
                    "wall_s": median([one.wall_s for one in good]),
                    "n_chunks": median([one.n_chunks for one in good]),
                }
            )
    return found


def shown(value: float | None, places: int = 2, *, is_signed: bool = False) -> str:
    """A number for a table, or a dash."""
    return "–" if value is None else f"{value:{'+' if is_signed else ''}.{places}f}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In Markdown, so that it can be pasted."""
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_truth(rows: Sequence[Mapping[str, Any]]) -> None:
    """Errors, spread and cost on the stub."""
    names = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "itl_ms_p99", "e2el_ms_p50")
    print_table(
        [
            "C",
            "client",
            "n",
            *(f"{name} error" for name in names),
            "tok/s error %",
            "spread of TTFT, TPOT, tok/s (CV %)",
        ],
        [
            [
                str(row["concurrency"]),
                row["client"],
                bad_and_good(row),
                *(shown(row["error"][name], 3, is_signed=True) for name in names),
                shown(relative_pct(row, "output_tokens_per_s"), is_signed=True),
                ", ".join(shown(row["cv_pct"][name], 1) for name in ("ttft_ms_p50", "tpot_ms_p50", SHOWN[-1])),
            ]
            for row in rows
        ],
    )
    print_table(
        ["C", "client", "n", "CPU s", "of it under load", "chunks", "wall s", "stub late ms, p99 and most"],
        [
            [
                str(row["concurrency"]),
                row["client"],
                bad_and_good(row),
                shown(row["cpu_s"]),
                shown(row["loading_cpu_s"]),
                shown(row["n_chunks"], 0),
                shown(row["wall_s"], 1),
                f"{shown(row['late_ms_p99'])}, {shown(row['late_ms_max'], 1)}",
            ]
            for row in rows
        ],
    )
    print_ranks(rows)


def relative_pct(row: Mapping[str, Any], metric: str) -> float | None:
    """The median error, in per cent of the truth."""
    error, truth = row["error"][metric], row["truth"][metric]
    return None if error is None or not truth else 100 * error / truth


def bad_and_good(row: Mapping[str, Any]) -> str:
    """``3``, or ``2 (1 bad)``."""
    return f"{row['n']}" + (f" ({row['n_bad']} bad)" if row["n_bad"] else "")


def print_ranks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Who errs least and takes least CPU time, at each concurrency."""
    for metric in (*SHOWN, "cpu_s", "loading_cpu_s"):
        best: dict[str, list[str]] = {}
        for concurrency in dict.fromkeys(row["concurrency"] for row in rows):
            here = [(least_of(row, metric), row["client"]) for row in rows if row["concurrency"] == concurrency]
            known = [(value, client) for value, client in here if value is not None]
            if known:
                best.setdefault(min(known)[1], []).append(str(concurrency))
        words = ", ".join(f"{client} at {', '.join(levels)}" for client, levels in best.items())
        print(f"least {'' if metric.endswith('cpu_s') else 'error of '}{metric}: {words}")
    print()


def least_of(row: Mapping[str, Any], metric: str) -> float | None:
    """What is best when it is least: seconds of CPU, or the size of an error."""
    value = row[metric] if metric.endswith("cpu_s") else row["error"][metric]
    return None if value is None else abs(value)


def print_engine(rows: Sequence[Mapping[str, Any]]) -> None:
    """Numbers of a real engine, each client's beside loadgen's."""
    names = ("ttft_ms_p50", "tpot_ms_p50", "e2el_ms_p50", "output_tokens_per_s")
    own = {row["concurrency"]: row["measured"] for row in rows if row["client"] == "loadgen"}

    def cell(row: Mapping[str, Any], name: str) -> str:
        value, reference = row["measured"][name], own.get(row["concurrency"], {}).get(name)
        beside = "" if value is None or not reference else f" (×{value / reference:.2f})"
        return f"{shown(value)}{beside}, CV {shown(row['cv_pct'][name], 1)} %"

    print_table(
        ["C", "client", "n", *names, "CPU s"],
        [
            [
                str(row["concurrency"]),
                row["client"],
                bad_and_good(row),
                *(cell(row, name) for name in names),
                shown(row["cpu_s"]),
            ]
            for row in rows
        ],
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=os.environ.get("ORCH_TEST_ENGINES", ".venv-engines"))
    parser.add_argument("--clients", default=",".join(FIVE))
    parser.add_argument("--concurrency", default=",".join(map(str, CONCURRENCIES)))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine-repeat", type=int, default=2, help="0: without the real engine")
    parser.add_argument("--json", type=Path, help="every load, and the tables' rows")
    given = parser.parse_args()
    folder = Path(given.folder).absolute()
    wanted = given.clients.split(",")
    clients = [name for name in wanted if CLIENTS[name].is_installed(folder)]
    for name in wanted:
        if name not in clients:
            print(f"not installed in {folder}: {name}", file=sys.stderr)
    levels = [int(word) for word in given.concurrency.split(",")]
    began_s, load_before = time.monotonic(), os.getloadavg()[0]
    truth = series(folder, clients, levels, given.repeat, None)
    engine: list[Made] = []
    if given.engine_repeat:
        with real_engine(folder) as base_url:
            engine = series(folder, clients, levels, given.engine_repeat, base_url)
    took_s = time.monotonic() - began_s
    tables = {"truth": summary(truth), "engine": summary(engine)}
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load average before "
        f"{load_before:.1f}, {took_s / 60:.1f} min"
    )
    print(f"{machine}; stub: TTFT {TTFT_MS:g} ms, ITL {ITL_MS:g} ms, {INPUT_TOKENS} tokens in, {OUTPUT_TOKENS} out\n")
    if truth:
        print_truth(tables["truth"])
    if engine:
        print("a real engine (vLLM on the CPU, llama-small)\n")
        print_engine(tables["engine"])
    if given.json:
        loads = {"truth": [asdict(one) for one in truth], "engine": [asdict(one) for one in engine]}
        given.json.write_text(json.dumps({"machine": machine, "tables": tables, "loads": loads}, indent=1))


if __name__ == "__main__":
    main()
