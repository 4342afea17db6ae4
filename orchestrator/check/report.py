"""Verdict and sweep → columns for a person and JSON for a machine. Pure: prints nothing, judges nothing.

A table for a person is of one architecture; its title has the limits and the units, so that its columns fit 80.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.check.gpus import limits_of
from orchestrator.check.sweep import SweepRow, swept_values, variant_name
from orchestrator.verdicts import (
    CompiledKernel,
    ConfigReport,
    Constant,
    KernelConfig,
    Limiter,
    PipelinedBuffer,
    Verdict,
    arch_name,
)

Cell = str | int | float | None

_LIMITERS: dict[Limiter, str] = {"registers": "regs", "shared memory": "shared", "warps": "warps", "blocks": "blocks"}
"""As short as a column of 80 needs them."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Columns and rows of plain values; None where nothing is known.

    Attributes:
        right: names of the columns of numbers.
    """

    title: str
    columns: list[str]
    rows: list[list[Cell]]
    right: frozenset[str] = field(default_factory=frozenset)


# ---- for a person


def verdict_sheets(verdict: Verdict) -> tuple[Sheet, ...]:
    """For each architecture whether the configs fit, then what their code is like; the baseline's first, to compare."""
    base = verdict.baseline_configs if verdict.variant != "baseline" else ()
    named = [(_label("baseline", report, verdict.n_baseline_configs), report) for report in base]
    named += [(_label(verdict.variant, report, verdict.n_configs), report) for report in verdict.configs]
    sheets = []
    for arch in verdict.archs:
        here = [(label, report) for label, report in named if report.arch == arch]
        if here:
            sheets += [_fit_sheet(arch, here), _code_sheet(arch, here)]
    return tuple(sheets)


def _label(name: str, report: ConfigReport, n_configs: int | None) -> str:
    """``V2`` when it has one config, else ``V2 0``."""
    return name if n_configs == 1 else f"{name} {report.index}"


def _fit_sheet(arch: int, named: Sequence[tuple[str, ConfigReport]]) -> Sheet:
    columns = ["config", "knobs", "shared", "blocks", "warps/SM", "limited by"]
    rows: list[list[Cell]] = [
        [
            label,
            _short_words(report.config),
            _kib(report.compiled.shared_bytes),
            report.occupancy.blocks_per_sm if report.occupancy else None,
            report.occupancy.warps_per_sm if report.occupancy else None,
            _limited_by(report),
        ]
        for label, report in named
    ]
    return Sheet(_fit_title(arch), columns, rows, frozenset(columns[2:5]))


def _fit_title(arch: int) -> str:
    limits = limits_of(arch)
    if limits is None:
        return f"{arch_name(arch)}: shared KiB a block; its limits are not known here"
    allowed = f"shared KiB a block ({_kib(limits.shared_limit_bytes)} allowed)"
    return f"{arch_name(arch)}: {allowed}, blocks and warps an SM ({limits.warps_per_sm} warps)"


def _limited_by(report: ConfigReport) -> str | None:
    if report.compiled.error is not None:
        return "does not compile"
    if report.occupancy is None:
        return None
    return ", ".join(_LIMITERS[name] for name in report.occupancy.limiters) if report.can_launch else "does not fit"


def _code_sheet(arch: int, named: Sequence[tuple[str, ConfigReport]]) -> Sheet:
    columns = ["config", "regs", "spill", "stack", "load buffers", "tensor cores", "took"]
    rows: list[list[Cell]] = [
        [
            label,
            report.compiled.n_registers,
            report.compiled.spill_bytes,
            report.compiled.stack_bytes,
            _tiles(report.compiled),
            _tensor_cores(report.compiled),
            None if report.compiled.compile_s is None else f"{report.compiled.compile_s:.1f}",
        ]
        for label, report in named
    ]
    return Sheet(
        f"{arch_name(arch)}: registers, spilled and stack bytes a thread; seconds to compile",
        columns,
        rows,
        frozenset((*columns[1:4], columns[6])),
    )


def sweep_sheets(rows: Sequence[SweepRow], swept: Mapping[str, Sequence[Constant]]) -> tuple[Sheet, ...]:
    """The grid as one table for each architecture: a row a point, a column a knob that is swept.

    Args:
        rows: as ``sweep.mark`` gives them. swept: as ``sweep.parse_sweep`` gives it.
    """
    archs = dict.fromkeys(row.report.arch for row in rows)
    return tuple(_sweep_sheet(arch, [row for row in rows if row.report.arch == arch], swept) for arch in archs)


def _sweep_sheet(arch: int, rows: Sequence[SweepRow], swept: Mapping[str, Sequence[Constant]]) -> Sheet:
    """Blocks an SM are left out (warps an SM tell them), and spills where no point has any: the columns are many."""
    has_spills = any(row.report.compiled.spill_bytes for row in rows)
    measured = ["shared KiB", "regs", *(["spill B"] if has_spills else []), "warps/SM", "buffers"]
    numbers = ["#", *(name.removeprefix("num_") for name in swept), *measured]
    cells: list[list[Cell]] = []
    for row in rows:
        compiled, occupancy = row.report.compiled, row.report.occupancy
        spills = [compiled.spill_bytes] if has_spills else []
        warps = None if occupancy is None else occupancy.warps_per_sm
        values = swept_values(row.report.config, swept).values()
        code = [compiled.n_registers, *spills, warps, compiled.n_kv_buffers]
        cells.append([row.number, *values, _kib(compiled.shared_bytes), *code, row.words])
    n_new = sum(row.mark == "new" for row in rows)
    limits = limits_of(arch)
    allowed = "" if limits is None else f"; {_kib(limits.shared_limit_bytes)} KiB of shared memory allowed a block"
    points = "point" if len(rows) == 1 else "points"
    title = f"{arch_name(arch)}: {n_new} of {len(rows)} {points} new{allowed}"
    return Sheet(title, [*numbers, "verdict"], cells, frozenset(numbers))


def _short_words(config: KernelConfig) -> str:
    """``BLOCK_T=16 warps=4 stages=2``: narrower than ``KernelConfig.words``."""
    return config.words.replace("num_", "")


def _kib(number_bytes: int | None) -> str | None:
    return None if number_bytes is None else f"{number_bytes / 1024:.2f}"


def _tiles(compiled: CompiledKernel) -> str | None:
    """``1× 16×512 fp8e4nv``: how many tiles are in flight, and how large one is."""
    if compiled.error is not None:
        return None
    largest = max(compiled.buffers, key=lambda buffer: buffer.size_bytes, default=None)
    if largest is None:
        return "none"
    return f"{largest.n_buffers}× {'×'.join(map(str, largest.shape))} {largest.dtype}"


def _tensor_cores(compiled: CompiledKernel) -> str | None:
    """Each instruction once, with its shapes: ``wgmma.mma_async m64n32k16 bf16, m64n64k16 bf16``."""
    if compiled.error is not None:
        return None
    shapes: dict[str, list[str]] = {}
    for kind in compiled.tensor_cores:
        instruction, _, shape = kind.partition(" ")
        shapes.setdefault(instruction, []).append(shape)
    return ", ".join(f"{instruction} {', '.join(found)}" for instruction, found in shapes.items()) or "none"


# ---- for a machine


def document(verdict: Verdict) -> dict[str, Any]:
    """The JSON of a verdict; keys are stable, null is "not known", sizes are in bytes."""
    return {
        "target": verdict.target,
        "variant": verdict.variant,
        "digest": verdict.digest,
        "base_digest": verdict.base_digest,
        "kernel": verdict.kernel,
        "status": verdict.status,
        "source": verdict.source,
        "archs": [arch_name(arch) for arch in verdict.archs],
        "triton_version": verdict.triton_version,
        "host_triton_version": verdict.host_triton_version,
        "n_configs": verdict.n_configs,
        "n_baseline_configs": verdict.n_baseline_configs,
        "configs": [config_document(report) for report in verdict.configs],
        "baseline_configs": [config_document(report) for report in verdict.baseline_configs],
        "sentences": [
            {
                "kind": sentence.kind,
                "text": sentence.text,
                "is_fatal": sentence.is_fatal,
                "arch": None if sentence.arch is None else arch_name(sentence.arch),
            }
            for sentence in verdict.sentences
        ],
        "caveats": list(verdict.caveats),
        "checked_at": verdict.checked_at,
    }


def sweep_document(rows: Iterable[SweepRow], swept: Mapping[str, Sequence[Constant]]) -> dict[str, Any]:
    """The JSON of a sweep: what was swept, then each point with its verdict and everything known of its config."""
    return {
        "swept": {name: list(values) for name, values in swept.items()},
        "points": [
            {
                "number": row.number,
                "verdict": row.mark,
                "same_as": row.same_as,
                "variant_name": variant_name(row.report.config, swept),
                **config_document(row.report),
            }
            for row in rows
        ],
    }


def config_document(report: ConfigReport) -> dict[str, Any]:
    """The JSON of one config on one architecture."""
    compiled, config, occupancy = report.compiled, report.config, report.occupancy
    limits = limits_of(report.arch)
    return {
        "index": report.index,
        "arch": arch_name(report.arch),
        "constants": dict(config.constants),
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "num_ctas": config.num_ctas,
        "maxnreg": config.maxnreg,
        "error": compiled.error,
        "error_kind": compiled.error_kind,
        "can_launch": report.can_launch,
        "why_not": None if occupancy is None else occupancy.why_not,
        "n_warps": compiled.n_warps,
        "shared_bytes": compiled.shared_bytes,
        "shared_limit_bytes": None if limits is None else limits.shared_limit_bytes,
        "n_registers": compiled.n_registers,
        "spill_bytes": compiled.spill_bytes,
        "stack_bytes": compiled.stack_bytes,
        "blocks_per_sm": None if occupancy is None else occupancy.blocks_per_sm,
        "warps_per_sm": None if occupancy is None else occupancy.warps_per_sm,
        "max_warps_per_sm": None if limits is None else limits.warps_per_sm,
        "limiters": None if occupancy is None else list(occupancy.limiters),
        **_code_document(compiled),
    }


def _code_document(compiled: CompiledKernel) -> dict[str, Any]:
    is_compiled = compiled.error is None
    return {
        "tensor_cores": list(compiled.tensor_cores) if is_compiled else None,
        "has_loop": compiled.has_loop,
        "has_dot_in_loop": compiled.has_dot_in_loop,
        "n_kv_buffers": compiled.n_kv_buffers,
        "buffers": _buffer_documents(compiled.buffers) if is_compiled else None,
        "stages_buffers": {str(n): _buffer_documents(kept) for n, kept in sorted(compiled.stages_buffers.items())},
        "binary_digest": compiled.binary_digest,
        "triton_version": compiled.triton_version,
        "compile_s": compiled.compile_s,
        "is_cached": compiled.is_cached,
    }


def _buffer_documents(buffers: Iterable[PipelinedBuffer]) -> list[dict[str, Any]]:
    return [
        {
            "shape": list(buffer.shape),
            "dtype": buffer.dtype,
            "n_buffers": buffer.n_buffers,
            "size_bytes": buffer.size_bytes,
        }
        for buffer in buffers
    ]
