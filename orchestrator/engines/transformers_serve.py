"""``transformers serve`` of Hugging Face, 5.x.

Read in ``src/transformers/cli/serving/server.py`` of huggingface/transformers: ``/health`` and ``/v1/models``, and no
route for a version, arguments, metrics or a cache. Its version is that of the installed package. Seen with 5.19.0:
started, ready at ``/health``, proved and stopped by orch; a completion with ``ignore_eos`` is answered with 422. A
prompt that is a list of token ids is refused in ``completion.py`` (400).
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge

TRANSFORMERS = EngineKnowledge(
    kind="transformers",
    distributions=("transformers",),
    refuses="it takes no ignore_eos, without which answers have no fixed length, and no token ids as a prompt",
)
