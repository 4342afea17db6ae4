"""OpenAI's completions protocol: bodies checked into records, records written as JSON. No HTTP, no engine.

Every field is either obeyed or refused. Fields that this engine cannot obey are accepted at the value that means
"off" (``n`` 1, ``top_p`` 1, …), which load clients send, and refused otherwise: silently another distribution or
another length would make a measurement wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kernel.engine.options import EngineOptions
from kernel.engine.vocabulary import text_of, tokens_of

DEFAULT_MAX_TOKENS = 16

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None,),
    "suffix": (None, ""),
    "stop": (None, [], ""),
    "top_p": (None, 1),
    "top_k": (None, -1, 0),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
}
WITHOUT_EFFECT = ("user", "seed")  # greedy decoding draws nothing, so every seed is honoured
OBEYED = ("model", "prompt", "max_tokens", "temperature", "ignore_eos", "stream", "stream_options")


class ProtocolError(Exception):
    """A request that is refused: HTTP status, OpenAI's error type, and the field it is about."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error", field: str | None = None
    ):
        super().__init__(message)
        self.message, self.status, self.kind, self.field = message, status, kind, field

    def as_body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.field, "code": self.status}}


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A checked request.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: output tokens at most.
        ignore_eos: go on past the end-of-sequence token.
        stream: answer as server-sent events, one a token.
        include_usage: a stream ends with a chunk that holds the usage.
        continuous_usage: every chunk holds the usage so far.
    """

    prompt: list[int]
    max_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool


def parse_completion(body: bytes, options: EngineOptions) -> CompletionRequest:
    """Check a request's body.

    Raises:
        ProtocolError: with the field and what it may be.
    """
    fields = _json_object(body)
    _refuse_unsupported(fields)
    model = fields.get("model")
    if model is not None and model != options.model_name:
        message = f"the model {model!r} does not exist; this engine serves {options.model_name!r}"
        raise ProtocolError(message, status=404, kind="not_found_error", field="model")
    temperature = fields.get("temperature")
    if temperature is not None and (not _is_number(temperature) or temperature != 0):
        raise ProtocolError(f"temperature {temperature!r}: only 0, greedy decoding", field="temperature")
    stream_options = _stream_options(fields)
    request = CompletionRequest(
        prompt=_prompt(fields.get("prompt"), options.vocab),
        max_tokens=_max_tokens(fields.get("max_tokens")),
        ignore_eos=_flag(fields, "ignore_eos"),
        stream=_flag(fields, "stream"),
        include_usage=_flag(stream_options, "include_usage"),
        continuous_usage=_flag(stream_options, "continuous_usage_stats"),
    )
    _check_fits(request, options)
    return request


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if name in OBEYED or name in WITHOUT_EFFECT:
            continue
        if name not in NEUTRAL_VALUES:
            raise ProtocolError(f"unknown field {name!r}", field=name)
        if value not in NEUTRAL_VALUES[name]:
            raise ProtocolError(f"{name} {value!r} is not supported; leave it out", field=name)


def _stream_options(fields: dict[str, Any]) -> dict[str, Any]:
    stream_options = fields.get("stream_options") or {}
    known = {"include_usage", "continuous_usage_stats"}
    if not isinstance(stream_options, dict) or not stream_options.keys() <= known:
        raise ProtocolError(f"stream_options may hold {', '.join(sorted(known))} only", field="stream_options")
    if stream_options and not fields.get("stream"):
        raise ProtocolError("stream_options needs stream: true", field="stream_options")
    return stream_options


def _prompt(prompt: Any, vocab: int) -> list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    elif isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        raise ProtocolError(f"{len(prompt)} prompts in one request: send one", field="prompt")
    if isinstance(prompt, str):
        prompt = tokens_of(prompt)
    if not isinstance(prompt, list) or not prompt:
        raise ProtocolError("prompt must be a text or a list of token ids, and not empty", field="prompt")
    for token in prompt:
        if type(token) is not int or not 0 <= token < vocab:
            raise ProtocolError(f"prompt holds {token!r}; token ids are 0 … {vocab - 1}", field="prompt")
    return prompt


def _max_tokens(value: Any) -> int:
    if value is None:
        return DEFAULT_MAX_TOKENS
    if type(value) is not int or value < 1:
        raise ProtocolError(f"max_tokens {value!r}: a whole number, at least 1", field="max_tokens")
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ProtocolError(f"{name} {value!r}: true or false", field=name)
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_fits(request: CompletionRequest, options: EngineOptions) -> None:
    n_tokens = len(request.prompt) + request.max_tokens
    n_most = min(options.max_model_len, (options.n_pages - 1) * options.page_size)
    if n_tokens > n_most:
        message = (
            f"this engine holds at most {n_most} tokens of a request, prompt and output together; this one asks for "
            f"{n_tokens} ({len(request.prompt)} in the prompt, {request.max_tokens} to come)"
        )
        raise ProtocolError(message, field="prompt" if len(request.prompt) >= n_most else "max_tokens")


@dataclass(frozen=True, kw_only=True)
class CompletionHeader:
    """What all objects of one answer share."""

    id: str
    created: int
    model: str

    def completion(
        self, token_ids: list[int], finish_reason: str | None, usage: dict[str, int] | None
    ) -> dict[str, Any]:
        """A completion, or a chunk of one: some tokens, and maybe the end."""
        choice = {
            "index": 0,
            "text": "".join(map(text_of, token_ids)),
            "token_ids": token_ids,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        return self._object([choice], usage)

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The last chunk of a stream that asked for its usage: no choices."""
        return self._object([], usage)

    def _object(self, choices: list[dict[str, Any]], usage: dict[str, int] | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
        }


def usage_of(n_prompt: int, n_output: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {"prompt_tokens": n_prompt, "completion_tokens": n_output, "total_tokens": n_prompt + n_output}


def event_of(payload: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"
