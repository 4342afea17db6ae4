"""What each client means by a number, in words: shown where numbers of several clients stand side by side.

Read in the clients' sources (SGLang 0.5.9 and 0.5.23, vLLM 0.32.0, GuideLLM 0.8.1, AIPerf 0.13.0) and tried on a server
that says when it sent what. docs/clients.md has them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """A quantity, and what the clients mean by it.

    Attributes:
        by_client: only where it is not what ``common`` says.
    """

    quantity: str
    common: str
    by_client: Mapping[str, str]


DEFINITIONS = (
    Definition(
        "output_tokens_per_s",
        "output tokens of all requests ÷ time from the first request to the end of the last",
        {
            "sglang": "the time begins before its first request; with SGLang one question to the server is in it",
            "vllm": "the time begins before its first request",
            "aiperf": "its tokens ÷ its benchmark_duration",
            "guidellm": "of its records of requests, from the first start to the last end",
        },
    ),
    Definition(
        "ttft_ms",
        "request sent to first chunk with a text",
        {
            "vllm": "to the first chunk, also without a text; a new connection may be in it",
            "sglang": "a new connection for every request is in it",
        },
    ),
    Definition(
        "tpot_ms",
        "(end − first chunk) ÷ (tokens − 1); the end is that of the last chunk with a text or a finish reason",
        {
            "sglang": "the end is that of the whole answer",
            "guidellm": "the end is the last chunk with a text",
            "aiperf": "the end is the last chunk with a text",
        },
    ),
    Definition(
        "itl_ms",
        "gaps between chunks with a text, of all requests",
        {
            "vllm": "a last chunk without a text counts as a gap",
            "sglang": "not measured by its native backend",
            "guidellm": "not measured",
        },
    ),
    Definition(
        "e2el_ms",
        "request sent to the last chunk with a text or a finish reason",
        {
            "sglang": "to the end of the answer",
            "guidellm": "to the end of the answer",
            "aiperf": "to the last chunk with a text",
        },
    ),
    Definition(
        "prompts",
        "text of so many tokens by the client's tokenizer; the engine may count others",
        {"loadgen": "token ids", "sglang": "token ids to SGLang itself, else text"},
    ),
)

NOT_COMPARED = (
    "numbers of two clients differ by these definitions and by the clients' own errors: compare arms, each measured by "
    "the same client, never clients"
)


def definitions_of(clients: Iterable[str]) -> list[Definition]:
    """Every quantity, with what differs for these clients alone."""
    wanted = set(clients)
    return [
        Definition(one.quantity, one.common, {name: text for name, text in one.by_client.items() if name in wanted})
        for one in DEFINITIONS
    ]
