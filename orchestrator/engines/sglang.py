"""SGLang, 0.5.x.

Read back from a running 0.5.23, and in its sources: ``python/sglang/srt/entrypoints/http_server.py`` of
sgl-project/sglang (routes; ``/server_info`` is the fields of ``ServerArgs`` with those of the scheduler and
``version``; ``/flush_cache`` answers 400 while requests run) and ``docs/references/production_metrics.md`` (metrics;
they need ``--enable-metrics``). ``sglang:cached_tokens_total`` has a series for each place that the cache has
(``cache_source``); ``sglang:prompt_tokens_total`` counts whole prompts. The first of these and
``sglang:num_retracted_requests_total`` are not there before they have counted something; ``admission`` knows.
``sglang:num_retracted_reqs`` tells of the last step only, so it is not among the counters. ``/v1/models`` answers 200
while ``/health`` is still 503.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge, Place

_ARGUMENTS = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "sampling_backend"),
    *("dtype", "kv_cache_dtype", "quantization", "page_size", "context_length"),
    *("tp_size", "dp_size", "pp_size", "ep_size", "enable_dp_attention", "moe_runner_backend", "moe_a2a_backend"),
    *("chunked_prefill_size", "max_prefill_tokens", "schedule_policy", "stream_interval"),
    *("disable_radix_cache", "disable_cuda_graph", "disable_overlap_schedule", "enable_torch_compile"),
    *("speculative_algorithm", "speculative_num_steps", "enable_deterministic_inference"),
)

SGLANG = EngineKnowledge(
    kind="sglang",
    cache_flush_path="/flush_cache",
    early_paths=("/v1/models",),
    distributions=("sglang",),
    version=Place("/server_info", ("version",)),
    arguments={name: Place("/server_info", (name,)) for name in _ARGUMENTS},
    pool=Place("/server_info", ("max_total_num_tokens",)),
    metrics_option="--enable-metrics",
    preemptions=(
        "sglang:num_retracted_requests_total",
        "sglang:num_retracted_reqs_total",
        "sglang:total_retracted_reqs",
    ),
    kv_pools=("sglang:max_total_num_tokens",),
    kv_pools_in_tokens=("sglang:max_total_num_tokens",),
    prefix_hits=("sglang:cached_tokens_total",),
    prefix_queries=(("sglang:prompt_tokens_total",),),
)
