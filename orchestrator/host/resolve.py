"""Says which file each module comes from, without importing anything. Run in an interpreter started like the engine's.

The parents of a dotted name are looked up part by part through ``sys.meta_path``, so editable installs and namespace
packages are found; a parent is stood in for by an empty module that only has its search path. What a package does to
its own ``__path__`` while it is imported cannot be seen this way.
"""

from __future__ import annotations

import os
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, Dict, Optional, Sequence


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers each module's file and cached bytecode, and facts of the interpreter that decide what it trusts."""
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = request["first_path"]
    exe = os.stat("/proc/self/exe" if os.path.exists("/proc/self/exe") else sys.executable)
    return {
        "modules": {name: _locate(name) for name in request["modules"]},
        "exe": [exe.st_dev, exe.st_ino],
        "executable": sys.executable,
        "optimize": sys.flags.optimize,
        "sys_path": sys.path,
    }


def _locate(module: str) -> Dict[str, Optional[str]]:
    """``path`` of the module's file and of its cached bytecode, or an ``error``."""
    parts = module.split(".")
    search: Optional[Sequence[str]] = None
    spec: Optional[ModuleSpec] = None
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            spec = _find(name, search)
        except Exception as exc:  # a finder of some package: whatever it raises, the engine would meet too
            return {"error": "looking for %s raised %s: %s" % (name, type(exc).__name__, exc)}
        if spec is None:
            return {"error": "no module %s on its sys.path" % name}
        if count < len(parts):
            search = spec.submodule_search_locations
            if search is None:
                return {"error": "%s (%s) is not a package" % (name, spec.origin)}
            _stand_in(name, spec)
    assert spec  # a dotted name has at least one part
    if not spec.has_location:
        return {"error": "%s has no file (%s)" % (module, spec.origin)}
    return {"path": spec.origin, "cached": spec.cached}


def _find(name: str, search: Optional[Sequence[str]]) -> Optional[ModuleSpec]:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: Optional[ModuleSpec] = find_spec(name, search, None) if find_spec else None
        if spec is not None:
            return spec
    return None


def _stand_in(name: str, spec: ModuleSpec) -> None:
    """An empty package: namespace packages below it ask ``sys.modules`` for its search path."""
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = spec.submodule_search_locations  # type: ignore[assignment]
        package.__spec__ = spec
        sys.modules[name] = package
