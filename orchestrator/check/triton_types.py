"""Names of Triton's types: those of a signature (``i32``, ``bf16``), and what its language and torch call them.

Source: ``type_canonicalisation_dict`` in ``triton/_utils.py`` and ``str_to_ty`` in ``triton/language/__init__.py``.
"""

from __future__ import annotations

_CALLED = {
    "i1": ("bool", "int1", "u1", "uint1"),
    "i8": ("int8",),
    "i16": ("int16",),
    "i32": ("int", "int32"),
    "i64": ("int64",),
    "u8": ("uint8",),
    "u16": ("uint16",),
    "u32": ("uint32",),
    "u64": ("uint64",),
    "fp8e4nv": ("float8e4nv", "float8_e4m3fn"),
    "fp8e5": ("float8e5", "float8_e5m2"),
    "fp8e4b8": ("float8e4b8", "float8_e4m3fnuz"),
    "fp8e5b16": ("float8e5b16", "float8_e5m2fnuz"),
    "fp8e4b15": ("float8e4b15",),
    "fp16": ("float16", "half"),
    "bf16": ("bfloat16",),
    "fp32": ("float32", "float"),
    "fp64": ("float64", "double"),
}

TYPES = {name: canonical for canonical, others in _CALLED.items() for name in (canonical, *others)}
"""By any name, the one that a signature takes. Only whole numbers have names that begin with ``i`` or ``u`` there."""
