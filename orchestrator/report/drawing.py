"""How charts look, and how a figure of the plotting library becomes SVG inside a page. Knows no experiment.

Colours are CSS variables of the page (light, dark, print), written by way of stand-ins that the library takes for
colours; text stays text, in the page's own font. A figure's unit is one CSS pixel at the width that it is made for.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_ARM_STYLES = 7
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Arms differ by shape as well as by colour; the first is the baseline's. The legend of the page has the same."""

INK, MUTED, GRID, PAPER, BAND, ALARM = (f"#0101{i:02x}" for i in range(0x10, 0x16))
ARM_COLOURS = tuple(f"#0101{i:02x}" for i in range(0x20, 0x20 + N_ARM_STYLES))
_VARIABLES = {
    **dict(
        zip((INK, MUTED, GRID, PAPER, BAND, ALARM), ("ink", "muted", "grid", "paper", "band", "alarm"), strict=True)
    ),
    **{colour: f"arm{i}" for i, colour in enumerate(ARM_COLOURS)},
}


@dataclass(frozen=True, slots=True)
class Form:
    """For which screen a chart is drawn; the page shows one of the two.

    Attributes:
        width: in CSS pixels. font: size of most text, in the same. n_columns: panels side by side.
    """

    name: str
    width: int
    font: float
    n_columns: int

    @property
    def is_narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.n_columns == 1


WIDE = Form("wide", 840, 12.0, 3)
NARROW = Form("narrow", 360, 12.0, 1)


def style_of(i: int) -> tuple[str, str]:
    """Colour and marker of the i-th arm; they come again after seven."""
    return ARM_COLOURS[i % N_ARM_STYLES], MARKERS[i % N_ARM_STYLES]


@contextmanager
def figure(form: Form, height: float) -> Iterator[Figure]:
    """An empty figure in the page's style; what is drawn must be drawn, and turned to SVG, inside the block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_settings(form)):
        yield Figure(figsize=(form.width / 72, height / 72), dpi=72, layout="constrained", facecolor="none")


def _settings(form: Form) -> Any:  # the library's own type for it lists every setting, and differs by version
    return {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "orch",
        "font.size": form.font,
        "axes.titlesize": form.font,
        "axes.labelsize": form.font,
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.titlepad": 8,
        "axes.labelcolor": MUTED,
        "axes.facecolor": "none",
        "axes.edgecolor": MUTED,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": form.font - 1,
        "ytick.labelsize": form.font - 1,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "lines.linewidth": 1.6,
        "lines.markersize": 6,
        "figure.constrained_layout.h_pad": 5 / 72,
        "figure.constrained_layout.w_pad": 5 / 72,
    }


def svg_of(made: Figure, *, chart: str, form: Form, label: str) -> str:
    """The figure as one ``<svg>`` element for a page.

    Args:
        chart: of which every id in it is made, so that ids are unique on the page.
        label: what the chart shows, for people who cannot see it.
    """
    buffer = io.StringIO()
    made.savefig(
        buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg ")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{chart}-{form.name}-', body)
    body = re.sub(r'(xlink:href="|url\()#', rf"\1#{chart}-{form.name}-", body).replace("xlink:href", "href")
    body = re.sub(r"font: ([^;\"']*?px)[^;\"]*", r"font: \1 var(--sans)", body)
    body = re.sub(r"#0101[0-9a-f]{2}", lambda found: f"var(--{_VARIABLES[found[0]]})", body)
    height = made.get_figheight() * 72
    return (
        f'<svg class="{form.name}" viewBox="0 0 {form.width} {height:g}" role="img" aria-label="{_attribute(label)}">'
        f"{_compact(body)}"
    )


def _compact(body: str) -> str:
    """Coordinates with two digits after the point, in one line: half the size. Text between tags is not touched."""
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"-?\d+\.\d{3,}", _rounded, tag[0]), body)
    return re.sub(r"\s+", " ", body).strip()


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


def apart(positions: Sequence[float], least: float, *, first: int = 0) -> list[bool]:
    """Which labels may be drawn so that none is nearer to another than ``least``; the ``first`` one always is.

    Args:
        positions: rising or not, in pixels.
    """
    shown: list[float] = []
    may = [False] * len(positions)
    for i in [first, *(i for i in reversed(range(len(positions))) if i != first)]:
        if positions and all(abs(positions[i] - other) >= least for other in shown):
            may[i] = True
            shown.append(positions[i])
    return may
