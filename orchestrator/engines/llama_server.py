"""llama-server of llama.cpp.

Tried on build 10434: ``/props`` has ``build_info`` and what was made of the arguments; ``/metrics`` needs
``--metrics``; all four paths answer 503 until the model is loaded. ``llamacpp:prompt_tokens_total`` counts prompt
tokens that were computed, those of the cache are counted apart (since August 2026; an older one does not tell). It
takes nothing back for want of KV pages. ``n_ctx`` is of one slot or of all, by ``--kv-unified``, which is not told, so
it does not tell the size of the pool. Nothing flushes all slots at once. Names from ``tools/server/README.md`` of
ggml-org/llama.cpp.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge, Place

LLAMA_SERVER = EngineKnowledge(
    kind="llama-server",
    version=Place("/props", ("build_info",)),
    arguments={
        "total_slots": Place("/props", ("total_slots",)),
        "model_ftype": Place("/props", ("model_ftype",)),
        "speculative_types": Place("/props", ("default_generation_settings", "params", "speculative.types")),
        "backend_sampling": Place("/props", ("default_generation_settings", "params", "backend_sampling")),
        "n_ctx": Place("/props", ("default_generation_settings", "n_ctx")),
        "model_path": Place("/props", ("model_path",)),
    },
    metrics_option="--metrics",
    prefix_hits=("llamacpp:prompt_tokens_cached_total",),
    prefix_queries=(("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),),
)
