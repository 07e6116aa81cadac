"""Figures without pyplot: no global state, nothing shown twice, a PNG when a notebook asks for one."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.units import GIB, KIB, MIB

#: width in inches that reads well in a notebook column
WIDTH = 9.0
DPI = 100


class LabFigure(Figure):
    """A matplotlib `Figure` that displays itself in Jupyter, papermill output and HTML."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def new_figure(width: float = WIDTH, height: float = 3.0, figure: Figure | None = None) -> Figure:
    """An empty figure of that size in inches; `figure` is emptied and used again when given (half the time)."""
    if figure is None:
        figure = LabFigure(figsize=(width, height), dpi=DPI)
        FigureCanvasAgg(figure)
    else:
        figure.clear()
        figure.labkit_map = None  # type: ignore[attr-defined]  # what `draw_layout` knew of it
        figure.set_size_inches(width, height)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG, compressed lightly: for a slider the encoder's time counts more than the size."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def byte_unit(largest: float) -> tuple[float, str]:
    """`(bytes per unit, name)` in which `largest` reads well: GiB from 1 GiB on, then MiB, KiB, B."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if largest >= unit:
            return float(unit), name
    return 1.0, "B"


def margins(figure: Figure, *, left: float, right: float, top: float, bottom: float) -> None:
    """Margins in inches, the same at every height (constrained layout would draw the figure twice)."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height
    )
