"""Occupancy: blocks an SM by NVIDIA's rules, with the numbers calculated by hand beside each case."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.check.gpus import arch_of_compute_capability, limits_of
from orchestrator.check.occupancy import occupancy
from orchestrator.verdicts import CompiledKernel, CompileJob, KernelConfig, KernelSource, Occupancy

SOURCE = KernelSource("source", "k", "", "sha256:0")


def compiled(arch: int, n_warps: int, **facts: Any) -> CompiledKernel:
    """A kernel with these facts and no others."""
    return CompiledKernel(CompileJob(SOURCE, KernelConfig(num_warps=n_warps), arch), "3.9.0", **facts)


def on_sm(arch: int, n_warps: int, n_registers: int | None, shared_bytes: int | None) -> Occupancy | None:
    """Its occupancy on one architecture."""
    limits = limits_of(arch)
    assert limits is not None
    return occupancy(compiled(arch, n_warps, n_registers=n_registers, shared_bytes=shared_bytes), limits)


CASES = {
    # 255 × 32 = 8,160 → 8,192 a warp; 16,384 a sub-partition: 2 warps each, 8 an SM; 2 blocks of 4, and shared
    # memory: 102,400 / (55,424 + 1,024) = 1.8
    "shared memory is tighter": (120, 4, 255, 55_424, 1, 4, ("shared memory",)),
    # 102,400 / (49,152 + 1,024) = 2.04; registers 8 / 4 = 2.0: a tie, the tighter one first
    "a tie": (120, 4, 255, 49_152, 2, 8, ("registers", "shared memory")),
    "240 registers let 8 warps in, by fours": (120, 4, 240, 10_000, 2, 8, ("registers",)),
    "and by eights": (120, 8, 240, 10_000, 1, 8, ("registers",)),
    # 128 × 32 = 4,096: 4 warps a sub-partition, 16 an SM
    "a small block": (90, 4, 128, 16_384, 4, 16, ("registers",)),
    # 96 × 32 = 3,072: 5 whole warps a sub-partition, 20 an SM, though 65,536 / 3,072 = 21.3 would be 3 blocks
    "whole warps in each sub-partition": (90, 7, 96, 0, 2, 14, ("registers",)),
    # 102,400 / (51,200 + 1,024) = 1.96
    "what is reserved counts": (120, 4, 64, 51_200, 1, 4, ("shared memory",)),
    "warps": (89, 8, 32, 0, 6, 48, ("warps",)),
    "blocks": (120, 1, 32, 0, 24, 24, ("blocks",)),
    "blocks and warps": (90, 2, 24, 0, 32, 64, ("warps", "blocks")),
    "16 blocks on 8.6": (86, 1, 32, 0, 16, 16, ("blocks",)),
    # nothing reserved on 7.5, portions of 256 B: 65,536 / 21,760 = 3.01
    "7.5": (75, 4, 64, 21_505, 3, 12, ("shared memory",)),
    "the limit itself fits": (120, 4, 64, 101_376, 1, 4, ("shared memory",)),
    "16 warps of 128 registers": (80, 16, 128, 0, 1, 16, ("registers",)),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_per_sm(name: str) -> None:
    """Blocks, warps and what limits them, as calculated by hand."""
    arch, n_warps, n_registers, shared_bytes, blocks, warps, limiters = CASES[name]
    found = on_sm(arch, n_warps, n_registers, shared_bytes)
    assert found is not None
    assert (found.blocks_per_sm, found.warps_per_sm, found.limiters) == (blocks, warps, limiters)
    assert found.can_launch
    assert found.why_not is None


REFUSED = {
    "shared memory": (
        (120, 4, 128, 104_704),
        "a block needs 104,704 B of shared memory and is allowed 101,376 B",
    ),
    "one byte too much": ((120, 4, 128, 101_377), "a block needs 101,377 B of shared memory and is allowed 101,376 B"),
    # 136 × 32 = 4,352: 3 warps a sub-partition, 12 an SM
    "registers": (
        (90, 16, 136, 0),
        "a block needs 136 registers for each of 512 threads and is allowed 65,536 registers",
    ),
    "threads": ((90, 64, 16, 0), "a block needs 2,048 threads and is allowed 1,024"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_says_why(name: str) -> None:
    """A block that does not fit has no occupancy, and the reason has both numbers."""
    arguments, why_not = REFUSED[name]
    found = on_sm(*arguments)
    assert found is not None
    assert (found.can_launch, found.blocks_per_sm, found.warps_per_sm) == (False, 0, 0)
    assert found.why_not == why_not


def test_unknown_stays_unknown() -> None:
    """Without the registers nothing is said, unless what is known is too much already; a failed compile has nothing."""
    limits = limits_of(120)
    assert limits is not None
    assert on_sm(120, 4, None, 60_000) is None
    assert on_sm(120, 4, 128, None) is None
    too_much = on_sm(120, 4, None, 104_704)
    assert too_much is not None
    assert too_much.can_launch is False
    assert occupancy(compiled(120, 4, error="boom", error_kind="compile"), limits) is None


def test_architectures() -> None:
    """What is not in the table is None; the opt-in limit and the reserved part make up an SM from 8.0 on."""
    assert limits_of(99) is None
    assert [arch_of_compute_capability(text) for text in ("12.0", " 9.0\n", "10.3", "120", "sm_90", "")] == [
        120,
        90,
        103,
        None,
        None,
        None,
    ]
    for arch in (80, 86, 87, 89, 90, 100, 103, 110, 120, 121):
        limits = limits_of(arch)
        assert limits is not None
        assert limits.shared_limit_bytes + limits.reserved_shared_bytes == limits.shared_per_sm_bytes
