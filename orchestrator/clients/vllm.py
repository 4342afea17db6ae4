"""Adapter of ``vllm bench serve``."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import ClassVar

from orchestrator.clients.driven import Ask, Candidate, DrivenClient, Reading, with_verb
from orchestrator.clients.judging import refuse_constant
from orchestrator.clients.reading import Arrays, shared_metrics
from orchestrator.errors import LoadError
from orchestrator.records import Engine, Workload

VERB = ("bench", "serve")


class VllmClient(DrivenClient):
    """vLLM's load client."""

    name = "vllm"
    files: ClassVar[Mapping[str, str]] = {"result": "result.json"}
    limits_requests: ClassVar[bool] = False

    def candidates(self, workload: Workload, engine: Engine) -> Sequence[Candidate]:
        """``vllm`` beside the engine's python, or what the inventory says."""
        beside = (posixpath.join(posixpath.dirname(engine.python), "vllm"),)
        return [with_verb(workload.client_command or beside, VERB)]

    def arguments(self, ask: Ask) -> Sequence[str]:
        """Fixed lengths are a range ratio of 0 here; the client's own test request and warm-up are off."""
        workload = ask.workload
        if ask.engine.kind == "llama-server":
            raise LoadError(
                f"workload {workload.name}: vLLM's client does not see how many tokens llama-server made, and counts "
                "those of the text anew, which are others",
                next_step="load llama-server with another client",
            )
        return [
            *("--backend", "openai", "--base-url", ask.base_url, "--endpoint", "/v1/completions"),
            *(("--model", ask.engine.model) if ask.engine.model else ()),
            *(("--tokenizer", workload.tokenizer) if workload.tokenizer else ()),
            *("--dataset-name", "random"),
            *("--random-input-len", str(workload.input_tokens)),
            *("--random-output-len", str(workload.output_tokens)),
            *("--random-range-ratio", "0"),
            *("--num-prompts", str(ask.n_requests)),
            *("--max-concurrency", str(ask.concurrency)),
            *("--request-rate", "inf"),
            *("--seed", str(ask.seed)),
            *("--ignore-eos", "--temperature", "0"),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"),
            *("--ready-check-timeout-sec", "0"),
            *("--save-result", "--save-detailed", "--result-dir", ask.folder),
            *("--result-filename", self.files["result"], "--disable-tqdm"),
        ]

    def read(self, files: Mapping[str, str]) -> Reading:
        """One object. Its peak of concurrency counts requests within a second, so it is not taken."""
        result = json.loads(files["result"], parse_constant=refuse_constant)
        arrays = Arrays.of(result)
        n_ok = int(result["completed"])
        n_told = result.get("failed")
        n_failed = int(result["num_prompts"]) - n_ok if n_told is None else int(n_told)
        quantities = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "e2el_ms": "e2el"}
        return Reading(
            n_ok=n_ok,
            n_failed=n_failed,
            n_output_tokens=int(result["total_output_tokens"]),
            metrics=shared_metrics(result, quantities),
            requests=() if arrays is None else arrays.requests(),
            ttft_ms=() if arrays is None else arrays.ttft_ms(),
            texts=() if arrays is None else arrays.texts,
        )
