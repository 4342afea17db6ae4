"""Time of one call of the kernel on this GPU: ``python -m kernel.microbench [FILE …]``.

Times files with the entry point of ``sparse_mla_decode.py`` (the shipped one when none is named), and with ``--peers``
FlashMLA, SGLang's kernel for sm_120 and torch, in CUDA graphs as ``timing.py`` says, at every pair of ``--heads`` and
``--batch``. All of them get the same tensors, attention sink included, and each is compared with the float64 reference
at every shape before it is timed: what is wrong, missing or fails is shown with the reason. Touches nothing but this
process: it writes the plot, and a triton cache where TRITON_CACHE_DIR says.

Columns:
    µs         of one call: median of the graphs' medians, and its interval of at least 95 %; n graphs
    GB/s       gathered bytes (584 a token) ÷ µs
    floor      the largest known lower bound (``floors.py``): of memory, dequantisation or tensor cores
    share      floor ÷ µs

JSON (``--json``), one object: ``device`` (name, capability, n_multiprocessors, l2_bytes, clock_hz, peaks),
driver_version, cuda_version, torch_version, triton_version, seed, page_size, topks, n_graphs, n_replays, ``files``
(name, path, digest) and ``rows``; the keys of a row are those of ``Row``. Not measured or not known is null.

Exit codes: 0 every file was timed; 1 a file was not, or there is no NVIDIA GPU; 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel.check import SHIPPED
from kernel.floors import Floors, Peaks, floors_of, peaks_of

if TYPE_CHECKING:
    import torch

    from kernel.cases import Inputs
    from kernel.peers import Call, Implementation, Outputs
    from kernel.timing import Shape

FIRST_OF_TWO = 128
PAGE_SIZE = 64
OUT_TOLERANCE, LSE_TOLERANCE = 5e-3, 1e-4
"""Wider than in ``check.py``, whose business it is whether a file is right: here a wrong scale, a lost token or a sink
that is left out must not be timed, and a peer that rounds once more may be."""
PEERS = {"flashmla": "FlashMLA", "sglang": "SGLang Triton", "eager": "torch eager", "compile": "torch.compile"}
"""How they are called on the command line, and their names of ``peers.py``."""
DEFAULT_HEADS, DEFAULT_BATCHES, DEFAULT_TOPK = (16, 64), (1, 8, 32, 64, 96, 128), 512


@dataclass(frozen=True, kw_only=True)
class Row:
    """One implementation at one shape.

    Attributes:
        name, kind, version: what; kind is ``file`` or ``peer``.
        n_heads, batch, topks: the shape; one topk a pool.
        n_calls: calls of one graph.
        call_us, low_us, high_us, coverage, n: median over ``n`` graphs, and its interval, which holds the true median
            with probability ``coverage``.
        gathered_gb_per_s: gathered bytes ÷ call_us.
        floors_us: lower bound of each kind.
        floor, floor_us, floor_pct: the largest known bound, and its share of call_us.
        out_error, lse_error: largest relative errors against the reference; None where they are not finite.
        config: what the file's autotuner chose, in Triton's words; for the last pool where there are two.
        problem: why there is no time, or None.
        samples_us: µs of one call, by graph and replay.
    """

    name: str
    kind: str
    version: str | None
    n_heads: int
    batch: int
    topks: tuple[int, ...]
    n_calls: int
    floors_us: dict[str, float | None]
    floor: str | None
    floor_us: float | None
    call_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    coverage: float | None = None
    n: int | None = None
    gathered_gb_per_s: float | None = None
    floor_pct: float | None = None
    out_error: float | None = None
    lse_error: float | None = None
    config: str | None = None
    problem: str | None = None
    samples_us: list[list[float]] | None = None


def measure_shape(
    shape: Shape,
    implementations: Sequence[Implementation],
    *,
    peaks: Peaks,
    l2_bytes: int,
    seed: int,
    device: str = "cuda",
    **how: Any,
) -> list[Row]:
    """One row for each implementation, in their order. Never raises for what an implementation does.

    Args:
        how: passed on to ``time_calls``.
    """
    from kernel.timing import make_calls, n_calls_of, one_line, time_calls

    inputs = make_calls(shape, n_calls_of(shape, l2_bytes), seed, device)
    expected = _expected(inputs[0])
    floors = floors_of(peaks, n_rows=shape.n_rows, n_heads=shape.n_heads, n_tokens=shape.n_tokens)
    calls: dict[str, list[Call]] = {}
    found: dict[str, dict[str, Any]] = {}
    for implementation in implementations:
        facts = found[implementation.name] = _facts(implementation, shape, len(inputs), floors)
        try:
            prepared = implementation.prepare(inputs)
            sink = inputs[0].attention_sink_H if implementation.has_sink_in_lse else None
            facts |= judge(prepared[0](), expected, sink)
            facts["config"] = implementation.config()
            for call in prepared[1:]:  # a list aligned otherwise may be compiled for anew, which a capture forbids
                call()
        except Exception as error:  # whatever an implementation raises is the reason shown in its row
            facts["problem"] = one_line(error)
        if facts["problem"] is None:
            calls[implementation.name] = prepared
    samples, failed = time_calls(calls, **how)
    for name, reason in failed.items():
        found[name]["problem"] = reason
    for name, graphs in samples.items():
        found[name] |= _times(shape, graphs, found[name]["floor_us"])
    return [Row(**facts) for facts in found.values()]


def _expected(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's outputs; on the CPU, pools copied there once."""
    from kernel.reference import reference_decode

    pools = [(pool.cpu(), indices.cpu(), page_size, lengths) for pool, indices, page_size, lengths in inputs.pools]
    sink = None if inputs.attention_sink_H is None else inputs.attention_sink_H.cpu()
    return reference_decode(inputs.q_B1HD.cpu(), pools, attention_sink_H=sink)


def _facts(implementation: Implementation, shape: Shape, n_calls: int, floors: Floors) -> dict[str, Any]:
    """What is known of a row before anything runs."""
    floor, floor_us = floors.largest or (None, None)
    return {
        "name": implementation.name,
        "kind": implementation.kind,
        "version": implementation.version,
        "n_heads": shape.n_heads,
        "batch": shape.n_rows,
        "topks": shape.topks,
        "n_calls": n_calls,
        "floors_us": asdict(floors),
        "floor": floor,
        "floor_us": floor_us,
        "problem": None,
    }


def judge(
    outputs: Outputs, expected: tuple[torch.Tensor, torch.Tensor], sink_H: torch.Tensor | None = None
) -> dict[str, Any]:
    """``out_error``, ``lse_error`` and ``problem`` of a first call, by (row, head). NaN anywhere is a problem.

    Args:
        sink_H: natural-log units, where the call's lse has it in.
    """
    (out, lse), (expected_out, expected_lse) = outputs, expected
    if sink_H is not None:
        expected_lse = expected_lse.logaddexp(sink_H.cpu().double())
    out, lse = out.cpu().double(), lse.cpu().double()
    if out.shape != expected_out.shape or lse.shape != expected_lse.shape:
        return {"problem": f"wrong shapes: out {list(out.shape)}, lse {list(lse.shape)}"}
    out_error = float(((out - expected_out).norm(dim=3) / expected_out.norm(dim=3)).max())
    lse_error = float(((lse - expected_lse).abs() / expected_lse.abs().clamp_min(1.0)).max())
    problem = None
    if not (out_error < OUT_TOLERANCE and lse_error < LSE_TOLERANCE):
        problem = (
            f"wrong: relative error of out {out_error:.1e} (allowed {OUT_TOLERANCE:.0e}), "
            f"of lse {lse_error:.1e} (allowed {LSE_TOLERANCE:.0e})"
        )
    return {
        "out_error": out_error if math.isfinite(out_error) else None,
        "lse_error": lse_error if math.isfinite(lse_error) else None,
        "problem": problem,
    }


def _times(shape: Shape, graphs: list[list[float]], floor_us: float | None) -> dict[str, Any]:
    from kernel.timing import interval_of

    interval = interval_of(graphs)
    return {
        "call_us": interval.median,
        "low_us": interval.low,
        "high_us": interval.high,
        "coverage": interval.coverage,
        "n": interval.n,
        "gathered_gb_per_s": shape.gathered_bytes / interval.median / 1e3,
        "floor_pct": None if floor_us is None else 100 * floor_us / interval.median,
        "samples_us": graphs,
    }


def as_table(rows: Sequence[Row]) -> str:
    """For people; one block a shape."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [f"heads  batch  {'':{width}}  {'µs':>9}  {'[at least 95 %]':^21}   n    GB/s  {'floor µs':<22}   share"]
    for i, row in enumerate(rows):
        if i and (row.n_heads, row.batch) != (rows[i - 1].n_heads, rows[i - 1].batch):
            lines.append("")
        start = f"{row.n_heads:>5}  {row.batch:>5}  {row.name:<{width}}  "
        floor = "unknown" if row.floor_us is None else f"{row.floor_us:.2f} {row.floor}"
        if row.call_us is None:
            lines.append(f"{start}not timed: {row.problem}")
            continue
        share = "–" if row.floor_pct is None else f"{row.floor_pct:.1f} %"
        interval = f"[{row.low_us:.2f}, {row.high_us:.2f}]"
        lines.append(
            f"{start}{row.call_us:>9.2f}  {interval:^21}  {row.n:>2}  {row.gathered_gb_per_s:>6.0f}  {floor:<22}  "
            f"{share:>6}".rstrip()
        )
    return "\n".join(lines)


def driver_version() -> str | None:
    """As nvidia-smi tells it; None without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.partition("\n")[0].strip() or None


def describe(properties: Any, peaks: Peaks) -> dict[str, Any]:
    """The device of the document."""
    clock_khz = getattr(properties, "clock_rate", None)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "n_multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "clock_hz": clock_khz * 1000 if clock_khz else None,
        "peaks": asdict(peaks),
    }


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def _counts(words: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in words.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"{words!r} is not a list of different numbers from 1 up, such as 1,8,64")
    return counts


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 1 up")
    return int(word)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    def words(counts: tuple[int, ...]) -> str:
        return ",".join(map(str, counts))

    parser = argparse.ArgumentParser(
        prog="python -m kernel.microbench", description="Time of one call of a kernel file on this GPU."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernel files; the shipped one by default")
    parser.add_argument("--peers", action="store_true", help="FlashMLA, SGLang, torch and torch.compile beside them")
    skip = "without this peer: one that takes long, such as torch.compile or SGLang at a large batch; repeatable"
    parser.add_argument("--skip", action="append", default=[], choices=PEERS, help=skip)
    each = "every config of a file's list by itself too, also those that its autotuner would not choose"
    parser.add_argument("--each-config", action="store_true", help=each)
    parser.add_argument("--json", action="store_true", help="one JSON object, with every sample")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="µs against batch, one panel a number of heads")
    parser.add_argument("--heads", type=_counts, default=DEFAULT_HEADS, help=f"default {words(DEFAULT_HEADS)}")
    parser.add_argument("--batch", type=_counts, default=DEFAULT_BATCHES, help=f"default {words(DEFAULT_BATCHES)}")
    parser.add_argument("--topk", type=_count, default=DEFAULT_TOPK, help=f"tokens a row; default {DEFAULT_TOPK}")
    second = f"two pools: {FIRST_OF_TWO} tokens in the first, TOPK in the second"
    parser.add_argument("--second", action="store_true", help=second)
    parser.add_argument("--seed", type=int, help="inputs of an earlier run again; fresh ones by default")
    arguments = parser.parse_args(argv)
    arguments.files = arguments.files or [SHIPPED]
    for file in arguments.files:
        if not file.is_file():
            parser.error(f"no such file: {file}")
    plot = arguments.plot
    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        parser.error(f"--plot writes an .svg file in a folder that exists, not {plot}")
    return arguments


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one document; ``rows`` still as ``Row``. Says on stderr how far it is."""
    import torch

    from kernel import timing
    from kernel.peers import file_implementations, peers

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    peaks = peaks_of(properties)
    seed = secrets.randbits(31) if arguments.seed is None else arguments.seed
    topks = (FIRST_OF_TWO, arguments.topk) if arguments.second else (arguments.topk,)
    implementations, files = file_implementations(arguments.files, each_config=arguments.each_config)
    if arguments.peers:
        skipped = {PEERS[word] for word in arguments.skip}
        implementations += [one for one in peers() if one.name not in skipped]
    shapes = [
        timing.Shape(n_heads=n_heads, n_rows=batch, topks=topks, page_size=PAGE_SIZE)
        for n_heads in arguments.heads
        for batch in arguments.batch
    ]
    rows = []
    for number, shape in enumerate(shapes, 1):
        print(f"{shape.n_heads} heads, batch {shape.n_rows} ({number} of {len(shapes)})", file=sys.stderr, flush=True)
        rows += measure_shape(shape, implementations, peaks=peaks, l2_bytes=properties.L2_cache_size, seed=seed)
    return {
        "device": describe(properties, peaks),
        "driver_version": driver_version(),
        "cuda_version": torch.version.cuda,
        "torch_version": torch.__version__,
        "triton_version": _triton_version(),
        "seed": seed,
        "page_size": PAGE_SIZE,
        "topks": topks,
        "n_graphs": timing.N_GRAPHS,
        "n_replays": timing.N_REPLAYS,
        "files": files,
        "rows": rows,
    }


def as_text(document: dict[str, Any]) -> str:
    """The document for people."""
    device = document["device"]
    lines = [
        f"{device['name']}, driver {document['driver_version'] or 'unknown'}, torch {document['torch_version']}, "
        f"Triton {document['triton_version'] or 'not installed'}, seed {document['seed']}",
        f"topk {' + '.join(map(str, document['topks']))}, page size {document['page_size']}, "
        f"{document['n_graphs']} graphs × {document['n_replays']} replays",
        *(f"{file['name']}: {file['path']} ({file['digest'][:19]})" for file in document["files"]),
        "",
        as_table(document["rows"]),
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    arguments = _arguments(argv)
    try:
        import torch
    except ImportError:
        print("torch is not installed in this Python: pip install torch", file=sys.stderr)
        return 1
    if torch.version.cuda is None or not torch.cuda.is_available():
        print("no NVIDIA GPU that torch can use here: run this on a machine with one", file=sys.stderr)
        return 1
    document = measure(arguments)
    rows: list[Row] = document["rows"]
    print(json.dumps(document | {"rows": [asdict(row) for row in rows]}) if arguments.json else as_text(document))
    if arguments.plot is not None:
        from kernel.microbench_plot import draw

        try:
            draw(rows, arguments.plot)
        except OSError as error:
            print(f"{arguments.plot} could not be written: {error}", file=sys.stderr)
            return 1
    wanted = {file["name"] for file in document["files"]}  # a forced config that does not fit is no failure
    return 1 if any(row.problem is not None for row in rows if row.name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
