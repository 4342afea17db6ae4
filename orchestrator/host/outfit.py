"""What an interpreter would load and has installed: where modules come from, versions, and imports that fail.

Run in an interpreter started like the engine's, or like the load client's. Imports only the names that it is given
for that; they are those of the standard library.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, Optional

from . import resolve, versions


def main(request: Dict[str, Any]) -> Dict[str, Any]:
    """Answers what ``resolve`` and ``versions`` answer, and why each of ``request["imports"]`` fails that does."""
    answer = resolve.main(request)
    answer.update(versions.main(request))
    why = {name: _why_not_imported(name) for name in request["imports"]}
    answer["failed_imports"] = {name: reason for name, reason in why.items() if reason}
    return answer


def _why_not_imported(name: str) -> Optional[str]:
    try:
        importlib.import_module(name)
    except Exception as exc:  # whatever a broken installation raises: it is told, and the next one is tried
        return "%s: %s" % (type(exc).__name__, exc)
    return None
