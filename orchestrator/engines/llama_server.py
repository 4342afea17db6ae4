"""llama-server of llama.cpp.

Read in ``tools/server/README.md`` and ``tools/server/tests/unit/test_metrics.py`` of ggml-org/llama.cpp: ``/props`` has
``build_info``; ``/metrics`` needs ``--metrics``; ``/health`` and ``/v1/models`` answer 503 until the model is loaded.
``llamacpp:prompt_tokens_total`` counts prompt tokens that were computed, those of the cache are counted apart (since
August 2026; an older one does not tell). It takes nothing back for want of KV pages. ``n_ctx`` is of one slot or of
all, by ``--kv-unified``, so it does not tell the size of the pool. Nothing flushes all slots at once.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge, Place

LLAMA_SERVER = EngineKnowledge(
    kind="llama-server",
    version=Place("/props", ("build_info",)),
    arguments={
        "total_slots": Place("/props", ("total_slots",)),
        "n_ctx": Place("/props", ("default_generation_settings", "n_ctx")),
        "model_path": Place("/props", ("model_path",)),
    },
    metrics_option="--metrics",
    prefix_hits=("llamacpp:prompt_tokens_cached_total",),
    prefix_queries=(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
)
