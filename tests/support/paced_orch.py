"""``orch`` with a load client that knows the engine's true pace: ``python -m tests.support.paced_orch run V2 …``.

The real client makes the real load on the stub engine: every request, text, fault and file is what it is. Only the
times in its result are then replaced by those that the stub keeps to, because on a busy test machine the real ones are
noise: chunk k of a request leaves ``ttft + k × itl`` after it was sent, and request n of a slot is sent when the one
before it has ended. The stub's pace depends on the bytes that it was started on, and so does what is measured.

On top comes a known noise of each start, ``ORCH_TEST_NOISE`` (an SD, 0.002 when not set). It is drawn from the start's
place in the plan, so that a start that is made again measures the same, and an experiment that was killed ten times
must end with the very numbers of one that was not.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import sys
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import clients
from orchestrator.clients import ClientRun, ExitEvidence, ParsedLoad
from orchestrator.clients.loadgen_adapter import LoadgenClient, metrics_of
from orchestrator.records import Engine, RequestRecord, Workload

NOISE = 0.002


class PacedClient(LoadgenClient):
    """loadgen, its times replaced by the true ones."""

    def prepare(self, workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> ClientRun:
        """As loadgen's, and remembers whom to ask."""
        self.base_url = engine.base_url
        trial_id = run_dir.rpartition("-c")[0].rpartition("-")[2]
        self.trial_id = int(trial_id) if trial_id else None  # none where a load is only tried out
        return super().prepare(workload, engine, concurrency, run_dir)

    def parse(self, raw: bytes | None, evidence: ExitEvidence, workload: Workload, concurrency: int) -> ParsedLoad:
        """As loadgen's; of a good load the times are the true ones."""
        found = super().parse(raw, evidence, workload, concurrency)
        if found.status != "ok":
            return found
        pace = truth(self.base_url)
        slowness = 1 + random.Random(place(self.trial_id, concurrency)).gauss(0, noise())
        paced = tuple(
            _paced(one, one.i // concurrency, pace["ttft_s"] * slowness, pace["itl_s"] * slowness)
            for one in found.requests
        )
        return replace(found, requests=paced, metrics=metrics_of(paced, concurrency))


def _paced(request: RequestRecord, turn: int, ttft_s: float, itl_s: float) -> RequestRecord:
    n_gaps = request.n_chunks - 1
    sent_s = turn * (ttft_s + n_gaps * itl_s)
    return replace(
        request,
        sent_s=sent_s,
        first_chunk_s=sent_s + ttft_s,
        last_chunk_s=sent_s + ttft_s + n_gaps * itl_s,
        itl_ms=(1000 * itl_s,) * n_gaps,
    )


def truth(base_url: str) -> dict[str, Any]:
    """How the engine that serves there is paced."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(base_url + "/truth", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def place(trial_id: int, concurrency: int) -> str:
    """Where in the plan a trial is, whatever attempt; of a trial outside of experiments its number."""
    with closing(sqlite3.connect(f"file:{Path('results.db').absolute()}?mode=ro", uri=True)) as connection:
        found = connection.execute(
            "SELECT block, arm FROM experiment_starts WHERE trial_id = ?", (trial_id,)
        ).fetchone()
    return f"{found or trial_id} at {concurrency}"


def noise() -> float:
    """SD of one start."""
    return float(os.environ.get("ORCH_TEST_NOISE", NOISE))


def install() -> None:
    """Puts this client in the place of loadgen, in this process."""
    clients.CLIENTS["loadgen"] = f"{__name__}:PacedClient"


if __name__ == "__main__":
    from orchestrator.cli import main
    from tests.support.paced_orch import install as install_paced

    install_paced()
    main(sys.argv[1:])
