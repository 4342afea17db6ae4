"""Draws what ``microbench.py`` measured: µs against batch, one panel a number of heads, both axes logarithmic.

Readable in black and white: lines differ by marker and dash, not by colour; the lower bounds are thin and grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel.microbench import Row

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.")
FLOOR_DASHES = {"memory": (0, (1, 1)), "dequantisation": (0, (5, 2)), "tensor": (0, (7, 2, 1, 2))}
INK, MUTED = "#000000", "#777777"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure. The same rows give the same bytes with the same matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    heads = sorted({row.n_heads for row in rows})
    labels_of = dict.fromkeys((row.name for row in rows), "")
    for name in labels_of:
        is_timed = any(row.call_us is not None for row in rows if row.name == name)
        labels_of[name] = name if is_timed else f"{name} (not timed)"
    with matplotlib.rc_context({"svg.hashsalt": "orch", "svg.fonttype": "path", "text.parse_math": False}):
        figure = Figure(figsize=(1 + 5 * len(heads), 4.8), layout="constrained")
        panels = figure.subplots(1, len(heads), sharey=True, squeeze=False)[0]
        for panel, n_heads in zip(panels, heads, strict=True):
            _draw_panel(panel, [row for row in rows if row.n_heads == n_heads], labels_of)
            panel.set_title(f"{n_heads} heads", loc="left")
        panels[0].set_ylabel("µs a call")
        handles, labels = panels[0].get_legend_handles_labels()
        n_floors = len(handles) - len(labels_of)  # matplotlib lists plain lines first; here the measured ones are
        handles, labels = handles[n_floors:] + handles[:n_floors], labels[n_floors:] + labels[:n_floors]
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(panel: Any, rows: Sequence[Row], labels_of: Mapping[str, str]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    batches = sorted({row.batch for row in rows})
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for number, (name, label) in enumerate(labels_of.items()):
        points = sorted(
            (row.batch, row.call_us, row.low_us, row.high_us)
            for row in rows
            if row.name == name and row.call_us is not None and row.low_us is not None and row.high_us is not None
        )
        panel.errorbar(
            [batch for batch, _, _, _ in points],
            [us for _, us, _, _ in points],
            yerr=[[us - low for _, us, low, _ in points], [high - us for _, us, _, high in points]],
            label=label,
            color=INK,
            marker=MARKERS[number % len(MARKERS)],
            markerfacecolor="white" if number % 2 else INK,
            linestyle=DASHES[number % len(DASHES)],
            linewidth=1.2,
            capsize=2,
        )
    for floor, dashes in FLOOR_DASHES.items():
        known = {row.batch: row.floors_us[floor] for row in rows if row.floors_us[floor] is not None}
        if known:
            us = [known[batch] for batch in batches]
            panel.plot(batches, us, color=MUTED, linewidth=0.9, linestyle=dashes, label=f"floor: {floor}")
    panel.set_xlabel("batch")
    panel.xaxis.set_major_locator(FixedLocator(batches))
    panel.xaxis.set_minor_locator(NullLocator())
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.tick_params(axis="x", labelsize="small")
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
