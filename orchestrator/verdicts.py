"""The records of ``orch check``: what a kernel compiles to, whether it can launch, and what that means.

Nouns only, frozen, without behaviour that touches the world; as in ``records``, ``None`` means "not known", never 0.
``KernelSource → CompileJob → CompiledKernel → ConfigReport → Verdict``: each names what it came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


def parse_arch(text: str) -> int | None:
    """The architecture that a text names (``sm_120``, ``sm_90a``, ``sm120`` or ``120``); None when it names none.

    A suffix ``a`` or ``f`` is accepted and dropped: Triton chooses it by itself.
    """
    found = re.fullmatch(r"(?:sm_?)?([1-9][0-9]{1,2})[af]?", text.strip().lower())
    return int(found[1]) if found else None


def arch_name(arch: int) -> str:
    """``sm_120`` for 120."""
    return f"sm_{arch}"


Constant = bool | int | float | str | None
"""A constexpr's value. A text ``tl.NAME`` stands for that attribute of ``triton.language`` (``tl.bfloat16``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """One entry of an autotune list, or one point of a grid.

    Attributes:
        constants: meta-parameters by name (``BLOCK_T``), in the order written.
    """

    constants: Mapping[str, Constant] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None

    @property
    def words(self) -> str:
        """``BLOCK_T=16 num_warps=4 num_stages=2``; num_ctas and maxnreg where they are set."""
        shown = {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.num_ctas != 1:
            shown["num_ctas"] = self.num_ctas
        if self.maxnreg is not None:
            shown["maxnreg"] = self.maxnreg
        return " ".join(f"{name}={value}" for name, value in shown.items())


# ---- what is compiled


SourceKind = Literal["source", "host-cache"]
"""``source``: lifted out of the file; ``host-cache``: the ttir that the engine's own Triton wrote on the host."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """What the compiler is given.

    Attributes:
        kind: where it came from.
        kernel: name of the jitted function.
        text: a module of Python (``source``) or Triton IR (``host-cache``).
        digest: of the text's bytes.
    """

    kind: SourceKind
    kernel: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Types of a kernel's arguments, in Triton's notation.

    Attributes:
        types: by argument in the order of the kernel: ``*bf16``, ``i32``, ``constexpr`` …
        constants: values of the constexprs that no config gives, and of arguments that Triton specialises (1, None).
        divisible_by_16: arguments that Triton is told are multiples of 16.
    """

    types: Mapping[str, str]
    constants: Mapping[str, Constant]
    divisible_by_16: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One compile: a source, a config, an architecture.

    Attributes:
        signature: None for a source from the host's cache, which has it baked in.
        arch: compute capability × 10 as Triton counts it: 90, 120.
        also_stages: further values of num_stages for which only the pipelined buffers are wanted, in order; the
            compiler stops after the first that keeps more buffers than ``config`` does.
    """

    source: KernelSource
    config: KernelConfig
    arch: int
    signature: Signature | None = None
    also_stages: tuple[int, ...] = ()


# ---- what came out


@dataclass(frozen=True, slots=True)
class PipelinedBuffer:
    """Shared memory that the pipeliner keeps for one load inside a loop.

    Attributes:
        shape: of one buffer, in elements. n_buffers: how many tiles can be in flight. size_bytes: of one buffer.
    """

    shape: tuple[int, ...]
    dtype: str
    n_buffers: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What one job compiled to.

    Attributes:
        error: why it did not compile, in one line; then everything else is None or empty.
        error_kind: ``compile`` the compiler refused it, ``crash`` the compiler crashed, ``deadline`` it did not end,
            ``import`` the lifted module needs something that is not installed.
        n_warps: a block really has, where warp specialisation makes them more than the config says.
        shared_bytes: dynamic and static shared memory a block, as Triton's metadata says.
        n_registers: a thread. stack_bytes: a thread. spill_bytes: stores and loads of spilled registers, as ptxas
            counts them; None where this Triton does not let it tell.
        tensor_cores: kinds of tensor-core instruction, such as ``mma.sync m16n8k16 bf16``; empty when there is none.
        has_loop: whether the kernel has a loop. has_dot_in_loop: a ``tl.dot`` inside one.
        buffers: of the pipelined loads; empty when nothing is pipelined.
        stages_buffers: for each of the job's ``also_stages`` that was looked at: the buffers it keeps.
        binary_digest: of the cubin, compiled without line numbers: equal ones are the same machine code.
        compile_s: seconds this compile took, when it was made.
        is_cached: this answer came out of orch's cache.
    """

    job: CompileJob
    triton_version: str
    error: str | None = None
    error_kind: Literal["compile", "crash", "deadline", "import"] | None = None
    n_warps: int | None = None
    shared_bytes: int | None = None
    n_registers: int | None = None
    stack_bytes: int | None = None
    spill_bytes: int | None = None
    tensor_cores: tuple[str, ...] = ()
    has_loop: bool | None = None
    has_dot_in_loop: bool | None = None
    buffers: tuple[PipelinedBuffer, ...] = ()
    stages_buffers: Mapping[int, tuple[PipelinedBuffer, ...]] = field(default_factory=dict)
    binary_digest: str | None = None
    compile_s: float | None = None
    is_cached: bool = False

    @property
    def n_kv_buffers(self) -> int | None:
        """Tiles of the largest pipelined load that are in flight: 0 when nothing is pipelined, None if unknown."""
        if self.error is not None:
            return None
        largest = max(self.buffers, key=lambda buffer: buffer.size_bytes, default=None)
        return 0 if largest is None else largest.n_buffers


Limiter = Literal["registers", "shared memory", "warps", "blocks"]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel a multiprocessor holds, and what keeps it from holding more.

    Attributes:
        can_launch: whether one block fits at all. why_not: in one line, when it does not.
        shared_limit_bytes: a block may opt in to so much.
        blocks_per_sm, warps_per_sm: 0 when it cannot launch. max_warps_per_sm: of the architecture.
        limiters: the resources that allow no further block, the tightest first; several when they tie.
    """

    can_launch: bool
    why_not: str | None
    shared_limit_bytes: int
    blocks_per_sm: int
    warps_per_sm: int
    max_warps_per_sm: int
    limiters: tuple[Limiter, ...]


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """One config on one architecture.

    Attributes:
        index: position in the autotune list (or in the grid), from 0.
        occupancy: None when it did not compile, or the architecture's limits are not known.
    """

    index: int
    compiled: CompiledKernel
    occupancy: Occupancy | None

    @property
    def config(self) -> KernelConfig:
        """The config."""
        return self.compiled.job.config

    @property
    def arch(self) -> int:
        """The architecture."""
        return self.compiled.job.arch

    @property
    def can_launch(self) -> bool | None:
        """Whether it can launch; None when that is not known."""
        if self.compiled.error is not None:
            return False
        return None if self.occupancy is None else self.occupancy.can_launch

    @property
    def launch_key(self) -> tuple[object, ...] | None:
        """Equal for two configs whose launches cannot differ: same machine code, block size and meta-parameters.

        Meta-parameters count, because a launcher may size its grid by them. None when there is no binary.
        """
        if self.compiled.binary_digest is None:
            return None
        config = self.config
        constants = tuple(sorted((name, repr(value)) for name, value in config.constants.items()))
        return self.arch, self.compiled.binary_digest, config.num_warps, config.num_ctas, constants


SentenceKind = Literal[
    "does-not-compile",
    "cannot-launch",
    "same-binary",
    "stages-keep-buffers",
    "no-dot-in-loop",
    "more-warps-same-occupancy",
    "key-lacks-shape",
    "may-switch-config",
    "same-size",
    "moved-function",
]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Something true of a variant that a person must know before spending GPU time.

    Attributes:
        kind: stable, for machines. is_fatal: the experiment cannot work, or cannot change anything.
        arch: None when it holds whatever the architecture.
    """

    kind: SentenceKind
    text: str
    is_fatal: bool = False
    arch: int | None = None


VerdictStatus = Literal["ok", "does-not-compile", "cannot-launch", "same-binary", "not-checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the offline check says of one variant.

    Attributes:
        variant: ``baseline`` when that was checked. digest: of its files.
        status: ``same-binary``: on every architecture asked, its launches cannot differ from the baseline's.
            ``cannot-launch``: no config of it can launch on some architecture asked. ``not-checked``: see ``caveats``.
        source: where the compiled text came from; None when nothing was compiled.
        triton_version: that compiled. host_triton_version: of the host, where it is recorded.
        n_configs: entries of the variant's autotune list; None when that cannot be told. n_baseline_configs: likewise.
        configs: of the variant, one for each entry and architecture. baseline_configs: those of the baseline that
            were compiled to compare with, or are known from before.
        sentences: each is true. caveats: what the reader must know of the check itself.
    """

    target: str
    variant: str
    digest: str
    base_digest: str
    kernel: str
    status: VerdictStatus
    source: SourceKind | None
    archs: tuple[int, ...]
    triton_version: str | None
    host_triton_version: str | None
    n_configs: int | None
    n_baseline_configs: int | None
    configs: tuple[ConfigReport, ...]
    baseline_configs: tuple[ConfigReport, ...]
    sentences: tuple[Sentence, ...]
    caveats: tuple[str, ...]
    checked_at: str


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """One compiled form of the target's kernel, as the engine's Triton left it in its cache on the host.

    Attributes:
        cache_key: name of its folder in the cache. name: of the kernel.
        ttir: the Triton IR that it was compiled from. metadata: the json beside it, as it was.
        triton_version: of the engine's Python; None when not recorded.
        digest: of the target's files that the engine ran.
    """

    cache_key: str
    name: str
    ttir: str
    metadata: Mapping[str, object]
    triton_version: str | None
    digest: str


# ---- on the host


@dataclass(frozen=True, slots=True)
class RemoteFinding:
    """One thing that was tried on the host.

    Attributes:
        name: ``import``, or a name that the reference command gives.
        passed: None when it was not tried. detail: what was found, in one line.
        evidence: last lines that prove it, secrets masked.
    """

    name: str
    passed: bool | None
    detail: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVerdict:
    """What a variant did on its host, in a scratch folder.

    Attributes:
        command: the reference command as it ran; None when the inventory names none.
        passed: everything that was tried passed, and something beyond the import was tried.
        report: the document that the reference command printed; None when it printed none.
    """

    target: str
    variant: str
    digest: str
    host: str
    command: tuple[str, ...] | None
    passed: bool
    findings: tuple[RemoteFinding, ...]
    report: Mapping[str, object] | None
    checked_at: str
