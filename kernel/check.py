"""Is a kernel file right? ``python -m kernel.check [FILE] [--json]``: one verdict, exit 0 (right) or 1 (wrong).

Imports FILE by path (the shipped kernel when not given), runs every case of ``cases.py`` with fresh random inputs,
and compares with the float64 reference. Touches nothing but this process: it writes no file of its own, and a
triton cache only where TRITON_CACHE_DIR says.

What is compared, in this order, so that no NaN can hide behind a tolerance:
    1. outputs are poisoned with NaN before the call, so that what the kernel forgets to write is seen;
    2. NaN, +inf and −inf must stand at the same positions as in the reference;
    3. of each (row, head): ‖out − reference‖ / ‖reference‖ < 3e-3. Rounding to bf16 alone gives 1.6e-3, the weights
       rounded to bf16 for the PV product as much again, added as squares;
    4. lse: |lse − reference| / max(1, |reference|) < 1e-5, as fp32 sums allow;
    5. a second call gives the same bits.

On CUDA every config of the autotune list is checked, not only the one that wins, and the kernel is captured in two
CUDA graphs, which are replayed with other inputs. On a CPU the torch path runs with the first config's tile; with
``--interpret`` the Triton kernels themselves, on the small cases.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from kernel.cases import Case, Inputs

    Outputs = tuple[torch.Tensor, torch.Tensor]
    Call = Callable[[], Outputs]

OUT_TOLERANCE = 3e-3
LSE_TOLERANCE = 1e-5
WORST_SHOWN = 3
GRAPH_REPLAYS = (("first capture", 0), ("second capture", 1), ("first capture again", 0))
"""Words for each replay, and which capture it is of; the second is made once the first was replayed."""
SHIPPED = Path(__file__).with_name("sparse_mla_decode.py")


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Of one case with one config.

    Attributes:
        name: the case.
        config: the config that ran, in words.
        passed: whether it is right.
        out_error, lse_error: largest relative errors; None where there was nothing finite to compare, or no result.
        problem: what is wrong, or None.
    """

    name: str
    config: str
    passed: bool
    out_error: float | None
    lse_error: float | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Of one file.

    Attributes:
        file, digest: what was checked; the digest is of the bytes that ran.
        path: ``triton`` (CUDA), ``interpreter`` or ``torch``.
        device: where it ran.
        seed: gives the same inputs again with ``--seed``.
        passed: all results passed, and there is at least one.
        problem: why nothing could be run, or None.
        results: one a case and config; CUDA-graph capture is a case of its own.
    """

    file: str
    digest: str | None
    path: str
    device: str
    seed: int
    passed: bool
    problem: str | None
    results: tuple[CaseResult, ...]


def check_file(file: Path, *, device: str, interpreted: bool, seed: int, n_random: int = 0) -> Verdict:
    """Run every case on ``file``, and ``n_random`` of random shape.

    Never raises for what is wrong with the file: that is the verdict.
    """
    digest, problem, results = None, None, []
    try:
        source = file.read_bytes()
        digest = "sha256:" + hashlib.sha256(source).hexdigest()
        module = import_source(file, source)
        results = list(_results(module, device, interpreted, seed, n_random))
    except Exception as error:  # whatever a variant's own code raises is this check's finding
        problem = _one_line(error)
    path = "triton" if device == "cuda" else "interpreter" if interpreted else "torch"
    passed = problem is None and bool(results) and all(result.passed for result in results)
    return Verdict(
        file=str(file),
        digest=digest,
        path=path,
        device=device,
        seed=seed,
        passed=passed,
        problem=problem,
        results=tuple(results),
    )


def import_source(file: Path, source: bytes) -> ModuleType:
    """Run ``source`` as a module named after ``file``; no bytecode cache is read or written.

    Triton finds a kernel's text through the file: it is the caller's matter that the file stays as it is meanwhile.
    """
    name = "checked_kernel"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # triton and dataclasses look their module up there
    exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    return module


def _results(module: ModuleType, device: str, interpreted: bool, seed: int, n_random: int) -> Iterator[CaseResult]:
    from kernel.cases import CASES, random_cases

    cases = [case for case in CASES if case.on_interpreter or not interpreted]
    configs = module.CONFIGS if device == "cuda" else module.CONFIGS[:1]
    for config in configs:
        for number, case in enumerate(cases):
            yield check_case(module, case, config, device, seed + number)
    for number, case in enumerate(random_cases(n_random, seed)):
        yield check_case(module, case, configs[number % len(configs)], device, seed + number)
    if device == "cuda":
        yield from check_graphs(module, seed, device, capture_graph)


def check_case(module: ModuleType, case: Case, config: Any, device: str, seed: int) -> CaseResult:
    """Run one case twice with one config and compare. Never raises for what the kernel does."""
    from kernel.cases import make_inputs

    try:
        inputs = make_inputs(case, seed, device)
        out, lse = run_poisoned(module, inputs, config)
        again = run_poisoned(module, inputs, config)
        problem, out_error, lse_error = compare(out, lse, inputs)
        if problem is None and not (_same_bits(out, again[0]) and _same_bits(lse, again[1])):
            problem = "not deterministic: a second call gave other bits"
    except Exception as error:  # a crash of the kernel under test is a finding, and the other cases still run
        problem, out_error, lse_error = _one_line(error), None, None
    return _result(case.name, _config_words(config), problem, out_error, lse_error)


def run_poisoned(module: ModuleType, inputs: Inputs, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """One call into poisoned outputs."""
    import torch

    n_rows, _, n_heads, head_dim = inputs.q_B1HD.shape
    device = inputs.q_B1HD.device
    out = torch.full((n_rows, 1, n_heads, head_dim), torch.nan, dtype=torch.bfloat16, device=device)
    lse = torch.full((n_rows, 1, n_heads), torch.nan, dtype=torch.float32, device=device)
    call_into(module, inputs, out, lse, config)
    return out, lse


def call_into(module: ModuleType, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor, config: Any) -> None:
    """One call of a kernel file's entry point, into these outputs."""
    pool, indices, page_size, lengths = inputs.pools[0]
    second = inputs.pools[1] if len(inputs.pools) > 1 else (None, None, None, None)
    module.sparse_mla_decode(
        inputs.q_B1HD,
        pool,
        indices,
        page_size=page_size,
        topk_length_B=lengths,
        attention_sink_H=inputs.attention_sink_H,
        second_kv_pool=second[0],
        second_indices_BT=second[1],
        second_page_size=second[2],
        second_topk_length_B=second[3],
        out_B1HD=out,
        lse_B1H=lse,
        config=config,
    )


def compare(out: torch.Tensor, lse: torch.Tensor, inputs: Inputs) -> tuple[str | None, float | None, float | None]:
    """(problem or None, relative error of out, of lse) against the reference for ``inputs``."""
    from kernel.reference import reference_decode

    expected_out, expected_lse = reference_decode(inputs.q_B1HD, inputs.pools, attention_sink_H=inputs.attention_sink_H)
    out, lse = out.cpu().double(), lse.cpu().double()
    problem = _masks_differ("out", out, expected_out) or _masks_differ("lse", lse, expected_lse)
    if problem is not None:
        return problem, None, None
    finite_rows = expected_out.isfinite().all(dim=3)
    difference = (out - expected_out).norm(dim=3)
    # A row that must be all zero has no relative error: any difference there is infinite.
    out_error = (difference / expected_out.norm(dim=3)).where(difference > 0, 0.0)[finite_rows]
    finite = expected_lse.isfinite()
    lse_error = ((lse - expected_lse).abs() / expected_lse.abs().clamp_min(1.0))[finite]
    problem = _too_far("out", out_error, OUT_TOLERANCE) or _too_far("lse", lse_error, LSE_TOLERANCE)
    return problem, _largest(out_error), _largest(lse_error)


def _masks_differ(name: str, actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    kinds = {"NaN": lambda x: x.isnan(), "+inf": lambda x: x == float("inf"), "-inf": lambda x: x == float("-inf")}
    for kind, mask in kinds.items():
        wrong = mask(actual) != mask(expected)
        if wrong.any():
            places = [tuple(place) for place in wrong.nonzero()[:WORST_SHOWN].tolist()]
            return f"{name}: {kind} where the reference differs, at {int(wrong.sum())} positions, first {places}"
    return None


def _too_far(name: str, error: torch.Tensor, tolerance: float) -> str | None:
    if error.numel() == 0 or float(error.max()) < tolerance:
        return None
    worst = ", ".join(f"{value:.2e}" for value in error.sort(descending=True).values[:WORST_SHOWN].tolist())
    return f"{name}: relative error {worst} (worst first), allowed {tolerance:.0e}"


def _largest(error: torch.Tensor) -> float | None:
    return float(error.max()) if error.numel() else None


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    as_bits = torch.int16 if one.dtype == torch.bfloat16 else torch.int32
    return torch.equal(one.view(as_bits), other.view(as_bits))


def capture_graph(call: Call) -> tuple[Outputs, Callable[[], None]]:
    """The call's outputs inside a CUDA graph, and what replays it."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    return outputs, graph.replay


def check_graphs(
    module: ModuleType, seed: int, device: str, capture: Callable[[Call], tuple[Outputs, Callable[[], None]]]
) -> list[CaseResult]:
    """Two captures, of other shapes, and three replays, each with inputs that were never captured.

    A serving engine captures one graph a batch size and replays them in any order: memory that a kernel keeps from
    call to call must not tie a graph to the inputs it was captured with, or to the capture before it. Never raises
    for what the kernel does; after a call that does, the rest is not tried.

    Args:
        capture: ``capture_graph``, or what stands in for it where there is no GPU.
    """
    from kernel.cases import Case, make_inputs

    captures: list[tuple[Inputs, Outputs, Callable[[], None]]] = []
    results = []
    for step, (words, number) in enumerate(GRAPH_REPLAYS):
        case = Case(name=f"CUDA graph, {words}", n_rows=2 + 3 * number, topk=512)
        try:
            if number == len(captures):
                inputs = make_inputs(case, seed + 2 * step, device)
                captures.append((inputs, *_capture(module, inputs, capture)))
            inputs, outputs, replay = captures[number]
            fresh = make_inputs(case, seed + 2 * step + 1, device)
            _overwrite(inputs, fresh)
            replay()
            results.append(_result(case.name, "autotuned", *compare(*outputs, fresh)))
        except Exception as error:  # a capture that fails is a finding
            return [*results, _result(case.name, "autotuned", _one_line(error))]
    return results


def _capture(
    module: ModuleType, inputs: Inputs, capture: Callable[[Call], tuple[Outputs, Callable[[], None]]]
) -> tuple[Outputs, Callable[[], None]]:
    """Tuned outside, for tuning inside a capture breaks it."""
    run_poisoned(module, inputs, None)
    return capture(lambda: run_poisoned(module, inputs, None))


def _overwrite(inputs: Inputs, fresh: Inputs) -> None:
    """Other values in the same tensors, where a graph reads them."""
    inputs.q_B1HD.copy_(fresh.q_B1HD)
    for (pool, indices, _, _), (fresh_pool, fresh_indices, _, _) in zip(inputs.pools, fresh.pools, strict=True):
        pool.copy_(fresh_pool)
        indices.copy_(fresh_indices)


def _result(
    name: str, config: str, problem: str | None, out_error: float | None = None, lse_error: float | None = None
) -> CaseResult:
    return CaseResult(
        name=name, config=config, passed=problem is None, out_error=out_error, lse_error=lse_error, problem=problem
    )


def _config_words(config: Any) -> str:
    tiles = ", ".join(f"{name}={value}" for name, value in config.kwargs.items())
    return f"{tiles}, num_warps={config.num_warps}, num_stages={config.num_stages}"


def _one_line(error: BaseException) -> str:
    last_frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in last_frame)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}{where}"


def as_text(verdict: Verdict) -> str:
    """The verdict for people: failures in full, then one line."""
    lines = []
    for result in verdict.results:
        if not result.passed:
            lines.append(f"WRONG  {result.name} [{result.config}]: {result.problem}")
    where = f"{verdict.path} on {verdict.device}, seed {verdict.seed}"
    if verdict.problem is not None:
        return "\n".join([*lines, f"{verdict.file}: WRONG, nothing could be checked ({where}): {verdict.problem}"])
    n_passed = sum(result.passed for result in verdict.results)
    out_errors = [result.out_error for result in verdict.results if result.out_error is not None]
    lse_errors = [result.lse_error for result in verdict.results if result.lse_error is not None]
    worst = f"largest error: out {max(out_errors):.1e}, lse {max(lse_errors):.1e}" if out_errors and lse_errors else ""
    lines.append(
        f"{verdict.file}: {'right' if verdict.passed else 'WRONG'}, "
        f"{n_passed} of {len(verdict.results)} cases ({where}) {worst}".rstrip()
    )
    return "\n".join(lines)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernel.check", description="Is a kernel file right?")
    parser.add_argument("file", nargs="?", type=Path, default=SHIPPED, help="kernel file; the shipped one by default")
    parser.add_argument("--json", action="store_true", help="the whole verdict as one JSON object")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--interpret", action="store_true", help="on a CPU: run the Triton kernels, interpreted")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="so many cases of random shape as well")
    parser.add_argument("--seed", type=int, help="inputs of an earlier run again; fresh ones by default")
    arguments = parser.parse_args(argv)
    if arguments.interpret and arguments.device == "cuda":
        parser.error("--interpret runs on a CPU: leave --device out, or say cpu")
    if not arguments.file.is_file():
        parser.error(f"no such file: {arguments.file}")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code: 0 right, 1 wrong, 2 wrong use or no torch."""
    arguments = _arguments(argv)
    if arguments.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # triton reads it when a kernel is defined
    try:
        import torch
    except ImportError:
        print("torch is not installed in this Python: pip install torch", file=sys.stderr)
        return 2

    on_cuda = arguments.device == "cuda" or (
        arguments.device == "auto" and not arguments.interpret and torch.cuda.is_available()
    )
    verdict = check_file(
        arguments.file,
        device="cuda" if on_cuda else "cpu",
        interpreted=arguments.interpret,
        seed=secrets.randbits(31) if arguments.seed is None else arguments.seed,
        n_random=max(0, arguments.random),
    )
    print(json.dumps(asdict(verdict)) if arguments.json else as_text(verdict))
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
