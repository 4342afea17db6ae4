"""One config of a kernel file in a process of its own: compiled without a GPU, or checked on one.

Whatever the config does (fails to compile, kills its process, hangs) is its answer, and harms no other. Owns the
child's program and how many run at once; which configs there are and what is made of the answers is ``tuner.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel.autotune_lists import Settings
from kernel.check import check_case, import_source
from kernel.microbench import PAGE_SIZE

CHECK_DEADLINE_S = 150.0


def work(asked: Mapping[str, Any]) -> dict[str, Any]:
    """In the child: check or compile one config; never raises for what the file does.

    Returns:
        problem, or None; compiled forms by number of heads when it was to compile.
    """
    from kernel.timing import one_line

    file = Path(asked["file"])
    try:
        source = file.read_bytes()
        settings = Settings.from_json(asked["settings"])
        if asked["do"] == "compile":
            return {"problem": None, "compiled": _compile(file, source, settings, asked)}
        return {"problem": _check(import_source(file, source), settings, asked)}
    except Exception as error:
        return {"problem": one_line(error)}


def _compile(file: Path, source: bytes, settings: Settings, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    from kernel import offline

    found = []
    for n_heads in asked["heads"]:
        module = import_source(file, source)
        how = {"arch": asked["arch"], "n_heads": n_heads, "n_rows": 96, "topks": asked["topks"]}
        launch = offline.launches_of(module, settings.config(module), **how)[0]
        made = offline.compiled(launch, asked["arch"])
        block_t = dict(settings.kwargs).get("BLOCK_T")
        tokens = None if block_t is None else made.instructions_a_token(block_t)
        found.append(asdict(made) | {"n_heads": n_heads, "instructions_a_token": tokens})
    return found


def _check(module: ModuleType, settings: Settings, asked: Mapping[str, Any]) -> str | None:
    """The first problem. Rows shared and not, −1 in between and poison; then each timed shape, to have it compiled."""
    import torch

    from kernel.cases import Case, make_inputs
    from kernel.check import run_poisoned

    config, device = settings.config(module), asked["device"]
    topk, second_topk = asked["topks"][-1], asked["topks"][0] if len(asked["topks"]) > 1 else None
    common: dict[str, Any] = {"sink": "random", "page_size": PAGE_SIZE, "second_page_size": PAGE_SIZE}
    common |= {"second_topk": second_topk, "topk": topk}
    for n_heads in asked["heads"]:
        cases = (
            Case(name="3 rows", n_rows=3, n_heads=n_heads, missing="some", poison=True, **common),
            Case(name="37 rows", n_rows=37, n_heads=n_heads, **(common | {"topk": 96})),
        )
        for number, case in enumerate(cases):
            result = check_case(module, case, config, device, asked["seed"] + number)
            if not result.passed:
                return f"{n_heads} heads, {case.name}: {result.problem}"
        for batch in asked["batches"]:
            case = Case(name="as timed", n_rows=batch, n_heads=n_heads, **common)
            run_poisoned(module, make_inputs(case, asked["seed"], device), config)
    if device == "cuda":
        torch.cuda.synchronize()
    return None


def in_children(
    asked: Sequence[Mapping[str, Any]], *, n_jobs: int, until: float, deadline_s: float = CHECK_DEADLINE_S
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, answer) as they come, each from a process of its own; those not begun in time say so."""
    with ThreadPoolExecutor(max_workers=max(1, n_jobs)) as threads:
        futures = {threads.submit(_in_child, one, until, deadline_s): number for number, one in enumerate(asked)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _in_child(asked: Mapping[str, Any], until: float, deadline_s: float) -> dict[str, Any]:
    started = time.monotonic()
    left_s = min(deadline_s, until - started)
    if left_s <= 0:
        return {"problem": "not reached in time", "check_s": None}
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", "from kernel import config_trial; config_trial.answer()"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=left_s,
            check=False,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer within {left_s:.0f} s", "check_s": None}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.rpartition("\n")[2])
    except ValueError:
        last = done.stderr.strip().rpartition("\n")[2] or "nothing was said"
        answer = {"problem": f"its process ended with {done.returncode}: {last}"}
    return answer | {"check_s": round(time.monotonic() - started, 1)}


def answer() -> None:
    """The child's program: one request from stdin, one JSON answer as the last of stdout."""
    found = json.dumps(work(json.loads(sys.stdin.read())))
    sys.stdout.write("\n" + found)
    sys.stdout.flush()
    os._exit(0)  # a CUDA context that the kernel broke would abort here, after the answer
