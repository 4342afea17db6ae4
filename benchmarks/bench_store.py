"""How fast results.db takes requests, and how fast the view ``results`` answers.

    python benchmarks/bench_store.py [--requests 1000000] [--trials 10000] [--json]

1. Requests go in through ``Store.record_load``, one load after the other, and the same rows through a raw
   ``executemany`` into the same schema, one transaction a load. Both take turns, load by load, on the same disk; the
   raw side is given its rows ready made, so that the ratio holds everything that the store adds: turning records into
   rows, packing the gaps, the load's own row and metrics.
2. ``select * from results`` and one filtered question, on many trials of four loads each.

Writes only into a temporary folder (``--folder`` says where).
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from orchestrator.metrics import METRICS
from orchestrator.records import (
    EngineProcess,
    Environment,
    LoadedProof,
    LoadResult,
    RequestRecord,
    Service,
    Workload,
    digest_of,
)
from orchestrator.store import Store
from orchestrator.store.encoding import pack_floats
from orchestrator.store.trials import INSERT_REQUEST

REQUESTS_PER_LOAD = 10_000
GAPS_PER_REQUEST = 63  # 64 output tokens
CONCURRENCIES = (1, 8, 64, 96)
DIGEST = digest_of(b"kernel")


def requests_of(seed: int, n: int) -> tuple[RequestRecord, ...]:
    """Requests as a load of 64 output tokens leaves them."""
    rng = random.Random(seed)
    text_digest = digest_of(str(seed).encode())
    return tuple(
        RequestRecord(
            i=i,
            sent_s=i * 0.01,
            first_chunk_s=i * 0.01 + rng.random(),
            last_chunk_s=i * 0.01 + 2.0,
            n_input_tokens=1024,
            n_output_tokens=GAPS_PER_REQUEST + 1,
            n_chunks=GAPS_PER_REQUEST + 1,
            itl_ms=tuple(rng.random() for _ in range(GAPS_PER_REQUEST)),
            error=None,
            text_digest=text_digest,
        )
        for i in range(n)
    )


def load_of(requests: tuple[RequestRecord, ...], concurrency: int = 64) -> LoadResult:
    """A good load with every metric."""
    return LoadResult(
        concurrency_cap=concurrency,
        status="ok",
        reasons=(),
        metrics={name: random.random() for name in METRICS},
        requests=requests,
        client="loadgen",
        client_version="1",
        argv=("python", "loadgen.py", "--concurrency", str(concurrency)),
        raw=None,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
    )


def begin_trial(store: Store, variant: str = "V2") -> int:
    """A trial whose engine was proved."""
    trial_id = store.begin_trial(
        host="gpu-a", target="flash", variant=variant, digest=DIGEST, workload=Workload(name="w")
    )
    process = EngineProcess("engine", "gpu-a", 1, 1, "2026-01-01T00:00:00+00:00", 0.0, "/tmp/log", DIGEST)
    proof = LoadedProof(DIGEST, (), tuple(range(16)), ())
    facts = Environment({"driver_version": "550.54", "engine_command": "python -m engine " * 10})
    store.record_service(trial_id, Service(process, "http://127.0.0.1:30000", proof, facts, 30.0))
    return trial_id


def timed(act: Callable[[], object]) -> float:
    """Seconds that it took."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


# ---- 1


def insert_raw(connection: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    """The least that SQLite can be asked for."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT_REQUEST, rows)
    connection.execute("COMMIT")


def raw_rows(load_id: int, requests: Sequence[RequestRecord]) -> list[tuple[object, ...]]:
    """Rows ready for the raw insert."""
    columns = ("i", "sent_s", "first_chunk_s", "last_chunk_s", "n_input_tokens", "n_output_tokens", "n_chunks")
    leading = attrgetter(*columns)
    return [(load_id, *leading(r), pack_floats(r.itl_ms), r.error, r.text_digest) for r in requests]


def open_raw(path: Path, n_loads: int) -> sqlite3.Connection:
    """The same schema, with empty loads for the rows to belong to, and the store's own settings."""
    with Store.open(path) as store:
        trial_id = begin_trial(store)
        for _ in range(n_loads):
            store.record_load(trial_id, load_of(()))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def bench_inserts(folder: Path, n_requests: int) -> dict[str, float]:
    """Seconds for all requests on both ways, and the ratio (of sums, and the median over loads)."""
    n_loads = max(1, n_requests // REQUESTS_PER_LOAD)
    raw = open_raw(folder / "raw.db", n_loads)
    store_s, raw_s = [], []
    with Store.open(folder / "store.db") as store:
        trial_id = begin_trial(store)
        for n in range(n_loads):
            requests = requests_of(n, REQUESTS_PER_LOAD)
            load, rows = load_of(requests), raw_rows(n + 1, requests)
            acts = [
                (store_s, lambda load=load: store.record_load(trial_id, load)),
                (raw_s, lambda rows=rows: insert_raw(raw, rows)),
            ]
            for seconds, act in acts if n % 2 else reversed(acts):
                seconds.append(timed(act))
        stored = store.query("SELECT count(*) FROM requests")[1][0][0]
    (raw_stored,) = raw.execute("SELECT count(*) FROM requests").fetchone()
    raw.close()
    assert stored == raw_stored == n_loads * REQUESTS_PER_LOAD
    return {
        "n_requests": n_loads * REQUESTS_PER_LOAD,
        "record_load_s": sum(store_s),
        "executemany_s": sum(raw_s),
        "record_load_requests_per_s": n_loads * REQUESTS_PER_LOAD / sum(store_s),
        "ratio": sum(store_s) / sum(raw_s),
        "ratio_median": statistics.median(s / r for s, r in zip(store_s, raw_s, strict=True)),
    }


# ---- 2


def fill_trials(path: Path, n_trials: int) -> None:
    """Many trials with four loads each; one transaction, copied from one real trial, as only reading is timed."""
    with Store.open(path) as store:
        trial_id = begin_trial(store)
        for concurrency in CONCURRENCIES:
            store.record_load(trial_id, load_of((), concurrency))
        store.end_trial(trial_id, "ok")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    for table, key, step in (("trials", "id", 1), ("loads", "id", len(CONCURRENCIES))):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY {key}").fetchall()
        copies = (shifted(columns, row, n, key, step) for n in range(1, n_trials) for row in rows)
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", copies)
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?)", metric_rows(n_trials))
    connection.execute("COMMIT")
    connection.close()


def shifted(columns: Sequence[str], row: Sequence[object], n: int, key: str, step: int) -> list[object]:
    """The n-th copy of a row."""
    changes = {key: n * step, "trial_id": n}
    copied = [
        value + changes[name] if name in changes and isinstance(value, int) else value
        for name, value in zip(columns, row, strict=True)
    ]
    if "variant" in columns:
        copied[columns.index("variant")] = f"V{n % 50}"
    return copied


def metric_rows(n_trials: int) -> Iterator[tuple[int, str, float]]:
    """Every metric of every copied load."""
    rng = random.Random(0)
    n_per_trial = len(CONCURRENCIES)
    for load_id in range(n_per_trial + 1, n_trials * n_per_trial + 1):
        for name in METRICS:
            yield load_id, name, rng.random()


def bench_views(folder: Path, n_trials: int) -> dict[str, float]:
    """Median seconds of five for each question, from opening the file to the last row."""
    path = folder / "views.db"
    fill_trials(path, n_trials)
    questions = {
        "results_all_s": "SELECT * FROM results",
        "results_one_variant_s": "SELECT * FROM results WHERE target = 'flash' AND variant = 'V7'",
        "results_last_20_s": "SELECT * FROM results ORDER BY load_id DESC LIMIT 20",
        "drift_s": "SELECT * FROM drift",
    }
    found: dict[str, float] = {"n_trials": n_trials, "n_loads": n_trials * len(CONCURRENCIES)}
    with Store.open_read_only(path) as store:
        assert len(store.query(questions["results_all_s"])[1]) == found["n_loads"]
        for name, sql in questions.items():
            found[name] = statistics.median(timed(lambda sql=sql: store.query(sql)) for _ in range(5))
        found["measurements_s"] = timed(lambda: store.measurements("flash", "w", digest=DIGEST))
    return found


def main() -> None:
    """Runs both and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000, help="rounded down to whole loads of 10,000")
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where the temporary folder goes; the disk matters")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = {
            "inserts": bench_inserts(Path(folder), options.requests),
            "views": bench_views(Path(folder), options.trials),
            "sqlite_version": sqlite3.sqlite_version,
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for part in ("inserts", "views"):
        for name, value in found[part].items():
            print(f"{name:<28} {value:>14,.3f}" if isinstance(value, float) else f"{name:<28} {value:>14,}")


if __name__ == "__main__":
    main()
