"""Reports of configs as a kernel of the seed's shape gives them, made without a compiler."""

from __future__ import annotations

from typing import Any

from orchestrator.check.gpus import limits_of
from orchestrator.check.occupancy import occupancy
from orchestrator.verdicts import (
    CompiledKernel,
    CompileJob,
    ConfigReport,
    KernelConfig,
    KernelSource,
    PipelinedBuffer,
)

SOURCE = KernelSource("source", "_decode_kernel", "", "sha256:0")
STEP_BYTES = 10_432
STAGES_TO_TILES = {1: 0, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 3, 8: 3}


def buffers(n_stages: int, block_t: int = 16) -> tuple[PipelinedBuffer, ...]:
    """What the pipeliner keeps for a gather behind an index load: 3 and 4 alike, 5 the first with two."""
    n_tiles = STAGES_TO_TILES[n_stages]
    if n_tiles == 0:
        return ()
    index = PipelinedBuffer((block_t,), "i32", 2 if n_stages == 2 else 3 * n_tiles, 4 * block_t)
    return index, PipelinedBuffer((block_t, 512), "fp8e4nv", n_tiles, 512 * block_t)


def seed_config(n_stages: int, n_warps: int = 4, block_t: int = 16) -> KernelConfig:
    """A config with one meta-parameter."""
    return KernelConfig(constants={"BLOCK_T": block_t}, num_warps=n_warps, num_stages=n_stages)


def report(index: int, config: KernelConfig, arch: int = 120, **facts: Any) -> ConfigReport:
    """A config's report with the occupancy that follows from its facts.

    Args:
        index: in its list.
        config: what it was compiled with.
        arch: what it was compiled for.
        facts: of the compiled kernel.
    """
    job = CompileJob(SOURCE, config, arch, also_stages=tuple(range(config.num_stages + 1, 9)))
    compiled = CompiledKernel(job, "3.9.0", **facts)
    limits = limits_of(arch)
    return ConfigReport(index, compiled, None if limits is None else occupancy(compiled, limits))


def seed_report(
    index: int, n_stages: int, n_warps: int = 4, block_t: int = 16, *, arch: int = 120, code: str = "", **facts: Any
) -> ConfigReport:
    """A report of the seed's kernel. Its binary depends on the tiles in flight, the knobs and ``code``."""
    kept = buffers(n_stages, block_t)
    further = {stages: buffers(stages, block_t) for stages in range(n_stages + 1, 9)}
    more = [stages for stages in further if further[stages][1].n_buffers > STAGES_TO_TILES[n_stages]]
    looked_at = {stages: kept for stages, kept in further.items() if not more or stages <= more[0]}
    tiles = STAGES_TO_TILES[n_stages]
    default: dict[str, Any] = {
        "shared_bytes": 51_136 * block_t // 16 + STEP_BYTES * tiles + 64 * (n_stages > 2),
        "n_registers": 242 if n_warps == 4 else 255,
        "stack_bytes": 0,
        "spill_bytes": 0,
        "tensor_cores": ("mma.sync m16n8k16 bf16",),
        "has_loop": True,
        "has_dot_in_loop": True,
        "buffers": kept,
        "stages_buffers": looked_at,
        "binary_digest": f"sha256:{code}{arch}-{block_t}-{n_warps}-{tiles}-{n_stages > 2}",
        "compile_s": 1.62,
    }
    if facts.get("error"):
        default = {"error_kind": "compile"}
    return report(index, seed_config(n_stages, n_warps, block_t), arch, **(default | facts))
