"""The kernel file of the seed's shape, what an inventory says of its arguments, and what it must come to."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("seed_kernel.py")
KERNEL = "sparse_mla_decode"

ARGUMENTS: dict[str, str | int] = {
    "query_ptr": "*bf16:16",
    "pool_fp8_ptr": "*fp8e4nv:16",
    "pool_u8_ptr": "*u8:16",
    "pool_bf16_ptr": "*bf16:16",
    "index_ptr": "*i64:16",
    "length_ptr": "*i32:16",
    "out_ptr": "*bf16:16",
    "lse_ptr": "*fp32:16",
    "sm_scale": "fp32",
    "page_size": "i32:16",
    "page_bytes": "i32:16",
    "n_heads": "i32:16",
    "topk": "i32:16",
    "*_stride_*": "i32:16",
    "SPLITS": 8,
}
"""In the inventory's notation (``check.arguments``)."""

SHARED_BYTES_BY_STAGES = {2: 61_568, 3: 61_696, 4: 61_696, 5: 72_192, 6: 72_192, 7: 82_688}
"""At BLOCK_H 16, BLOCK_T 16: 60.12, 60.25, 70.50 and 80.75 KiB."""

EXACT_WITH = ("3.7.", "3.8.", "3.9.")
"""Versions of Triton in which those bytes are exact; 3.5 and 3.6 keep one small index buffer more from 3 stages on."""
