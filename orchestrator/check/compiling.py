"""Compile jobs in, ``CompiledKernel`` out: the compile program as a process of its own, and a cache of its answers.

The program is ``kernel/compiler``; this side never imports it. What it answers depends on nothing but the source, the
config, the architecture, the Triton version and the program itself, so answers are kept under a digest of those.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.check.cache import Answer, AnswerCache
from orchestrator.check.environments import Report, TritonEnvironment
from orchestrator.errors import CheckError
from orchestrator.records import Progress
from orchestrator.verdicts import CompiledKernel, CompileJob, Constant, KernelConfig, KernelSource, PipelinedBuffer

DEADLINE_S = 60.0
"""For one compile; most take 0.5 to 3 s."""

GRACE_S = 5.0
_UNSURE = ("crash", "deadline", "import")
"""Failures that may not happen again, so they are not kept."""

_BOOTSTRAP = """
import importlib.util, sys
folder = sys.argv[1]
sys.path[:0] = sys.argv[2:]
spec = importlib.util.spec_from_file_location(
    "orch_compiler", folder + "/__init__.py", submodule_search_locations=[folder])
package = importlib.util.module_from_spec(spec)
sys.modules["orch_compiler"] = package
spec.loader.exec_module(package)
from orch_compiler.__main__ import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Described:
    """What a lifted module says of its autotune list.

    Attributes:
        configs: None when there is no list, or it cannot be computed here. key: of the list.
        error: why the module or its list could not be run, in one line.
    """

    configs: tuple[KernelConfig, ...] | None
    key: tuple[str, ...] | None
    error: str | None


class Compiler:
    """Answers compile jobs, from its cache where it can.

    Args:
        environment: with which Triton.
        cache_folder: made when needed.
        report: told of every compile that ends.
        n_workers: compiles at once; the cores of this machine when None.
        deadline_s: for one compile.
    """

    def __init__(
        self,
        environment: TritonEnvironment,
        cache_folder: Path,
        report: Report,
        *,
        n_workers: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.environment = environment
        self._cache = AnswerCache(cache_folder, program_folder())
        self._report = report
        self._n_workers = n_workers or _n_cores()
        self._deadline_s = deadline_s

    def describe(self, sources: Sequence[KernelSource]) -> list[Described]:
        """The autotune list of each lifted module."""
        jobs = [{"do": "describe", "source": source} for source in sources]
        return [_described(answer) for answer in self._answers(jobs, "reading the autotune list")]

    def compile(self, jobs: Sequence[CompileJob]) -> list[CompiledKernel]:
        """Compiles each job, in parallel.

        Returns:
            One answer a job, in their order; what does not compile says so and raises nothing.

        Raises:
            CheckError: the compile program itself does not run.
        """
        requests = [_compile_request(job) for job in jobs]
        answers = self._answers(requests, f"compiling {jobs[0].source.kernel}" if jobs else "")
        version = self.environment.version
        return [_compiled(job, version, answer) for job, answer in zip(jobs, answers, strict=True)]

    def known(self, jobs: Sequence[CompileJob]) -> list[CompiledKernel | None]:
        """Like ``compile``, and compiles nothing: None where the answer is not in the cache."""
        version, found = self.environment.version, []
        for job in jobs:
            request = _compile_request(job)
            answer = self._cache.get(self._cache.key(request, version), request)
            found.append(None if answer is None else _compiled(job, version, {**answer, "is_cached": True}))
        return found

    def _answers(self, requests: Sequence[Answer], doing: str) -> list[Answer]:
        """One answer a request; the same request twice is asked once."""
        version = self.environment.version
        answers: dict[str, Answer] = {}
        missing: dict[str, Answer] = {}
        keys = [self._cache.key(request, version) for request in requests]
        for key, request in zip(keys, requests, strict=True):
            cached = self._cache.get(key, request)
            if cached is not None:
                answers[key] = {**cached, "is_cached": True}
            elif key not in missing or request.get("also_stages"):
                missing[key] = request
        for key, answer in self._run(missing, doing) if missing else ():
            answers[key] = answer
            if answer.get("error_kind") not in _UNSURE and not _is_unsure_description(answer):
                self._cache.put(key, missing[key], answer)
        return [answers[key] for key in keys]

    def _run(self, requests: Mapping[str, Answer], doing: str) -> Iterator[tuple[str, Answer]]:
        """Runs the program; gives each answer with its request's key as it comes."""
        began_s = time.monotonic()
        keys, n_done = list(requests), 0
        label = f"{doing} with Triton {self.environment.version}"
        self._report(Progress("compile", label, 0, len(keys)))
        with _program(self.environment) as (program, errors):
            limit_s = self._deadline_s * (math.ceil(len(keys) / self._n_workers) + 1)
            timer = threading.Timer(limit_s, program.kill)
            timer.start()
            try:
                for answer in _converse(program, self._document(list(requests.values()))):
                    n_done += 1
                    elapsed_s = time.monotonic() - began_s
                    left_s = elapsed_s / n_done * (len(keys) - n_done)
                    self._report(Progress("compile", label, n_done, len(keys), elapsed_s, left_s))
                    yield keys[answer.pop("id")], answer
            finally:
                timer.cancel()
            if n_done < len(keys):
                raise _program_error(program.wait(), errors, self.environment.version)

    def _document(self, requests: Sequence[Answer]) -> bytes:
        sources: dict[str, Answer] = {}
        jobs = []
        for i, request in enumerate(requests):
            source: KernelSource = request["source"]
            sources[source.digest] = {"kind": source.kind, "kernel": source.kernel, "text": source.text}
            jobs.append({**request, "id": i, "source": source.digest})
        document = {"sources": sources, "jobs": jobs, "n_workers": self._n_workers, "deadline_s": self._deadline_s}
        return json.dumps(document).encode("ascii")


# ---- the program


def _n_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def program_folder() -> Path:
    """The compile program, found without importing the package ``kernel``, whose kernels need torch."""
    spec = importlib.util.find_spec("kernel")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        if (Path(folder) / "compiler" / "__main__.py").is_file():
            return Path(folder) / "compiler"
    raise CheckError(
        "the compile program (kernel/compiler) is not installed beside orch", next_step="install orch again, whole"
    )


@contextlib.contextmanager
def _program(environment: TritonEnvironment) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The compile program, started; however this ends, it and its compiles are gone."""
    folders = [str(program_folder()), *([str(environment.folder)] if environment.folder else [])]
    with tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            [*environment.command, "-c", _BOOTSTRAP, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            yield program, errors
        finally:
            _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    """Ends it, with the compiles under way: it removes its own scratch files when told to terminate."""
    for stream in (program.stdin, program.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if program.poll() is None:
        program.terminate()
    try:
        program.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _converse(program: subprocess.Popen[bytes], document: bytes) -> Iterator[Answer]:
    assert program.stdin is not None
    assert program.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code and last lines say why
        program.stdin.write(document)
        program.stdin.close()
    for line in program.stdout:
        answer = json.loads(line)
        if answer.pop("event") == "result":
            yield answer


def _program_error(exit_code: int, errors: IO[bytes], version: str) -> CheckError:
    errors.seek(0)
    lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    why = lines[-1].strip() if lines else "it said nothing"
    return CheckError(
        f"the compile program with Triton {version} ended with exit code {exit_code} before it had answered: {why}",
        evidence=lines[-10:],
    )


# ---- requests and answers


def _compile_request(job: CompileJob) -> Answer:
    config, signature = job.config, job.signature
    constants: dict[str, Constant] = {**(signature.constants if signature else {}), **config.constants}
    return {
        "do": "compile",
        "source": job.source,
        "arch": job.arch,
        "types": None if signature is None else dict(signature.types),
        "constants": constants,
        "divisible_by_16": list(signature.divisible_by_16) if signature else [],
        "options": {
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "num_ctas": config.num_ctas,
            "maxnreg": config.maxnreg,
        },
        "also_stages": list(job.also_stages),
    }


def _described(answer: Answer) -> Described:
    configs, key = answer.get("configs"), answer.get("key")
    return Described(
        None if configs is None else tuple(KernelConfig(**config) for config in configs),
        None if key is None else tuple(key),
        answer.get("error"),
    )


def _is_unsure_description(answer: Answer) -> bool:
    return "configs" in answer and answer.get("error") is not None


def _compiled(job: CompileJob, version: str, answer: Answer) -> CompiledKernel:
    stages = answer.get("stages_buffers") or {}
    return CompiledKernel(
        job=job,
        triton_version=version,
        error=answer.get("error"),
        error_kind=answer.get("error_kind"),
        n_warps=answer.get("n_warps"),
        shared_bytes=answer.get("shared_bytes"),
        n_registers=answer.get("n_registers"),
        stack_bytes=answer.get("stack_bytes"),
        spill_bytes=answer.get("spill_bytes"),
        tensor_cores=tuple(answer.get("tensor_cores") or ()),
        has_loop=answer.get("has_loop"),
        has_dot_in_loop=answer.get("has_dot_in_loop"),
        buffers=_buffers(answer.get("buffers") or ()),
        stages_buffers={int(n): _buffers(found) for n, found in stages.items() if int(n) in job.also_stages},
        binary_digest=answer.get("binary_digest"),
        compile_s=answer.get("compile_s"),
        is_cached=bool(answer.get("is_cached")),
    )


def _buffers(found: Sequence[Mapping[str, Any]]) -> tuple[PipelinedBuffer, ...]:
    return tuple(PipelinedBuffer(**{**buffer, "shape": tuple(buffer["shape"])}) for buffer in found)
