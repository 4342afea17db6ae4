"""What is known of the engines that people serve with: facts only, one small file for each kind.

Pure: nothing here asks anybody anything. ``inventory`` takes the defaults of a kind from here, ``provenance`` the
places where an engine tells its version and arguments, ``telemetry`` the names of its counters. Every name is read by
presence: an engine that has another one, or none, leaves the value unknown and nothing fails.

    sglang.py  vllm.py  llama_server.py  transformers_serve.py  kernel_engine.py
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge, Label, Place, PoolLabels, alternatives
from orchestrator.engines.kernel_engine import KERNEL
from orchestrator.engines.llama_server import LLAMA_SERVER
from orchestrator.engines.sglang import SGLANG
from orchestrator.engines.transformers_serve import TRANSFORMERS
from orchestrator.engines.vllm import VLLM
from orchestrator.records import EngineKind

__all__ = ["EngineKnowledge", "Label", "Place", "PoolLabels", "knowledge_of"]

_KNOWN = {one.kind: one for one in (SGLANG, VLLM, LLAMA_SERVER, TRANSFORMERS, KERNEL)}
_OTHER = EngineKnowledge(
    kind="other",
    model=None,
    preemptions=alternatives(one.preemptions for one in _KNOWN.values()),
    kv_pools=alternatives(one.kv_pools for one in _KNOWN.values()),
    kv_pools_in_tokens=alternatives(one.kv_pools_in_tokens for one in _KNOWN.values()),
    pool_labels=VLLM.pool_labels,
    prefix_hits=alternatives(one.prefix_hits for one in _KNOWN.values()),
    prefix_queries=alternatives(one.prefix_queries for one in _KNOWN.values()),
)
"""An engine of no known kind may count under anybody's names; it is asked for nothing else."""


def knowledge_of(kind: EngineKind) -> EngineKnowledge:
    """What is known of a kind."""
    return _KNOWN.get(kind, _OTHER)
