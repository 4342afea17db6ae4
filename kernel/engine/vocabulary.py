"""Text to token ids and back. Tokens 0 … 255 are bytes; every token, of whatever id, has some visible text.

There is no trained vocabulary, as there is no trained model: what matters is that one token is one piece of text that
a client can see and count.
"""

from __future__ import annotations

N_BYTE_TOKENS = 256
EOS_TOKEN_ID = 0


def tokens_of(text: str) -> list[int]:
    """The UTF-8 bytes of ``text``, one token each."""
    return list(text.encode())


def text_of(token_id: int) -> str:
    """Visible, never empty: printable ASCII as itself, other bytes as ``<0a>``, other tokens as `` t1234``."""
    if token_id >= N_BYTE_TOKENS:
        return f" t{token_id}"
    return chr(token_id) if 32 <= token_id < 127 else f"<{token_id:02x}>"
