"""A llama model of random weights in llama.cpp's file format, written at test time: nothing to download.

The format is simple enough to be written here: header, key-value pairs, table of tensors, tensors at multiples of 32.
The vocabulary is the 256 bytes after three special tokens. Rows of the output matrix are zero for every token that is
not a printable ASCII character, so that greedy decoding never ends a sequence and never makes half a character.

Source: docs/gguf.md of ggml-org/ggml (the layout); names of keys and tensors as ``LlamaModel`` has them in
convert_hf_to_gguf.py of ggml-org/llama.cpp; ``bytes_to_unicode`` of openai/gpt-2 (how its tokenizer spells a byte).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VERSION = 3
ALIGNMENT_BYTES = 32
_U32, _F32, _BOOL, _TEXT, _ARRAY = 4, 6, 7, 8, 9
_NORMAL, _CONTROL = 1, 3
_TENSOR_TYPES = {"float32": 0, "float16": 1}

N_LAYERS, WIDTH, N_HEADS, N_KV_HEADS, FFN_WIDTH, CONTEXT = 2, 128, 4, 2, 256, 4096
SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>")
FIRST_BYTE_ID = len(SPECIAL_TOKENS)
LAST_BYTE_ID = FIRST_BYTE_ID + 255
"""Prompts may be drawn from here to here."""


def write(path: Path, *, seed: int = 42) -> Path:
    """Writes the model, 0.7 MB, and returns its path."""
    pairs, tensors = _pairs(), _tensors(np.random.default_rng(seed))
    head = struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(pairs)) + b"".join(pairs)
    offset_bytes, table, content = 0, b"", b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # the fastest dimension first
        table += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table += struct.pack("<IQ", _TENSOR_TYPES[tensor.dtype.name], offset_bytes)
        content += _padded(tensor.tobytes())
        offset_bytes = len(content)
    path.write_bytes(_padded(head + table) + content)
    return path


def _pairs() -> list[bytes]:
    """Every key with its value."""
    bytes_spelled = _bytes_as_gpt2_spells_them()
    tokens = [*SPECIAL_TOKENS, *bytes_spelled]
    types = [_CONTROL] * len(SPECIAL_TOKENS) + [_NORMAL] * len(bytes_spelled)
    return [
        _pair("general.architecture", _TEXT, _text("llama")),
        _pair("general.name", _TEXT, _text("tiny")),
        _number("llama.context_length", CONTEXT),
        _number("llama.embedding_length", WIDTH),
        _number("llama.block_count", N_LAYERS),
        _number("llama.feed_forward_length", FFN_WIDTH),
        _number("llama.attention.head_count", N_HEADS),
        _number("llama.attention.head_count_kv", N_KV_HEADS),
        _number("llama.rope.dimension_count", WIDTH // N_HEADS),
        _number("llama.vocab_size", len(tokens)),
        _pair("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _pair("tokenizer.ggml.model", _TEXT, _text("gpt2")),
        _pair("tokenizer.ggml.pre", _TEXT, _text("gpt-2")),
        _array("tokenizer.ggml.tokens", _TEXT, [_text(token) for token in tokens]),
        _array("tokenizer.ggml.token_type", _U32 + 1, [struct.pack("<i", one) for one in types]),
        _array("tokenizer.ggml.merges", _TEXT, []),
        *(
            _number(f"tokenizer.ggml.{name}_token_id", id_)
            for name, id_ in zip(("bos", "eos", "padding"), range(3), strict=True)
        ),
        _pair("tokenizer.ggml.add_bos_token", _BOOL, b"\0"),
    ]


def _tensors(random: np.random.Generator) -> dict[str, NDArray[np.floating]]:
    """The weights by name."""
    n_tokens = LAST_BYTE_ID + 1

    def matrix(n_out: int, n_in: int) -> NDArray[np.floating]:
        return (random.standard_normal((n_out, n_in)) / np.sqrt(n_in)).astype(np.float16)

    kv_width = WIDTH * N_KV_HEADS // N_HEADS
    output = matrix(n_tokens, WIDTH)
    printable = range(FIRST_BYTE_ID + ord(" "), FIRST_BYTE_ID + ord("~") + 1)
    output[[id_ for id_ in range(n_tokens) if id_ not in printable]] = 0
    tensors = {
        "token_embd.weight": matrix(n_tokens, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output,
    }
    for layer in range(N_LAYERS):
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (kv_width, WIDTH), "attn_v": (kv_width, WIDTH)}
        shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (FFN_WIDTH, WIDTH), "ffn_up": (FFN_WIDTH, WIDTH)}
        shapes |= {"ffn_down": (WIDTH, FFN_WIDTH)}
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": np.ones(WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")}
    return tensors


def _bytes_as_gpt2_spells_them() -> list[str]:
    """One character for each of the 256 bytes: itself where it is printable, one from U+0100 on where it is not."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _number(key: str, value: int) -> bytes:
    return _pair(key, _U32, struct.pack("<I", value))


def _array(key: str, kind: int, values: list[bytes]) -> bytes:
    return _pair(key, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGNMENT_BYTES)
