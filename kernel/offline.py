"""What a kernel file would launch for a call, and what the compiler makes of it, without a GPU.

The file's own launcher runs on tensors that have shapes and no memory, as if the GPU asked for were there; its launches
are kept instead of run. So the compile sees the constants, types and divisibilities that the file really passes, for
every file with the entry point of ``sparse_mla_decode.py``. Needs Triton; runs no kernel.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from kernel import kv_pool
from kernel.cases import Inputs
from kernel.check import call_into

GPUS = {
    80: ("A100", 108, 166_912),
    86: ("A40", 84, 101_376),
    89: ("L40S", 142, 101_376),
    90: ("H200", 132, 232_448),
    100: ("B200", 148, 232_448),
    120: ("RTX PRO 6000", 188, 101_376),
}
"""By architecture: a product, its multiprocessors, and the shared memory that a block may have."""
TENSOR_INSTRUCTIONS = ("HGMMA", "HMMA", "UTCHMMA")
POINTER_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*)$")
_LABEL = re.compile(r"^(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch that a file's launcher asked for.

    Attributes:
        kernel: Triton's function.
        named: its arguments by name, tensors without memory.
        options: warps, stages …
    """

    kernel: Any
    named: dict[str, Any]
    options: dict[str, Any]

    @property
    def job(self) -> dict[str, Any]:
        """Constants, types and divisibility, by Triton's rules of what it specialises on."""
        constants, types, divisible = {}, {}, []
        for parameter in self.kernel.params:
            name, value = parameter.name, self.named.get(parameter.name)
            is_free = bool(parameter.do_not_specialize)
            if parameter.is_constexpr or value is None or (type(value) is int and value == 1 and not is_free):
                constants[name] = value
                continue
            types[name] = _type_of(value)
            if not is_free and _is_divisible(value):
                divisible.append(name)
        return {"constants": constants, "types": types, "divisible_by_16": divisible}


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler made of a launch. None where no tool tells.

    Attributes:
        shared_bytes, n_registers, stack_bytes: of a block, a thread, a thread; spilled registers lie on the stack.
        tensor_cores: kinds of instruction.
        loop_counts: instructions of the innermost loop with tensor instructions, by kind; ``all`` for all of them.
    """

    name: str
    n_warps: int
    shared_bytes: int
    n_registers: int | None
    stack_bytes: int | None
    tensor_cores: tuple[str, ...]
    loop_counts: dict[str, int] | None

    def instructions_a_token(self, block_t: int) -> float | None:
        """Warp instructions: of a warp, times warps, over the tokens of a tile."""
        return None if self.loop_counts is None else self.loop_counts["all"] * self.n_warps / block_t


def launches_of(
    module: ModuleType,
    config: Any,
    *,
    arch: int | None,
    n_heads: int,
    n_rows: int,
    topks: Sequence[int],
    page_size: int = 64,
    has_length: bool = False,
    has_sink: bool = True,
) -> list[Launch]:
    """What the launcher of ``module`` would launch. The module must be freshly imported for ``arch``.

    Args:
        arch: as if on such a GPU; None: on the one that is there.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: list[Launch] = []
    with FakeTensorMode(), _as_if_on(arch), _recording(module, found.append):
        inputs = _inputs(n_heads, n_rows, topks, page_size, has_length, has_sink)
        out = torch.empty_like(inputs.q_B1HD)
        lse = torch.empty(n_rows, 1, n_heads, dtype=torch.float32, device="cuda")
        call_into(module, inputs, out, lse, config)
    return found


def fitting(module: ModuleType, configs: Sequence[Any], launch: Launch, arch: int | None) -> list[Any]:
    """Those that the file's own autotuner would try for such a call; all where it drops none."""
    prune = getattr(module.sparse_mla_decode_kernel, "early_config_prune", None)
    if prune is None:
        return list(configs)
    with _as_if_on(arch):
        return list(prune(list(configs), launch.named))


def compiled(launch: Launch, arch: int) -> Compiled:
    """Compile one launch.

    Raises:
        Exception: whatever Triton and ptxas raise.
    """
    from kernel.compiler import facts, sources
    from kernel.compiler.stages import Compiler

    compiler = Compiler(arch, {**launch.options, "debug": getattr(launch.kernel, "debug", None)})
    binary = compiler.back_end(compiler.front_end(sources.typed_source(launch.kernel, launch.job)))
    n_registers, stack_bytes = facts.resources(binary.cubin, binary.metadata["name"])
    return Compiled(
        name=binary.metadata["name"],
        n_warps=binary.metadata["num_warps"],
        shared_bytes=binary.metadata["shared"],
        n_registers=n_registers,
        stack_bytes=stack_bytes,
        tensor_cores=tuple(facts.tensor_cores(binary.ptx)),
        loop_counts=loop_counts(disassembled(binary.cubin)),
    )


def disassembled(cubin: bytes) -> str | None:
    """Machine code as text; None without nvdisasm."""
    program = _tool("nvdisasm")
    if program is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, "-c", file.name], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def loop_counts(code: str | None) -> dict[str, int] | None:
    """Instructions of the smallest loop with a tensor instruction, by kind and width, and ``all`` of them."""
    places: dict[str, int] = {}
    instructions: list[tuple[str, str]] = []
    for line in (code or "").splitlines():
        if label := _LABEL.match(line):
            places[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append((instruction[1], instruction[2]))
    loops = []
    for end, (word, rest) in enumerate(instructions):
        target = _TARGET.search(rest) if word.startswith("BRA") else None
        if target and places.get(target[1], end + 1) <= end:
            body = [one for one, _ in instructions[places[target[1]] : end + 1]]
            if any(one.startswith(TENSOR_INSTRUCTIONS) for one in body):
                loops.append(body)
    if not loops:
        return None
    counts: dict[str, int] = {"all": 0}
    for one in min(loops, key=len):
        counts["all"] += 1
        kind = _kind(one)
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def _kind(word: str) -> str | None:
    first, *parts = word.split(".")
    if first in ("LDG", "LDS", "STS", "LDL", "STL"):
        width = next((part for part in parts if part in ("64", "128")), "32")
        return f"{first}.{width}"
    return first if first in (*TENSOR_INSTRUCTIONS, "BAR", "LDSM", "STSM", "MUFU", "SHFL", "PRMT", "F2FP") else None


def _inputs(
    n_heads: int, n_rows: int, topks: Sequence[int], page_size: int, has_length: bool, has_sink: bool
) -> Inputs:
    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="cuda")

    pools = tuple(
        (
            empty(1024, kv_pool.page_bytes(page_size), dtype=torch.uint8),
            empty(n_rows, topk, dtype=torch.int32),
            page_size,
            empty(n_rows, dtype=torch.int32) if has_length else None,
        )
        for topk in topks
    )
    q = empty(n_rows, 1, n_heads, kv_pool.HEAD_DIM, dtype=torch.bfloat16)
    return Inputs(q_B1HD=q, pools=pools, attention_sink_H=empty(n_heads, dtype=torch.float32) if has_sink else None)


@contextlib.contextmanager
def _as_if_on(arch: int | None) -> Iterator[None]:
    if arch is None:
        yield
        return
    name, n_multiprocessors, shared_bytes = GPUS[arch]
    properties = SimpleNamespace(
        name=name,
        major=arch // 10,
        minor=arch % 10,
        multi_processor_count=n_multiprocessors,
        shared_memory_per_block_optin=shared_bytes,
    )
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (arch // 10, arch % 10)),
    ):
        yield


@contextlib.contextmanager
def _recording(module: ModuleType, keep: Callable[[Launch], None]) -> Iterator[None]:
    """Every Triton function of the module's top level keeps its launches instead."""
    from triton.runtime.jit import JITFunction

    with contextlib.ExitStack() as stack:
        for name, value in list(vars(module).items()):
            kernel = value
            while not isinstance(kernel, JITFunction) and hasattr(kernel, "fn"):
                kernel = kernel.fn
            if isinstance(kernel, JITFunction):
                stack.enter_context(mock.patch.object(module, name, _Recorder(kernel, value, keep)))
        yield


class _Recorder:
    """Stands for a Triton function or its autotuner; never called, only launched."""

    def __init__(self, kernel: Any, original: Any, keep: Callable[[Launch], None]) -> None:
        self._kernel, self._original, self._keep = kernel, original, keep

    @property
    def fn(self) -> _Recorder:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*positional: Any, **named: Any) -> None:
            arguments = dict(zip(self._kernel.arg_names, positional, strict=False)) | named
            options = {name: arguments.pop(name) for name in OPTIONS if arguments.get(name) is not None}
            self._keep(Launch(kernel=self._kernel, named=arguments, options=options))

        return launch


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTER_TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _is_divisible(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return type(value) is int and value % 16 == 0


def _tool(name: str) -> str | None:
    import triton

    shipped = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(shipped) if shipped.exists() else shutil.which(name)
