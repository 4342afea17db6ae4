"""Triton's own stages, run one by one: text of Triton IR, then its GPU form, PTX and the cubin.

``triton.compile`` does the same, but cannot stop half-way and reads all of libtriton (0.5 s) for the key of a cache
that this program does not want. Looks at no result: ``facts`` does.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Binary:
    """What the back end made.

    Attributes:
        ptxas_log: its counts of registers and spills; empty where this Triton keeps them to itself.
        metadata: as Triton writes it beside a cubin: name, shared, num_warps …
    """

    ttgir: str
    ptx: str
    cubin: bytes
    ptxas_log: str
    metadata: Mapping[str, Any]


class Compiler:
    """One architecture and one set of options.

    Args:
        arch: 120 for sm_120. options: num_warps, num_stages …; those that are None are left to Triton.
    """

    def __init__(self, arch: int, options: Mapping[str, Any]) -> None:
        from triton._C.libtriton import ir
        from triton.backends.compiler import GPUTarget
        from triton.compiler.compiler import make_backend

        self._target = GPUTarget("cuda", arch, 32)
        self._backend = make_backend(self._target)
        self._asked = {name: value for name, value in options.items() if value is not None}
        self._context = ir.context()
        ir.load_dialects(self._context)
        self._backend.load_dialects(self._context)

    def front_end(self, source: Any) -> Any:
        """Triton IR of a typed kernel, as the passes of the first stage leave it."""
        options, stages = self._stages({})
        functions = _call(self._backend.get_codegen_implementation, options=options)
        module = _call(
            source.make_ir,
            target=self._target,
            options=options,
            codegen_fns=functions,
            module_map=self._backend.get_module_map(),
            context=self._context,
        )
        return stages["ttir"](module, self._metadata(options))

    def parse(self, path: Path) -> Any:
        """Triton IR out of a ``.ttir`` file."""
        from triton._C.libtriton import ir

        module = ir.parse_mlir_module(str(path), self._context)
        module.context = self._context
        return module

    def pipelined(self, ttir: Any, **changed: Any) -> str:
        """Text of the GPU form. Uses up ``ttir``.

        Args:
            changed: options that differ from those of this compiler.
        """
        options, stages = self._stages(changed)
        return text_of(stages["ttgir"](ttir, self._metadata(options)))

    def back_end(self, ttir: Any) -> Binary:
        """Everything after Triton IR. Uses up ``ttir``."""
        options, stages = self._stages({})
        metadata = self._metadata(options)
        module = stages["ttgir"](ttir, metadata)
        ttgir = text_of(module)
        ptx = stages["ptx"](stages["llir"](module, metadata), metadata)
        with contextlib.redirect_stdout(io.StringIO()) as ptxas_log:
            cubin = stages["cubin"](ptx, metadata)
        return Binary(ttgir=ttgir, ptx=ptx, cubin=cubin, ptxas_log=ptxas_log.getvalue(), metadata=metadata)

    def _stages(self, changed: Mapping[str, Any]) -> tuple[Any, dict[str, Callable[[Any, dict[str, Any]], Any]]]:
        from triton.backends import compiler

        options = self._backend.parse_options({**self._asked, **changed})
        stages: dict[str, Callable[[Any, dict[str, Any]], Any]] = {}
        language = getattr(compiler, "Language", None)
        _call(self._backend.add_stages, stages=stages, options=options, language=getattr(language, "TRITON", None))
        return options, stages

    def _metadata(self, options: Any) -> dict[str, Any]:
        return {"target": self._target, **options.__dict__}


def text_of(module: Any) -> str:
    """A module's text, without the places in the source that each operation came from."""
    return str(module.str_nodebug() if hasattr(module, "str_nodebug") else module)


def _call(function: Callable[..., Any], **available: Any) -> Any:
    """Call with those arguments that this version of Triton asks for."""
    wanted = inspect.signature(function).parameters
    return function(**{name: value for name, value in available.items() if name in wanted})
