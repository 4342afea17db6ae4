"""The decode engine of this project (``python -m kernel.engine``).

Read in ``kernel/engine/server.py`` and ``kernel/engine/metrics.py``: ``/loaded`` tells the digests of what it imported,
``engine_kv_pages`` the size of its KV pool in pages. A request waits until its pages are free, so none is taken back;
there is no prefix cache. Its version is that of the installed project.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge

KERNEL = EngineKnowledge(
    kind="kernel",
    loaded_path="/loaded",
    distributions=("orch-kernels",),
    kv_pools=("engine_kv_pages",),
)
