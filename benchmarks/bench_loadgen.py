"""How truly and how fast ``loadgen`` measures: its numbers against those of a server that logs its own send times.

``python -m benchmarks.bench_loadgen`` runs the real client against the stub engine, each a process of its own, and
prints two tables (``--json`` for machines):

truth     At each concurrency: each metric by loadgen, the same metric with each chunk at the moment when the stub
          handed it to its socket, and the difference: the client's own error plus the way through the loopback. What
          the stub is late is in both and cancels. Also how late single chunks are stamped, how long a request waits
          until the stub reads it (the stub's own queue), and loadgen's CPU time per chunk.
capacity  A stub sends whole answers without pacing, many chunks in one piece: chunks ÷ CPU second is what one core
          takes. With one chunk a read, one core takes 1 ÷ (CPU time per chunk) of the first table's last row.

Nothing is pinned. On a machine with few cores client, stub and strangers compete for them; "wait %" is the share of the
time for which loadgen was ready to run and was not let. A row where it is not small says something about the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.clients import loadgen
from orchestrator.clients.loadgen_adapter import metrics_of
from orchestrator.clients.pooling import percentile
from orchestrator.records import RequestRecord
from tests.support.stub_engine import RunningStub, running_stub

SHOWN = ("ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "itl_ms_p50", "itl_ms_p99", "e2el_ms_p50", "output_tokens_per_s")


def run_client(url: str, **fields: Any) -> dict[str, Any]:
    """One load by a loadgen of its own; its result file."""
    with tempfile.TemporaryDirectory() as folder:
        spec = {
            "url": url,
            "seed": 1,
            "input_tokens": 128,
            "request_timeout_s": 60,
            "load_timeout_s": 300,
            "result_path": f"{folder}/result.json",
            "progress_path": f"{folder}/progress.json",
            **fields,
        }
        (Path(folder) / "spec.json").write_text(json.dumps(spec))
        done = subprocess.run(
            [sys.executable, loadgen.__file__, f"{folder}/spec.json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"loadgen ended with exit code {done.returncode}: {done.stderr}")
        return dict(json.loads((Path(folder) / "result.json").read_bytes()))


def records_of(result: dict[str, Any]) -> list[RequestRecord]:
    """The requests as the client saw them."""
    return [RequestRecord(**{name: one[name] for name in RequestRecord.__slots__}) for one in result["requests"]]


def served_in_order(result: dict[str, Any], stub: RunningStub) -> list[dict[str, Any]]:
    """The stub's log in the client's order: an answer belongs to the request with the same prompt."""
    served = {one["prompt"]: one for one in stub.log()}
    measured, _ = loadgen.prompts(loadgen.Spec(**result["spec"]))
    return [served[loadgen.prompt_digest(ids).hex()] for ids in measured]


def true_records(result: dict[str, Any], served: Sequence[dict[str, Any]]) -> list[RequestRecord]:
    """The same requests with each chunk at the moment when the stub handed it to its socket.

    The moment of sending stays the client's: between it and the stub's reading lies the stub's own queue.
    """
    spec, records = loadgen.Spec(**result["spec"]), []
    for i, truth in enumerate(served):
        sent = [moment - result["clock_zero_s"] for moment in truth["sent_s"]]
        gaps = tuple(1000 * (sent[k] - sent[k - 1]) for k in range(1, len(sent)))
        count = len(sent)
        records.append(
            RequestRecord(
                i, result["requests"][i]["sent_s"], sent[0], sent[-1], spec.input_tokens, count, count, gaps, None, None
            )
        )
    return records


def chunk_lags_ms(seen: RequestRecord, true: RequestRecord) -> list[float]:
    """For each chunk of a request: from the stub's socket to loadgen's stamp."""
    assert seen.first_chunk_s is not None and true.first_chunk_s is not None
    lags = [1000 * (seen.first_chunk_s - true.first_chunk_s)]
    for mine, its in zip(seen.itl_ms, true.itl_ms, strict=True):
        lags.append(lags[-1] + mine - its)
    return lags


def measure_truth(concurrency: int, output_tokens: int, ttft_ms: float, itl_ms: float) -> dict[str, Any]:
    """One load at one concurrency: metrics of both sides, and how late single chunks were stamped."""
    with running_stub("--ttft-ms", ttft_ms, "--itl-ms", itl_ms) as stub:
        result = run_client(
            stub.url,
            concurrency=concurrency,
            n_requests=max(4, 2 * concurrency),
            n_warmup=concurrency,
            output_tokens=output_tokens,
        )
        served = served_in_order(result, stub)
    seen, true = records_of(result), true_records(result, served)
    zero_s = result["clock_zero_s"]
    request_lag_ms = sorted(
        1000 * (one["received_s"] - zero_s - sent["sent_s"])
        for one, sent in zip(served, result["requests"], strict=True)
    )
    chunk_lag_ms = sorted(lag for a, b in zip(seen, true, strict=True) for lag in chunk_lags_ms(a, b))
    measured, truth = metrics_of(seen, 0), metrics_of(true, 0)
    n_chunks = sum(one.n_chunks for one in seen)
    return {
        "concurrency": concurrency,
        "chunks_per_s": n_chunks / result["elapsed_s"],
        "cpu_us_per_chunk": 1e6 * result["cpu_s"] / n_chunks,
        "cpu_pct": 100 * result["cpu_s"] / result["elapsed_s"],
        "cpu_wait_pct": None if result["cpu_wait_s"] is None else 100 * result["cpu_wait_s"] / result["elapsed_s"],
        "request_lag_ms_p50": percentile(request_lag_ms, 0.5),
        "chunk_lag_ms_p50": percentile(chunk_lag_ms, 0.5),
        "chunk_lag_ms_p99": percentile(chunk_lag_ms, 0.99),
        "metrics": {
            name: {"measured": measured[name], "truth": truth[name], "error": measured[name] - truth[name]}  # type: ignore[operator]
            for name in SHOWN
        },
    }


def measure_capacity(concurrency: int, output_tokens: int) -> dict[str, Any]:
    """Whole answers without pacing: how many chunks loadgen takes when it does nothing but read."""
    with running_stub("--ttft-ms", 0, "--itl-ms", 0) as stub:
        result = run_client(stub.url, concurrency=concurrency, n_requests=10 * concurrency, output_tokens=output_tokens)
    n_chunks = sum(one["n_chunks"] for one in result["requests"])
    return {
        "concurrency": concurrency,
        "n_chunks": n_chunks,
        "chunks_per_s": n_chunks / result["elapsed_s"],
        "chunks_per_cpu_s": n_chunks / result["cpu_s"],
        "busy_pct": 100 * result["cpu_s"] / result["elapsed_s"],
    }


def print_truth(rows: Sequence[dict[str, Any]]) -> None:
    """The first table."""
    print("error of each metric (measured − truth)")
    lags = ("request_lag_ms_p50", "chunk_lag_ms_p50", "chunk_lag_ms_p99")
    print(" | ".join(["concurrency", "chunks/s", "CPU µs/chunk", "CPU %", "wait %", *lags, *SHOWN]))
    for row in rows:
        cells = [f"{row['concurrency']}", f"{row['chunks_per_s']:.0f}", f"{row['cpu_us_per_chunk']:.1f}"]
        cells += [f"{row['cpu_pct']:.0f}", f"{row['cpu_wait_pct'] or 0:.0f}", *(f"{row[lag]:.3f}" for lag in lags)]
        cells += [f"{one['error']:+.3f} of {one['truth']:.2f}" for one in row["metrics"].values()]
        print(" | ".join(cells))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--concurrency", default="1,8,64,96,512")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--ttft-ms", type=float, default=150.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    given = parser.parse_args()
    levels = [int(word) for word in given.concurrency.split(",")]
    truth = [measure_truth(level, given.output_tokens, given.ttft_ms, given.itl_ms) for level in levels]
    capacity = [measure_capacity(level, 512) for level in (8, 64)]
    report = {"n_cpus": os.cpu_count(), "python": sys.version.split()[0], "truth": truth, "capacity": capacity}
    if given.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{os.cpu_count()} cores, shared by client and stub; Python {report['python']}")
    print_truth(truth)
    print("capacity (no pacing, many chunks a read): conc | chunks/s | chunks per CPU second | CPU %")
    for row in capacity:
        cells = (row["concurrency"], row["chunks_per_s"], row["chunks_per_cpu_s"], row["busy_pct"])
        print(" | ".join(f"{cell:.0f}" for cell in cells))


if __name__ == "__main__":
    main()
