"""What the adapters of other people's clients share: the driver's spec from a recipe, and its result file judged.

A recipe means the same load for each of them: fixed lengths, end of sequence ignored, temperature 0, all requests at
once up to the concurrency; a warm-up of its own with other prompts, then the flush, then the measured run with the
client's own warm-up switched off. An adapter says which arguments that takes and reads the files that come of it
(``Reading``); it judges nothing. Here every rule is checked on that, fail closed: these clients exit with 0 when
requests failed, and some count an error inside an answer as success.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from urllib.parse import urlsplit

from orchestrator.clients import driver, request_limit
from orchestrator.clients.base import ClientRun, ExitEvidence, ParsedLoad, refuse_unfit
from orchestrator.clients.judging import NonFiniteError, failed, how_it_ended, last_words, told
from orchestrator.metrics import METRICS
from orchestrator.records import Engine, LoadProgress, RequestRecord, Workload

GRACE_S = 60.0
"""Beyond the driver's own deadline: cache flush, stopping of a client that does not want to, writing of the result."""
NOT_TOLD = "not told"
LOAD, WARM_UP = "load", "warm-up"


@dataclass(frozen=True, slots=True)
class Ask:
    """One run of a client: the warm-up or the measured load.

    Attributes:
        seed: of its prompts; another one for each concurrency, and another one for the warm-up, so that no prefix in
            the engine's cache is that of a measured prompt.
        folder: on the host, of this run alone; made by the driver.
    """

    workload: Workload
    engine: Engine
    concurrency: int
    n_requests: int
    seed: int
    folder: str

    @property
    def base_url(self) -> str:
        """Of the engine, without a slash at its end."""
        return self.engine.base_url.rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a client's files say of one run, as they say it.

    Attributes:
        n_ok, n_failed: as the client counts them; the latter None where it does not.
        n_output_tokens: of all completed requests.
        metrics: in orch's words; a quantity that the client does not measure, or measures otherwise, is left out.
        requests: one record each; empty where the client wrote none.
        ttft_ms, texts: of each request, by position; None where the client does not tell.
        doubts: what else in the files is against this run.
        started_at, ended_at: of the load, where the client tells.
    """

    n_ok: int
    n_failed: int | None
    n_output_tokens: int
    metrics: Mapping[str, float | None]
    requests: tuple[RequestRecord, ...]
    ttft_ms: Sequence[float | None]
    texts: Sequence[str | None] = ()
    doubts: Sequence[str] = ()
    started_at: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form in which a client may be there: what its own options follow, and what asks for its version."""

    argv: tuple[str, ...]
    version_argv: tuple[str, ...]


def with_verb(command: tuple[str, ...], verb: tuple[str, ...]) -> Candidate:
    """A program with its subcommand, given or not; the program alone tells its version."""
    program = command[: -len(verb)] if command[-len(verb) :] == verb else command
    return Candidate((*program, *verb), (*program, "--version"))


class DrivenClient(ABC):
    """A load client that ``driver.py`` runs; an adapter says what is different about it."""

    name: ClassVar[str]
    files: ClassVar[Mapping[str, str]]
    """What a run leaves in its folder: name in the bundle → file name."""
    limits_requests: ClassVar[bool] = True
    """Whether the client takes a time limit for one request; ``request_limit.py`` gives one to those that do not."""

    @abstractmethod
    def candidates(self, workload: Workload, engine: Engine) -> Sequence[Candidate]:
        """Forms of the client, the first that answers is used."""

    @abstractmethod
    def arguments(self, ask: Ask) -> Sequence[str]:
        """The client's own options for one run.

        Raises:
            LoadError: it cannot make that load.
        """

    @abstractmethod
    def read(self, files: Mapping[str, str]) -> Reading:
        """What the files of one run say.

        Raises:
            ValueError, KeyError, TypeError, IndexError: a file is missing, cut or of another kind.
            NonFiniteError: a measurement is no finite number.
        """

    # ---- prepare

    def prepare(self, workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> ClientRun:
        """The driver, its spec and what the client lacks, and one command by the engine's own python."""
        refuse_unfit(workload, engine)
        program, spec_path = f"{run_dir}/driver.py", f"{run_dir}/spec.json"
        limit_path = f"{run_dir}/request_limit.py"
        limit = {} if self.limits_requests else {limit_path: source(request_limit)}
        flush = engine.cache_flush_path if workload.cache_policy == "flush" else None
        spec = {
            "client": self.name,
            "recipe": _recipe(workload, concurrency),
            "candidates": [
                {"argv": one.argv, "version_argv": one.version_argv} for one in self.candidates(workload, engine)
            ],
            "env": dict(workload.client_env),
            "direct": urlsplit(engine.base_url).hostname,
            "steps": list(self._steps(workload, engine, concurrency, run_dir)),
            "flush_url": None if flush is None else f"{engine.base_url.rstrip('/')}/{flush.lstrip('/')}",
            "request_timeout_s": workload.request_timeout_s,
            "limit_path": limit_path if limit else None,
            "load_timeout_s": workload.load_timeout_s,
            "folder": run_dir,
            "result_path": f"{run_dir}/result.json",
            "progress_path": f"{run_dir}/progress.json",
        }
        return ClientRun(
            argv=(engine.python, "-B", program, spec_path),
            files={program: source(driver), spec_path: json.dumps(spec, indent=1).encode(), **limit},
            result_path=f"{run_dir}/result.json",
            progress_path=f"{run_dir}/progress.json",
            deadline_s=workload.load_timeout_s + GRACE_S,
            version=NOT_TOLD,
        )

    def _steps(self, workload: Workload, engine: Engine, concurrency: int, run_dir: str) -> Iterator[dict[str, Any]]:
        for name, per_place in ((WARM_UP, workload.warmup_per_concurrency), (LOAD, workload.prompts_per_concurrency)):
            if not per_place:
                continue
            n_requests, folder = per_place * concurrency, f"{run_dir}/{name}"
            ask = Ask(workload, engine, concurrency, n_requests, seed_of(workload, concurrency, name), folder)
            yield {
                "name": name,
                "args": list(self.arguments(ask)),
                "files": {key: f"{folder}/{file}" for key, file in self.files.items()},
                # each place has so long for all requests of its own, and to start
                "deadline_s": min((per_place + 1) * workload.request_timeout_s, workload.load_timeout_s),
            }

    # ---- parse

    def parse(self, raw: bytes | None, evidence: ExitEvidence, workload: Workload, concurrency: int) -> ParsedLoad:
        """The metrics, or why there are none; the records of the requests in any case where they can be read."""
        if raw is None:
            words = last_words(evidence.log_tail)
            return failed([how_it_ended(f"{self.name}'s driver", evidence, "without a result"), *words])
        version = argv = None
        try:
            bundle = json.loads(raw)
            version = None if bundle["client_version"] is None else str(bundle["client_version"])
            steps = {one["name"]: one for one in bundle["steps"]}
            argv = tuple(map(str, steps[LOAD]["argv"])) if LOAD in steps else None
            problems = self._why_failed(bundle, steps, evidence, _recipe(workload, concurrency))
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            return failed([_cut(f"the driver's result file ({len(raw)} bytes)", exc)], version, argv)
        if not problems and WARM_UP in steps:
            n_warmup = workload.warmup_per_concurrency * concurrency
            _, why_not, doubts = self._read(steps[WARM_UP], n_warmup, workload.output_tokens)
            problems = [f"warm-up: {reason}" for reason in (*why_not, *doubts)]
        reading, why_not, doubts = None, [], []
        if LOAD in steps and (not problems or any(steps[LOAD]["files"].values())):
            n_asked = workload.prompts_per_concurrency * concurrency
            reading, why_not, doubts = self._read(steps[LOAD], n_asked, workload.output_tokens)
        requests = () if reading is None else reading.requests
        began, ended = _times(steps.get(LOAD), reading)
        if problems or why_not:
            return ParsedLoad("failed", (*problems, *why_not, *doubts), {}, requests, began, ended, version, argv)
        if doubts or reading is None:
            return ParsedLoad("invalid", tuple(doubts), {}, requests, began, ended, version, argv)
        return ParsedLoad("ok", (), _metrics(reading), requests, began, ended, version, argv)

    def _why_failed(
        self,
        bundle: Mapping[str, Any],
        steps: Mapping[str, Mapping[str, Any]],
        evidence: ExitEvidence,
        recipe: Mapping[str, object],
    ) -> list[str]:
        """Reasons for which there is no load to speak of."""
        reasons = []
        if bundle["client"] != self.name or bundle["schema"] != driver.SCHEMA:
            reasons.append(
                f"the result is of {bundle['client']} schema {bundle['schema']}, not {self.name} {driver.SCHEMA}"
            )
        unlike = [
            f"{k} {bundle['recipe'].get(k)} instead of {v}" for k, v in recipe.items() if bundle["recipe"].get(k) != v
        ]
        if unlike:
            reasons.append("the result is of another load: " + ", ".join(unlike))
        if evidence.how == "deadline":
            reasons.append(how_it_ended(f"{self.name}'s driver", evidence, "while it still ran"))
        if bundle["stopped_by"] is not None:
            last = list(steps.values())[-1:]
            words = last_words([str(line) for line in last[0]["last_lines"]]) if last else []
            reasons += [f"the load was stopped: {bundle['stopped_by']}", *words]
        elif LOAD not in steps or steps[LOAD]["how"] != "exited" or steps[LOAD]["exit_code"] != 0:
            reasons.append("the result says that all is well, and has no load that came to its end")
        elif evidence.exit_code not in (0, None):
            reasons.append(how_it_ended(f"{self.name}'s driver", evidence, "with a result that says all is well"))
        return reasons

    def _read(
        self, step: Mapping[str, Any], n_asked: int, output_tokens: int
    ) -> tuple[Reading | None, list[str], list[str]]:
        """(what the files of a run say, why there is no result, why it is not to be believed)."""
        files = {key: text for key, text in step["files"].items() if text is not None}
        missing = [self.files[key] for key in self.files if key not in files]
        if missing:
            words = last_words([str(line) for line in step["last_lines"]])
            return None, [f"{self.name} wrote no {', no '.join(missing)} (exit code {step['exit_code']})", *words], []
        try:
            reading = self.read(files)
        except NonFiniteError as exc:
            return None, [], [f"the result holds {exc}, which is no measurement"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
            words = last_words([str(line) for line in step["last_lines"]])
            return None, [_cut(f"{self.name}'s result", exc), *words], []
        return reading, [], list(_doubts(reading, n_asked, output_tokens))

    def parse_progress(self, raw: bytes, concurrency: int) -> LoadProgress | None:
        """The driver's progress file: which phase for how long. These clients do not tell how many requests ended."""
        try:
            seen = json.loads(raw)
            return LoadProgress(concurrency, str(seen["phase"]), 0, 0, 0, float(seen["elapsed_s"]))
        except (ValueError, KeyError, TypeError):
            return None


@functools.cache
def source(module: ModuleType) -> bytes:
    """The source of a program of orch's, as it is sent to the host."""
    return Path(str(module.__file__)).read_bytes()


def seed_of(workload: Workload, concurrency: int, phase: str) -> int:
    """The seed that the client is given: 31 bits of SHA-256 of the workload's seed, the concurrency and the phase."""
    name = f"orch-seed-1/{workload.seed}/{concurrency}/{phase}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


def _recipe(workload: Workload, concurrency: int) -> dict[str, object]:
    """What makes two loads the same load; the driver hands it through."""
    return {
        "concurrency": concurrency,
        "n_requests": workload.prompts_per_concurrency * concurrency,
        "n_warmup": workload.warmup_per_concurrency * concurrency,
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "seed": workload.seed,
        "cache_policy": workload.cache_policy,
        "tokenizer": workload.tokenizer,
    }


def _times(step: Mapping[str, Any] | None, reading: Reading | None) -> tuple[str | None, str | None]:
    """Begin and end of the load: the client's own, or those of its process."""
    if reading is not None and reading.started_at and reading.ended_at:
        return reading.started_at, reading.ended_at
    return (None, None) if step is None else (str(step["started_at"]), str(step["ended_at"]))


def _cut(what: str, exc: Exception) -> str:
    return f"{what} is cut or of another kind ({type(exc).__name__}: {exc})"


# ---- the rules


def _doubts(reading: Reading, n_asked: int, output_tokens: int) -> Iterator[str]:
    """Reasons for which a run is not to be believed."""
    errors = [one.error for one in reading.requests if one.error is not None]
    n_failed = n_asked - reading.n_ok if reading.n_failed is None else reading.n_failed
    if errors:
        yield told("requests", errors, n_asked)
    if n_failed and len(errors) != n_failed:
        yield f"{n_failed} of {n_asked} requests failed" if n_failed > 0 else f"{reading.n_ok} of {n_asked} completed"
    if reading.n_ok + n_failed != n_asked:
        yield f"{reading.n_ok} requests completed and {n_failed} failed, of {n_asked} asked for"
    if reading.n_output_tokens != reading.n_ok * output_tokens:
        yield f"{reading.n_output_tokens} output tokens of {reading.n_ok} requests, asked for were {output_tokens} each"
    yield from reading.doubts
    if len(reading.requests) != n_asked:
        yield f"{len(reading.requests)} records for {n_asked} requests: a failure counted as success would not be seen"
    faults = Counter(
        fault
        for i, one in enumerate(reading.requests)
        if one.error is None
        for fault in _faults(reading, i, output_tokens)
    )
    yield from (f"{count} of {n_asked} requests: {fault}" for fault, count in sorted(faults.items()))


def _faults(reading: Reading, i: int, output_tokens: int) -> Iterator[str]:
    """What contradicts a record that says it is good."""
    one = reading.requests[i]
    if one.n_output_tokens != output_tokens:
        yield f"output tokens are not the {output_tokens} asked for"
    ttft_ms = reading.ttft_ms[i] if i < len(reading.ttft_ms) else None
    if ttft_ms is None:
        yield "no TTFT"
    elif ttft_ms <= 0:
        yield "TTFT of 0"
    if reading.texts and not reading.texts[i]:
        yield "empty text"
    if any(gap < 0 for gap in one.itl_ms):
        yield "times that contradict each other"


def _metrics(reading: Reading) -> dict[str, float | None]:
    """Every metric of the registry; None where the client does not measure it."""
    counts = {"n_ok": reading.n_ok, "n_failed": 0, "n_output_tokens": reading.n_output_tokens}
    return {name: {**reading.metrics, **counts}.get(name) for name in METRICS}
