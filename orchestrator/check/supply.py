"""Which text is compiled for a config: the host's own Triton IR where it serves, else the source of the file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.check.arguments import LAUNCH_OPTIONS, config_constants, signature
from orchestrator.check.host_cache import ConstantsKey, constants_key, forms_of
from orchestrator.check.lift import Lifted
from orchestrator.errors import UsageError
from orchestrator.records import Target
from orchestrator.verdicts import CachedKernel, CompileJob, Constant, KernelConfig, KernelSource, SourceKind


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lifted kernel with its autotune list.

    Attributes:
        configs: None when the list cannot be computed here. key: of the list; None when there is none, or likewise.
        why_no_configs: why it cannot, in one line, where that is known.
    """

    lifted: Lifted
    configs: tuple[KernelConfig, ...] | None
    key: tuple[str, ...] | None
    why_no_configs: str | None = None


@dataclass(frozen=True, slots=True)
class Supply:
    """Where compiled texts come from.

    Attributes:
        forms: the host's Triton IR by meta-parameters; empty when sources are compiled.
        note: why the host's cache was not used although there is one.
    """

    kind: SourceKind
    target: Target
    forms: Mapping[ConstantsKey, tuple[KernelSource, ...]] = field(default_factory=dict)
    note: str | None = None

    def jobs(
        self, kernel: Kernel, config: KernelConfig, arch: int, also_stages: Sequence[int] = ()
    ) -> list[CompileJob]:
        """The compiles of one config: one, or one for each of the host's specialisations.

        Raises:
            UsageError: a type or value that the source needs is missing; asks for it by name.
        """
        if self.kind == "host-cache":
            sources = self.forms.get(constants_key(config), ())
            return [CompileJob(source, config, arch, None, tuple(also_stages)) for source in sources]
        given = config_constants(kernel.lifted, config)
        types = signature(kernel.lifted, compile_arguments(self.target), given_by_config=given, target=self.target.name)
        whole = replace(types, constants={**types.constants, **given})
        return [CompileJob(kernel.lifted.source, config, arch, whole, tuple(also_stages))]


def compile_arguments(target: Target) -> dict[str, Constant]:
    """What the inventory says of the kernel's arguments, without the launch options that may stand among them."""
    return {name: value for name, value in target.check.arguments.items() if name not in LAUNCH_OPTIONS}


def launched_config(target: Target) -> KernelConfig:
    """The one config of a kernel without an autotune list: what the inventory says, else Triton's defaults.

    Raises:
        UsageError: a launch option is no whole number.
    """
    options = {name: value for name, value in target.check.arguments.items() if name in LAUNCH_OPTIONS}
    wrong = [name for name, value in options.items() if type(value) is not int or value < 1]
    if wrong:
        raise UsageError(
            f"{wrong[0]} is {options[wrong[0]]!r}, which is no whole number from 1",
            next_step=f"correct targets.{target.name}.check.arguments in inventory.yaml",
        )
    return KernelConfig(**options)  # type: ignore[arg-type]


def guessed_options(target: Target) -> list[str]:
    """Launch options that the inventory does not name, as ``launched_config`` has them: ``num_warps=4``."""
    config = launched_config(target)
    names = [name for name in ("num_warps", "num_stages") if name not in target.check.arguments]
    return [f"{name}={getattr(config, name)}" for name in names]


def choose(
    target: Target,
    own: Kernel,
    base: Kernel,
    wanted: Sequence[KernelConfig],
    cached: Sequence[CachedKernel],
    triton_version: str,
) -> Supply:
    """The host's cache when it holds a form of everything that is wanted, and the kernel's code is the baseline's.

    Args:
        own: what is checked. base: the baseline, whose starts filled the host's cache.
        wanted: every config that is to be compiled. triton_version: of the compiler.
    """
    if not cached:
        return Supply("source", target)
    note = _why_not(own, base, cached, triton_version)
    if note is None:
        forms = forms_of(cached, base.configs or (launched_config(target),))
        missing = [config for config in wanted if constants_key(config) not in forms]
        if not missing:
            return Supply("host-cache", target, forms)
        what = " ".join(f"{name}={value}" for name, value in missing[0].constants.items())
        note = f"it holds no form with {what}" if what else "its forms cannot be told apart"
    return Supply("source", target, note=f"compiled from the source, not from the host's Triton cache: {note}")


def _why_not(own: Kernel, base: Kernel, cached: Sequence[CachedKernel], triton_version: str) -> str | None:
    if own.lifted.source.digest != base.lifted.source.digest:
        return "the kernel's code is not the baseline's"
    versions = {kernel.triton_version for kernel in cached if kernel.triton_version is not None}
    foreign = [version for version in versions if version.partition("+")[0] != triton_version.partition("+")[0]]
    if foreign:
        return f"Triton {foreign[0]} wrote it, Triton {triton_version} compiles"
    if base.configs is None and base.lifted.has_autotune:
        return "the baseline's autotune list cannot be computed here"
    return None
