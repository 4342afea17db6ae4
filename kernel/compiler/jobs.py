"""One job, from the request's words to the answer's. Runs in a child; never raises for what the user's kernel does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import facts, sources
from .failures import failure_of
from .stages import Binary, Compiler, text_of


@dataclass(frozen=True)
class PlacedSource:
    """A source of the request as a file: Python, or Triton IR when ``is_ttir``."""

    kernel: str
    path: Path
    is_ttir: bool


def place_sources(asked: Mapping[str, Mapping[str, str]], folder: Path) -> dict[str, PlacedSource]:
    """Write each source into a folder of its own: Triton reads a function's source from its file."""
    placed = {}
    for number, (key, source) in enumerate(asked.items()):
        is_ttir = source["kind"] == "host-cache"
        path = folder / f"source-{number}" / ("kernel.ttir" if is_ttir else "lifted_kernel.py")
        path.parent.mkdir()
        path.write_text(source["text"], encoding="utf-8")
        placed[key] = PlacedSource(kernel=source["kernel"], path=path, is_ttir=is_ttir)
    return placed


def perform(job: Mapping[str, Any], source: PlacedSource, log: Path) -> dict[str, Any]:
    """Do the job.

    Args:
        log: file into which this process prints.

    Returns:
        the answer without its event and id.
    """
    try:
        done = _DOERS[job["do"]](job, source)
    except Exception as error:
        failure = failure_of(error, log)
        return {"error": str(failure), "error_kind": failure.kind}
    return {"error": None, "error_kind": None, **done}


def describe(_: Mapping[str, Any], source: PlacedSource) -> dict[str, Any]:
    """The autotune list and its key, where the source has them; why the list could not be computed."""
    if source.is_ttir:
        return {"configs": None, "key": None}
    module = sources.load(source.path)
    sources.kernel_of(module, source.kernel)
    configs, key = sources.configs_of(module), sources.key_of(module)
    return {"configs": configs, "key": key, "error": sources.list_error(module)}


def compile_one(job: Mapping[str, Any], source: PlacedSource) -> dict[str, Any]:
    """Compile one config to a cubin."""
    started = time.monotonic()
    compiler, ttir = _front_end(job, source)
    has_loop, has_dot_in_loop = facts.loop_facts(text_of(ttir))
    binary = compiler.back_end(ttir)
    compile_s = time.monotonic() - started
    return {
        **_binary_facts(binary),
        "has_loop": has_loop,
        "has_dot_in_loop": has_dot_in_loop,
        "buffers": facts.buffers(binary.ttgir),
        "compile_s": round(compile_s, 3),
    }


def probe(job: Mapping[str, Any], source: PlacedSource) -> dict[str, Any]:
    """The buffers of one config with another ``num_stages``: compile as far as the pipeliner."""
    compiler, ttir = _front_end(job, source)
    return {"buffers": facts.buffers(compiler.pipelined(ttir, num_stages=job["num_stages"]))}


_DOERS = {"describe": describe, "compile": compile_one, "probe": probe}


def _front_end(job: Mapping[str, Any], source: PlacedSource) -> tuple[Compiler, Any]:
    """A compiler, and the kernel's Triton IR in it."""
    if source.is_ttir:
        compiler = Compiler(job["arch"], job["options"])
        return compiler, compiler.parse(source.path)
    kernel = sources.kernel_of(sources.load(source.path), source.kernel)
    compiler = Compiler(job["arch"], {**job["options"], "debug": getattr(kernel, "debug", None)})
    return compiler, compiler.front_end(sources.typed_source(kernel, job))


def _binary_facts(binary: Binary) -> dict[str, Any]:
    n_registers, stack_bytes = facts.resources(binary.cubin, binary.metadata["name"])
    return {
        "shared_bytes": binary.metadata["shared"],
        "n_warps": binary.metadata["num_warps"],  # more than asked for under warp specialisation
        "n_registers": n_registers,
        "stack_bytes": stack_bytes,
        "spill_bytes": facts.spill_bytes(binary.ptxas_log),
        "tensor_cores": facts.tensor_cores(binary.ptx),
        "binary_digest": "sha256:" + hashlib.sha256(binary.cubin).hexdigest(),
    }
