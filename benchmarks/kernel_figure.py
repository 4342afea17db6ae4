"""Draws docs/kernel.svg: a tile of the decode kernel, its operands, and how tiles are shared out.

    python -m benchmarks.kernel_figure docs/kernel.svg

The same bytes with the same version of matplotlib.
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib

INK, MUTED = "#222222", "#777777"
SHARED, REGISTERS, MEMORY = "#cfe3ea", "#f3dccf", "#e8e8e8"
PROGRAMS = ("#1f6f8b", "#c2603f", "#7a9e3c")
NEXT_BYTES = """bytes of the next tile

128 × (448 fp8
+ 64 bf16
+ 7 scales)

to registers:
asked for early,
decoded late"""
N_ROWS, N_TILES, TILES_A_PROGRAM = 5, 4, 7


def main() -> None:
    """Draws both panels into the file named on the command line."""
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orch", "font.size": 10, "svg.fonttype": "path", "text.color": INK})
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(11, 8.6), height_ratios=(1.75, 1), layout="constrained")
    draw_tile(top)
    draw_shares(bottom)
    figure.savefig(sys.argv[1], metadata={"Date": None} if sys.argv[1].endswith(".svg") else None)


def draw_tile(axes: Any) -> None:
    """One iteration: 128 tokens, 16 heads, 8 warps."""
    axes.set_title("One tile: 128 tokens of one row, 16 heads, 8 warps", fontsize=11, loc="left")
    _box(
        axes,
        (0, 44),
        (17, 40),
        MEMORY,
        NEXT_BYTES,
    )
    _box(axes, (29, 44), (27, 40), SHARED, "")
    for warp in range(8):
        y = 44 + 5 * warp
        axes.plot([29, 56], [y, y], color=MUTED, linewidth=0.6)
        axes.text(
            57, y + 2.5, f"warp {7 - warp}: tokens {16 * (7 - warp)} to {16 * (7 - warp) + 15}", va="center", fontsize=8
        )
    axes.text(
        42.5,
        64,
        "KV tile, bf16\n128 tokens × 512\n128 KiB",
        ha="center",
        va="center",
        fontweight="bold",
        bbox={"facecolor": SHARED, "edgecolor": "none"},
    )
    _arrow(axes, (17, 64), (29, 64))
    axes.text(23, 66, "decode", ha="center", fontsize=9)
    axes.text(23, 60, "at the end of\nthe iteration", ha="center", va="top", fontsize=8, color=MUTED)
    axes.text(42.5, 86, "512 numbers of a token: K and V are the same", ha="center", fontsize=9)

    _box(axes, (79, 71), (10, 13), SHARED, "Qᵀ\n512 × 16\n16 KiB")
    _box(axes, (94, 58), (12, 26), REGISTERS, "Sᵀ\n128 × 16\nfp32")
    _arrow(axes, (89, 77.5), (94, 77.5))
    _arrow(axes, (77, 66), (94, 66))
    axes.text(85, 59.5, "Sᵀ = KV · Qᵀ\ntokens on M,\nheads on N", ha="center", va="center", fontsize=9)
    _arrow(axes, (100, 58), (100, 49))
    axes.text(101, 53.5, "softmax: maximum of a head over\nall warps, through shared memory", va="center", fontsize=8)
    _box(axes, (94, 35), (12, 14), SHARED, "Pᵀ 128 × 16\nbf16, 4 KiB")

    _box(
        axes,
        (29, 4),
        (27, 28),
        REGISTERS,
        "Oᵀ, 512 × 16, fp32\n\nOᵀ += KVᵀ · Pᵀ\n\nof each 128 numbers\nwarp w has 16 w to 16 w + 15",
    )
    _arrow(axes, (42.5, 44), (42.5, 32))
    axes.text(43.5, 38, "the same copy, transposed by wgmma", va="center", fontsize=8)
    axes.annotate(
        "",
        (56, 18),
        (100, 35),
        arrowprops={"arrowstyle": "->", "color": INK, "connectionstyle": "angle,angleA=0,angleB=90"},
    )
    axes.text(57, 20, "weights", fontsize=8)
    for x, colour, words in ((0, SHARED, "shared memory"), (0, REGISTERS, "registers"), (0, MEMORY, "global memory")):
        y = {SHARED: 22, REGISTERS: 14, MEMORY: 6}[colour]
        _box(axes, (x, y), (4, 5), colour, "")
        axes.text(x + 5, y + 2.5, words, va="center", fontsize=9)
    axes.set(xlim=(-1, 126), ylim=(2, 90))
    axes.axis("off")


def draw_shares(axes: Any) -> None:
    """Rows cut into tiles, tiles shared out in equal runs, shared rows merged."""
    axes.set_title(
        "All tiles in one line, cut into equal runs: 5 rows of 4 tiles, 3 programs of at most 7",
        fontsize=11,
        loc="left",
    )
    for number in range(N_ROWS * N_TILES):
        row, program = divmod(number, N_TILES)[0], number // TILES_A_PROGRAM
        x = 6 * number + 0.5 * row
        _box(axes, (x, 20), (6, 10), PROGRAMS[program], str(number % N_TILES), colour="white")
    for row in range(N_ROWS):
        begin = 6.5 * row * N_TILES - 1.5 * row
        axes.text(begin + 12, 33, f"row {row}", ha="center", fontsize=9)
        programs = sorted({(row * N_TILES + tile) // TILES_A_PROGRAM for tile in range(N_TILES)})
        is_shared = len(programs) > 1
        words = (
            "merge kernel:\nparts of programs " + " and ".join(map(str, programs))
            if is_shared
            else f"written by\nprogram {programs[0]}"
        )
        axes.text(begin + 12, 9, words, ha="center", va="center", fontsize=8.5, color=INK)
        _arrow(axes, (begin + 12, 20), (begin + 12, 13))
    for program, colour in enumerate(PROGRAMS):
        _box(axes, (34 * program, 40), (3, 4), colour, "")
        axes.text(34 * program + 4, 42, f"program {program}, one SM", va="center", fontsize=9)
    axes.text(
        0,
        1,
        "A part is the running maximum, the sum of weights and the weighted values of 16 heads: fp32, 32.1 KiB.",
        fontsize=8.5,
    )
    axes.set(xlim=(-1, 126), ylim=(0, 46))
    axes.axis("off")


def _box(
    axes: Any, corner: tuple[float, float], size: tuple[float, float], fill: str, words: str, colour: str = INK
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(corner, *size, facecolor=fill, edgecolor=INK, linewidth=0.8))
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    axes.text(x, y, words, ha="center", va="center", fontsize=9, color=colour)


def _arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": INK})


if __name__ == "__main__":
    main()
