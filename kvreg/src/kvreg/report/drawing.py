"""How figures look and how they become the same bytes every time."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Okabe and Ito's colours, with line styles and signs that do without them.
COLOURS = ("#0069a8", "#c34a00", "#007a5a", "#93428a")
DASHES = ("-", "--", ":", "-.")
SIGNS = ("o", "s", "^", "D")
PAYS, GATED, SOFT = "#00664b", "#8a4b00", "#59626b"

_STYLE = {
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8b4aa",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": "#e9e6de",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.markersize": 4,
    "svg.fonttype": "path",
    "svg.hashsalt": "kvreg",
    "hatch.linewidth": 0.7,
}


@contextmanager
def style() -> Iterator[Any]:
    """Draw in the report's style; gives the class of figures. No display is needed."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):

        def make(*args: Any, **kwargs: Any) -> Figure:
            figure = Figure(*args, **kwargs)
            FigureCanvasAgg(figure)
            return figure

        yield make


def rendered(figure: Any) -> dict[str, bytes]:
    """The figure as ``svg`` and ``png``, without dates, versions or random names."""
    formats: dict[str, dict[str, Any]] = {
        "svg": {"metadata": {"Date": None, "Creator": None}},
        "png": {"metadata": {"Software": None}, "dpi": 150},
    }
    files = {}
    for name, options in formats.items():
        out = io.BytesIO()
        figure.savefig(out, format=name, **options)
        files[name] = out.getvalue()
    return files


def canvas(make: Any, width: float, height: float, rows: int, columns: int) -> tuple[Any, Any]:
    """A figure of that many inches and its grid of axes, with room for a legend and a stamp.

    Places are set, not searched for: that halves the time of a figure.
    """
    figure = make(figsize=(width, height))
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.72 / width,
        right=1 - 0.1 / width,
        top=1 - 0.62 / height,
        bottom=0.62 / height,
        wspace=0.24,
        hspace=0.46,
    )
    return figure, grid


def stamp(figure: Any, text: str) -> None:
    """A line at the foot."""
    figure.text(0.008, 0.05 / figure.get_figheight(), text, fontsize=6.5, color=SOFT)


def literal(text: object) -> str:
    """Text that matplotlib shall not read as mathematics."""
    return str(text).replace("$", r"\$")


def concurrency_axis(axes: Any, levels: list[int]) -> None:
    """A logarithmic axis with the tested concurrencies as its marks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.minorticks_off()
    axes.set_xlim(min(levels) / 1.35, max(levels) * 1.35)


def gated_levels(axes: Any, levels: list[int]) -> None:
    """Hatch the concurrencies that have no valid comparison."""
    for level in levels:
        axes.axvspan(
            level / 1.25, level * 1.25, facecolor="#fbeccf", edgecolor=GATED, hatch="////",
            linewidth=0, zorder=0,
        )  # fmt: skip
