"""What a kernel's autotune list offers: its knobs with their values, for people. Changes nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.variant.autotune import kernel_names, locate
from orchestrator.variant.source import parse


@dataclass(frozen=True, slots=True)
class KnobList:
    """The autotune list of one kernel.

    Attributes:
        line: where the list is given, in its file.
        n_configs: None when the list is computed, so that nobody can tell without running it.
        knobs: every knob, with its different values as written, in the order of the configs.
    """

    kernel: str
    line: int
    n_configs: int | None
    knobs: Mapping[str, tuple[str, ...]]


def list_knobs(content: bytes, kernel: str, file: str = "kernel.py") -> KnobList:
    """The knobs that ``orch variant new --set`` can set.

    Raises:
        VariantError: the file does not parse, or has no such kernel, or the kernel has no list that can be found.
    """
    autotune = locate(parse(content, file), kernel)
    configs = autotune.configs or ([autotune.template] if autotune.template is not None else [])
    values: dict[str, dict[str, None]] = {}
    for config in configs:
        for name, expression in config.knobs.items():
            values.setdefault(name, {})[ast.unparse(expression)] = None
    return KnobList(
        kernel=kernel,
        line=autotune.call.lineno,
        n_configs=None if autotune.entries is None else len(autotune.entries),
        knobs={name: tuple(texts) for name, texts in values.items()},
    )


def has_function(content: bytes, name: str, file: str = "kernel.py") -> bool:
    """Whether a kernel of that name is defined in the file; with or without an autotune list.

    Raises:
        VariantError: the file does not parse.
    """
    return name in kernel_names(parse(content, file).tree)
