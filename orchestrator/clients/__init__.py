"""Load clients by name. Each adapter is imported only when its client is used."""

from __future__ import annotations

import importlib

from orchestrator.clients.base import ClientRun, ExitEvidence, LoadClient, ParsedLoad
from orchestrator.errors import UnknownNameError

__all__ = ["CLIENTS", "ClientRun", "ExitEvidence", "LoadClient", "ParsedLoad", "load_client"]

CLIENTS = {
    "loadgen": "orchestrator.clients.loadgen_adapter:LoadgenClient",
    "sglang": "orchestrator.clients.sglang:SglangClient",
    "vllm": "orchestrator.clients.vllm:VllmClient",
    "guidellm": "orchestrator.clients.guidellm:GuidellmClient",
    "aiperf": "orchestrator.clients.aiperf:AiperfClient",
}
"""Name in the inventory → module and class."""


def load_client(name: str) -> LoadClient:
    """The adapter of a load client.

    Raises:
        UnknownNameError: there is no such client.
    """
    if name not in CLIENTS:
        raise UnknownNameError(f"no load client {name!r}", next_step="use one of: " + ", ".join(sorted(CLIENTS)))
    module, _, factory = CLIENTS[name].partition(":")
    client: LoadClient = getattr(importlib.import_module(module), factory)()
    return client
