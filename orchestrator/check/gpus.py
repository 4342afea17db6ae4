"""What each architecture allows a block and a multiprocessor (SM). A table; knows no GPU by its name.

Source: "Technical Specifications per Compute Capability" in the CUDA C++ Programming Guide 13; granularities, the
sub-partitions of an SM and the reserved shared memory from NVIDIA's ``cuda_occupancy.h`` of CUDA 13.0 (constants);
11.0 also from ``arch_traits.h`` in NVIDIA/cccl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WARP_THREADS = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTERS_GRANULARITY = 256
"""Registers are given out to a warp in portions of so many."""

SUBPARTITIONS = 4
"""An SM's warps and registers lie in so many parts of equal size; a warp's registers all lie in one of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one architecture allows.

    Attributes:
        shared_limit_bytes: a block may opt in to so much shared memory.
        reserved_shared_bytes: taken by the system from each block's share of the SM, on top of what the block asks for.
        shared_granularity_bytes: shared memory is given out in portions of so many bytes.
    """

    arch: int
    shared_limit_bytes: int
    shared_per_sm_bytes: int
    warps_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int = 65_536
    reserved_shared_bytes: int = 1_024
    shared_granularity_bytes: int = 128


_TURING = Limits(75, 65_536, 65_536, 32, 16, reserved_shared_bytes=0, shared_granularity_bytes=256)
_LIMITS = {
    limits.arch: limits
    for limits in (
        _TURING,
        Limits(80, 166_912, 167_936, 64, 32),
        Limits(86, 101_376, 102_400, 48, 16),
        Limits(87, 166_912, 167_936, 48, 16),
        Limits(89, 101_376, 102_400, 48, 24),
        Limits(90, 232_448, 233_472, 64, 32),
        Limits(100, 232_448, 233_472, 64, 32),
        Limits(103, 232_448, 233_472, 64, 32),
        Limits(110, 232_448, 233_472, 48, 24),
        Limits(120, 101_376, 102_400, 48, 24),
        Limits(121, 101_376, 102_400, 48, 24),
    )
}


def limits_of(arch: int) -> Limits | None:
    """The limits of an architecture (120 for ``sm_120``); None when they are not known here."""
    return _LIMITS.get(arch)


def arch_of_compute_capability(text: str) -> int | None:
    """The architecture that ``nvidia-smi --query-gpu=compute_cap`` means by ``12.0``: 120; None for another text."""
    found = re.fullmatch(r"([1-9][0-9]?)\.([0-9])", text.strip())
    return int(found[1] + found[2]) if found else None
