"""How many blocks of a compiled kernel a multiprocessor (SM) holds, and whether one fits at all. Pure arithmetic.

Source: the rules of NVIDIA's ``cuda_occupancy.h`` (CUDA 13.0): registers rounded up for each warp and laid out in
sub-partitions, shared memory with the reserved part rounded up for each block. Own code.
"""

from __future__ import annotations

from fractions import Fraction

from orchestrator.check.gpus import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    REGISTERS_GRANULARITY,
    SUBPARTITIONS,
    WARP_THREADS,
    Limits,
)
from orchestrator.verdicts import CompiledKernel, Limiter, Occupancy


def occupancy(compiled: CompiledKernel, limits: Limits) -> Occupancy | None:
    """How many blocks an SM holds, by the resources that the binary takes.

    The tensor memory of sm_100 is not known here: such a kernel may fit fewer blocks than this says. With num_ctas
    above 1 each block of the cluster counts for itself, and that a cluster must fit into one GPC is left aside.

    Returns:
        None when it did not compile, or when registers or shared memory are not known and what is known fits.
    """
    if compiled.error is not None:
        return None
    n_warps = _n_warps(compiled)
    fitting: dict[Limiter, Fraction | None] = {
        "registers": _by_registers(compiled.n_registers, n_warps, limits),
        "shared memory": _by_shared_memory(compiled.shared_bytes, limits),
        "warps": _by_warps(n_warps, limits),
        "blocks": Fraction(limits.blocks_per_sm),
    }
    known = {limiter: fits for limiter, fits in fitting.items() if fits is not None}
    n_blocks = int(min(known.values()))
    if n_blocks > 0 and len(known) < len(fitting):
        return None
    limiters = sorted((limiter for limiter in known if int(known[limiter]) == n_blocks), key=lambda name: known[name])
    return Occupancy(
        can_launch=n_blocks > 0,
        why_not=None if n_blocks > 0 else _why_not(limiters[0], compiled, limits),
        shared_limit_bytes=limits.shared_limit_bytes,
        blocks_per_sm=n_blocks,
        warps_per_sm=n_blocks * n_warps,
        max_warps_per_sm=limits.warps_per_sm,
        limiters=tuple(limiters),
    )


def _n_warps(compiled: CompiledKernel) -> int:
    """Warps of a block: more than the config says where Triton specialises warps."""
    return compiled.n_warps or compiled.job.config.num_warps


# ---- how many blocks each resource allows; the whole part counts, the rest tells which is tighter


def _by_registers(n_registers: int | None, n_warps: int, limits: Limits) -> Fraction | None:
    """An SM's sub-partitions each hold a whole number of warps; a block may spread over all of them."""
    if n_registers is None:
        return None
    if n_registers > MAX_REGISTERS_PER_THREAD:
        return Fraction(0)
    registers_per_warp = _rounded_up(max(n_registers, 1) * WARP_THREADS, REGISTERS_GRANULARITY)
    warps_that_fit = limits.registers_per_sm // SUBPARTITIONS // registers_per_warp * SUBPARTITIONS
    return Fraction(warps_that_fit, n_warps)


def _by_shared_memory(shared_bytes: int | None, limits: Limits) -> Fraction | None:
    if shared_bytes is None:
        return None
    if shared_bytes > limits.shared_limit_bytes:
        return Fraction(0)
    taken_bytes = _rounded_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_granularity_bytes)
    no_limit = Fraction(limits.blocks_per_sm + 1)
    return Fraction(limits.shared_per_sm_bytes, taken_bytes) if taken_bytes else no_limit


def _by_warps(n_warps: int, limits: Limits) -> Fraction:
    is_too_large = n_warps * WARP_THREADS > MAX_THREADS_PER_BLOCK
    return Fraction(0) if is_too_large else Fraction(limits.warps_per_sm, n_warps)


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _why_not(limiter: Limiter, compiled: CompiledKernel, limits: Limits) -> str:
    n_threads = _n_warps(compiled) * WARP_THREADS
    if limiter == "shared memory":
        needed, allowed = f"{compiled.shared_bytes:,} B of shared memory", f"{limits.shared_limit_bytes:,} B"
    elif limiter == "registers":
        needed = f"{compiled.n_registers} registers for each of {n_threads:,} threads"
        allowed = f"{limits.registers_per_sm:,} registers"
    else:
        needed, allowed = f"{n_threads:,} threads", f"{MAX_THREADS_PER_BLOCK:,}"
    return f"a block needs {needed} and is allowed {allowed}"
