"""Versions of what the engine's Python has installed, from its metadata: imports nothing of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Dict, Optional


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers the version of Python and of each distribution of ``request["distributions"]``; None when not there."""
    return {
        "python": platform.python_version(),
        "distributions": {name: _version(name) for name in request["distributions"]},
    }


def _version(name: str) -> Optional[str]:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
