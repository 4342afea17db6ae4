"""``transformers serve`` of Hugging Face, 5.x.

Read in ``src/transformers/cli/serving/server.py`` of huggingface/transformers: ``/health`` and ``/v1/models``, and no
route for a version, arguments, metrics or a cache. Its version is that of the installed package.
"""

from __future__ import annotations

from orchestrator.engines.base import EngineKnowledge

TRANSFORMERS = EngineKnowledge(kind="transformers", distributions=("transformers",))
