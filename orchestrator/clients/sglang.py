"""Adapter of SGLang's own load client, ``python -m sglang.benchmark.serving`` (before 0.5.13 or so ``bench_serving``).

Against SGLang itself it uses the native backend, the only one to which the client sends token ids, so that prompts have
exactly the length asked for. Against any other engine it uses ``/v1/completions``; prompts are then text, and the
client counts the output tokens that it asked for, whatever came. (A busy vLLM puts many tokens into one chunk, so the
number of chunks says nothing; asked for usage, the client takes the event that has it for a failure.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from orchestrator.clients.driven import Ask, Candidate, DrivenClient, Reading
from orchestrator.clients.reading import Arrays, shared_metrics
from orchestrator.records import Engine, Workload

MODULES = ("sglang.benchmark.serving", "sglang.bench_serving")
"""By age; each falls back to the next where it does not exist."""
NATIVE = "sglang"

_VERSION = (
    "import importlib.metadata as m, importlib.util as u, os, sys; top, *rest = {module!r}.split('.'); "
    "spec = u.find_spec(top); places = spec.submodule_search_locations if spec else []; "
    "files = [os.path.join(place, *rest) for place in places]; "
    "any(os.path.exists(f + '.py') for f in files) or sys.exit('no module {module}'); print(m.version('sglang'))"
)
"""Looks for the file: an import of the module would bring half of SGLang along."""


class SglangClient(DrivenClient):
    """SGLang's load client."""

    name = "sglang"
    files: ClassVar[Mapping[str, str]] = {"result": "result.jsonl"}
    limits_requests: ClassVar[bool] = False

    def candidates(self, workload: Workload, engine: Engine) -> Sequence[Candidate]:
        """The new module and the old one by the engine's python, or what the inventory says."""
        commands = [workload.client_command] if workload.client_command else [(engine.python, "-m", m) for m in MODULES]
        return [_candidate(command) for command in commands]

    def arguments(self, ask: Ask) -> Sequence[str]:
        """Fixed lengths are a range ratio of 1.0 here; end of sequence ignored and temperature 0 by default."""
        workload = ask.workload
        is_native = _is_sglang(ask.engine)
        return [
            *("--backend", NATIVE if is_native else "vllm"),
            *("--base-url", ask.base_url),
            *(("--model", ask.engine.model) if ask.engine.model else ()),
            *(("--tokenizer", workload.tokenizer) if workload.tokenizer else ()),
            *("--dataset-name", "random-ids"),
            *(("--tokenize-prompt",) if is_native else ()),
            *("--random-input-len", str(workload.input_tokens)),
            *("--random-output-len", str(workload.output_tokens)),
            *("--random-range-ratio", "1.0"),
            *("--num-prompts", str(ask.n_requests)),
            *("--max-concurrency", str(ask.concurrency)),
            *("--request-rate", "inf"),
            *("--seed", str(ask.seed)),
            *("--warmup-requests", "0"),
            *("--output-file", f"{ask.folder}/{self.files['result']}"),
            *("--output-details", "--disable-tqdm"),
        ]

    def read(self, files: Mapping[str, str]) -> Reading:
        """The last line: the client appends. It does not count failures, so those are what is missing.

        The request rate in it is an infinity, rightly; so only what is read is looked at.
        """
        lines = files["result"].splitlines()
        result = json.loads(lines[-1])
        is_native = result.get("backend") == NATIVE
        arrays = Arrays.of(result, has_chunk_gaps=not is_native)
        quantities = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e_latency"}
        return Reading(
            n_ok=int(result["completed"]),
            n_failed=None,
            n_output_tokens=int(result["total_output_tokens"]),
            metrics=shared_metrics(result, quantities if is_native else {**quantities, "itl_ms": "itl"}),
            requests=() if arrays is None else arrays.requests(),
            ttft_ms=() if arrays is None else arrays.ttft_ms(),
            texts=() if arrays is None else arrays.texts,
        )


def _is_sglang(engine: Engine) -> bool:
    """By the engine's kind; where the inventory names none, by its command line."""
    return engine.kind == "sglang" or (engine.kind == "other" and any("sglang" in word for word in engine.command))


def _candidate(command: tuple[str, ...]) -> Candidate:
    """Its module's interpreter is asked: the client itself knows no ``--version``."""
    *interpreter, _, module = command
    return Candidate(command, (*interpreter, "-c", _VERSION.format(module=module)))
