"""The kernel as the first experiment had it: three configs of (BLOCK_T, num_warps, num_stages), heads on the rows.

What the demo and the tutorial deploy, for a story about tiles, warps and stages needs a kernel that has them; and what
docs/h200 was measured with. ``sparse_mla_decode.py`` beside this folder does the same job several times faster.
"""
