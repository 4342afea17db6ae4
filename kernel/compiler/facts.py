"""What a compiled kernel's texts and its cubin say. Compiles nothing."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# ---- loops, from Triton IR

_LOOP_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # texts may hold braces
    r"|(?P<loop>\bscf\.(?:for|while)\b|\bdo\s*(?=\{))"
    r"|(?P<dot>\btt\.dot(?:_scaled)?\b|\.warp_group_dot\b|\.tc_gen5_mma(?:_scaled)?\b)"
    r"|(?P<open>\{)|(?P<close>\})"
)


def loop_facts(ttir: str) -> tuple[bool, bool]:
    """Whether there is a loop, and whether a dot stands inside one, however deep."""
    has_loop = has_dot_in_loop = is_loop_next = False
    regions: list[bool] = []
    for token in _LOOP_TOKEN.finditer(ttir):
        if token["loop"]:
            has_loop = is_loop_next = True
        elif token["open"]:
            regions.append(is_loop_next)
            is_loop_next = False
        elif token["close"] and regions:
            regions.pop()
        elif token["dot"] and any(regions):
            has_dot_in_loop = True
    return has_loop, has_dot_in_loop


# ---- buffers, from Triton's GPU IR

_ALLOC = re.compile(
    r"(?P<name>%[\w.$-]+) = \w+\.local_alloc\s*(?:\{[^}]*\})?\s*:\s*\(\) -> "
    r"!\w+\.memdesc<(?P<shape>(?:\d+x)+)(?P<dtype>\w+), [^>]*\bmutable\b"
)
_INDEXED = re.compile(r"\.(?:memdesc_index|memdesc_subview)\s+(%[\w.$-]+)")
_CAPTURED = re.compile(r"\.warp_specialize\(([^)]*)\)")
_DTYPES = {
    "f8E4M3FN": ("fp8e4nv", 8),
    "f8E4M3FNUZ": ("fp8e4b8", 8),
    "f8E5M2": ("fp8e5", 8),
    "f8E5M2FNUZ": ("fp8e5b16", 8),
    "bf16": ("bf16", 16),
    "f16": ("fp16", 16),
    "f32": ("fp32", 32),
    "f64": ("fp64", 64),
}


def buffers(ttgir: str) -> list[dict[str, Any]]:
    """Shared memory that the pipeliner keeps for loads, in the order written.

    The first dimension of such an allocation counts the buffers, and the code picks one of them by its index; under
    warp specialisation another partition may do that. Barriers look the same, but hold one i64 each.
    """
    picked = set(_INDEXED.findall(ttgir))
    for names in _CAPTURED.findall(ttgir):
        picked.update(re.findall(r"%[\w.$-]+", names))
    return [
        _buffer(alloc)
        for alloc in _ALLOC.finditer(ttgir)
        if alloc["name"] in picked and alloc["shape"].count("x") > 1 and not _is_barrier(alloc)
    ]


def _is_barrier(alloc: re.Match[str]) -> bool:
    return alloc["dtype"] == "i64" and alloc["shape"].endswith("x1x")


def _buffer(alloc: re.Match[str]) -> dict[str, Any]:
    n_buffers, *shape = (int(size) for size in alloc["shape"].rstrip("x").split("x"))
    name = alloc["dtype"]
    dtype, n_bits = _DTYPES.get(name) or (name, int(re.sub(r"\D", "", name) or 8))
    size_bytes = math.prod(shape) * max(8, n_bits) // 8
    return {"shape": shape, "dtype": dtype, "n_buffers": n_buffers, "size_bytes": size_bytes}


def n_in_flight(found: list[dict[str, Any]]) -> int:
    """Buffers of the largest load; 0 when there is none."""
    return max(found, key=lambda buffer: buffer["size_bytes"])["n_buffers"] if found else 0


# ---- tensor cores, from PTX

_INSTRUCTION = re.compile(r"(?<![\w.])(mma|wgmma\.mma_async|tcgen05\.mma)((?:\.\w+(?:::\w+)*)+)")
_SHAPE = re.compile(r"m\d+n\d+k\d+")
_OPERAND = re.compile(r"[fsub]\d+(?:x\d+)?|bf16|tf32|e\dm\d|ue\dm\d")


def tensor_cores(ptx: str) -> list[str]:
    """Kinds of tensor-core instruction, sorted: ``mma.sync m16n8k16 bf16``."""
    return sorted({_readable(name, parts[1:].split(".")) for name, parts in set(_INSTRUCTION.findall(ptx))})


def _readable(name: str, parts: list[str]) -> str:
    if name == "mma":
        name = "mma.sync"
    name += "".join(f".{part}" for part in parts if part in ("sp", "ws") or part.startswith("sp::"))
    shapes = [part for part in parts if _SHAPE.fullmatch(part)]
    # the result's type, then those of the two operands
    operands = [part for part in parts if _OPERAND.fullmatch(part)][1:3]
    kinds = [part for part in parts if part.startswith(("kind::", "cta_group::"))]
    scaled = [part for part in parts if part == "block_scale"]
    return " ".join([name, *shapes, *dict.fromkeys(operands), *sorted(kinds, reverse=True), *scaled])


# ---- registers, stack and spills

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def spill_bytes(ptxas_log: str) -> int | None:
    """Stores and loads of spilled registers; None when the log does not tell."""
    found = _SPILLS.findall(ptxas_log)
    return sum(int(stores) + int(loads) for stores, loads in found) if found else None


def resources(cubin: bytes, kernel: str) -> tuple[int | None, int | None]:
    """Registers and bytes of stack a thread; None where cuobjdump is not there or does not tell."""
    program = _cuobjdump()
    if program is None:
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [program, "--dump-resource-usage", file.name]
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    for name, row in _rows(shown):
        if name == kernel:
            return _count(row, "REG"), _count(row, "STACK")
    return None, None


def _rows(shown: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"Function (\S+?):\s*\n?\s*(REG:.*)", shown)


def _count(row: str, word: str) -> int | None:
    found = re.search(rf"\b{word}:(\d+)", row)
    return int(found.group(1)) if found else None


def _cuobjdump() -> str | None:
    import triton

    shipped = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(shipped) if shipped.exists() else shutil.which("cuobjdump")
