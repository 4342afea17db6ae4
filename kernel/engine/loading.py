"""The kernel module, imported so that the digest which the engine reports cannot lie.

The file is read once. The digest, the code that runs and the text that triton later compiles (it asks ``inspect`` for
a kernel's source) all come from those bytes; no bytecode cache takes part, and a later change of the file has no
effect on this process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """A module and the digest (``sha256:`` and 64 hex digits) of the bytes it was made from."""

    module: ModuleType
    digest: str


def load_module(name: str) -> LoadedModule:
    """Import ``name`` from where this Python would find it.

    Raises:
        ImportError: no such module, not a source file, or imported already by something else (its bytes are unknown).
        Exception: whatever the module's own code raises.
    """
    if name in sys.modules:
        raise ImportError(f"{name} was imported before its bytes could be recorded")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ImportError(f"no Python source file for {name} on sys.path")
    source = Path(spec.origin).read_bytes()
    # Without an mtime linecache takes the entry as it is and never looks at the file again.
    text = importlib.util.decode_source(source)
    linecache.cache[spec.origin] = (len(source), None, text.splitlines(keepends=True), spec.origin)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source, spec.origin, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return LoadedModule(module=module, digest="sha256:" + hashlib.sha256(source).hexdigest())
