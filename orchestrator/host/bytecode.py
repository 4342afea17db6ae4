"""Whether a cached bytecode file (``.pyc``) was made from the source that lies beside it now.

Python trusts what the header names (PEP 552): the source's whole-second mtime and its size, or its hash. Both can be
met by other bytes, so where the header fits, the source is also compiled (never run) and the two codes are compared.
"""

from __future__ import annotations

import importlib.util
import marshal
import types
from typing import Any, NamedTuple, Optional, Tuple

HEADER_LENGTH = 16
_HASH_BASED, _CHECKED = 1, 2
_CODE_FIELDS = (
    "co_name",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_firstlineno",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_code",
)


class Source(NamedTuple):
    """A source file as the engine sees it: its name for the compiler, bytes, whole-second mtime."""

    path: str
    content: bytes
    mtime_s: int


def judge(source: Source, cached: Optional[bytes], optimize: int) -> Tuple[Optional[str], str]:
    """``fresh``, ``stale`` or None (no bytecode there), and why.

    Args:
        cached: content of the ``.pyc`` that the interpreter would use.
        optimize: the interpreter's ``-O`` level.
    """
    if cached is None:
        return None, ""
    if len(cached) < HEADER_LENGTH or cached[:4] != importlib.util.MAGIC_NUMBER:
        return "stale", "it is of another version of Python, or cut"
    mismatch = _header_mismatch(source, cached)
    if mismatch:
        return "stale", mismatch
    try:
        code = marshal.loads(cached[HEADER_LENGTH:])
        compiled = compile(source.content, source.path, "exec", dont_inherit=True, optimize=optimize)
    except (ValueError, EOFError, TypeError, SyntaxError) as exc:
        return "stale", "it cannot be compared: %s" % exc
    if not _same_code(code, compiled):
        return "stale", "its header fits this source, but its code is that of another one"
    return "fresh", ""


def _header_mismatch(source: Source, cached: bytes) -> str:
    """What the header says that the source is not; empty when it fits."""
    flags = int.from_bytes(cached[4:8], "little")
    if flags & _HASH_BASED:
        if cached[8:16] == importlib.util.source_hash(source.content):
            return ""
        return "it names the hash of another source" + ("" if flags & _CHECKED else ", and Python does not check it")
    mtime_s, size_bytes = int.from_bytes(cached[8:12], "little"), int.from_bytes(cached[12:16], "little")
    own = source.mtime_s & 0xFFFFFFFF, len(source.content) & 0xFFFFFFFF
    if (mtime_s, size_bytes) == own:
        return ""
    return "it names mtime %d and size %d, the source has %d and %d" % (mtime_s, size_bytes, *own)


def _same_code(left: Any, right: Any) -> bool:
    """Whether two code objects do the same; columns of error messages may differ (``-X no_debug_ranges``)."""
    if not isinstance(left, types.CodeType) or not isinstance(right, types.CodeType):
        return False
    return all(getattr(left, field, None) == getattr(right, field, None) for field in _CODE_FIELDS) and (
        _same_constant(left.co_consts, right.co_consts)
    )


def _same_constant(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, types.CodeType):
        return _same_code(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_same_constant, left, right))
    if isinstance(left, (float, complex)):  # 0.0 is not -0.0, and a NaN equals itself
        return repr(left) == repr(right)
    return bool(left == right)
