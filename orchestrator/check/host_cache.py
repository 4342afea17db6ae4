"""Which of the kernels in the host's Triton cache was compiled from which config of the autotune list. Pure.

Triton writes num_warps and num_stages beside each compiled form, but not the tile sizes: those are read from the
Triton IR, as the ends of its ranges and the steps of its loops. What cannot be told for sure is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.records import digest_of
from orchestrator.verdicts import CachedKernel, Constant, KernelConfig, KernelSource

MAX_FORMS = 4
"""Specialisations of one config that are looked at: by divisibility, or by an argument that was 1."""

ConstantsKey = tuple[tuple[str, Constant], ...]
_Forms = dict[str, KernelSource]

_RANGE = re.compile(r"tt\.make_range \{end = (\d+)")
_STEP = re.compile(r"\bstep %c(\d+)_i\d+")
_LOCATION = re.compile(r"(?m)^#loc\d*( =.*)?$|\s*loc\((?:[^()]|\([^()]*\))*\)")


def constants_key(config: KernelConfig) -> ConstantsKey:
    """The meta-parameters of a config, as a key: a form serves every num_warps and num_stages."""
    return tuple(sorted(config.constants.items()))


def forms_of(
    cached: Sequence[CachedKernel], configs: Sequence[KernelConfig]
) -> Mapping[ConstantsKey, tuple[KernelSource, ...]]:
    """The Triton IR of each set of meta-parameters.

    Args:
        cached: of one kernel, the newest first. configs: the autotune list that the engine had.

    Returns:
        The different forms by meta-parameters, at most ``MAX_FORMS`` each; without an entry where there is none, or
        where it cannot be told which one it is.
    """
    by_launch: dict[object, list[CachedKernel]] = {}
    for kernel in cached:
        by_launch.setdefault(_launched(kernel), []).append(kernel)
    found: dict[ConstantsKey, dict[str, KernelSource]] = {}
    for kernels in by_launch.values():
        for key, forms in _told_apart(kernels, configs).items():
            found[key] = {**found.get(key, {}), **forms}
    return {key: tuple(forms.values())[:MAX_FORMS] for key, forms in found.items()}


def _told_apart(kernels: Sequence[CachedKernel], configs: Sequence[KernelConfig]) -> dict[ConstantsKey, _Forms]:
    """The forms of one num_warps and num_stages by meta-parameters; nothing where one config seems to have them all.

    Two that differ in a value which is no tile size (a number of splits) look alike: then one seems to have two forms
    and the other none, although an engine that tunes compiles both.
    """
    found: dict[ConstantsKey, _Forms] = {}
    is_any_left = False
    for kernel in kernels:
        key = _config_of(kernel, configs)
        is_any_left |= key is None
        if key is not None:
            digest = digest_of(_without_locations(kernel.ttir).encode())
            source = KernelSource("host-cache", kernel.name, kernel.ttir, digest)
            found.setdefault(key, {}).setdefault(digest, source)
    is_missing = len(found) < len(_keys(kernels[0], configs)) and not is_any_left
    return {} if is_missing and any(len(forms) > 1 for forms in found.values()) else found


def _launched(kernel: CachedKernel) -> tuple[object, object]:
    return kernel.metadata.get("num_warps"), kernel.metadata.get("num_stages")


def _keys(kernel: CachedKernel, configs: Sequence[KernelConfig]) -> set[ConstantsKey]:
    """The meta-parameters that go with the launch options of a form."""
    return {constants_key(c) for c in configs if (c.num_warps, c.num_stages) == _launched(kernel)}


def _config_of(kernel: CachedKernel, configs: Sequence[KernelConfig]) -> ConstantsKey | None:
    """The meta-parameters that a form was compiled with; None when that cannot be told."""
    keys = _keys(kernel, configs)
    if len(keys) < 2:
        return next(iter(keys), None)
    differing = {key: _differing(key, keys) for key in keys}
    ranges = {int(end) for end in _RANGE.findall(kernel.ttir)}
    fitting = [key for key in keys if differing[key] is not None and ranges.issuperset(differing[key] or ())]
    if len(fitting) > 1:
        steps = {int(step) for step in _STEP.findall(kernel.ttir)}
        own = {key: (differing[key] or set()).difference(*(_values(o) for o in fitting if o != key)) for key in fitting}
        fitting = [key for key in fitting if not steps.isdisjoint(own[key])]
    return fitting[0] if len(fitting) == 1 else None


def _differing(key: ConstantsKey, keys: Iterable[ConstantsKey]) -> set[int] | None:
    """The values in which a config differs from the others; None when one of them is no tile size."""
    common = set.intersection(*(set(other) for other in keys))
    values = [value for name, value in key if (name, value) not in common]
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return None
    return {int(value) for value in values if value is not None}


def _values(key: ConstantsKey) -> set[Constant]:
    return {value for _, value in key}


def _without_locations(ttir: str) -> str:
    """The IR without file names and line numbers, which change no machine code."""
    return _LOCATION.sub("", ttir)
