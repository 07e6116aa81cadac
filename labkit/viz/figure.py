"""Figures without pyplot: no global state, nothing shown twice, a PNG when a notebook asks for one."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from labkit.units import GIB, KIB, MIB

#: width in inches that reads well in a notebook column
WIDTH = 9.0
DPI = 100
#: zlib's strategy for pictures of flat colour (Z_RLE): faster than the default, and smaller here
RUN_LENGTHS = 3


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
        figure.labkit_map = figure.labkit_moving = figure.labkit_curves = None  # type: ignore[attr-defined]  # nothing known of it
        figure.set_size_inches(width, height)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG, compressed lightly: for a slider the encoder's time counts more than the size.

    `savefig` would draw the same pixels, and encode a fourth channel that is opaque everywhere.
    """
    canvas: Any = figure.canvas
    if has_moving_parts(figure):
        figure.labkit_moving.draw()  # type: ignore[attr-defined]
    else:
        if not isinstance(canvas, FigureCanvasAgg):
            canvas = FigureCanvasAgg(figure)
        canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    buffer = io.BytesIO()
    pixels.save(
        buffer, format="png", compress_level=1, compress_type=RUN_LENGTHS, dpi=(figure.dpi, figure.dpi)
    )
    return buffer.getvalue()


def set_moving_parts(figure: Figure, artists: Callable[[], Sequence[Artist]]) -> None:
    """Promise that until `figure` is emptied only `artists()` change; from then on `png_bytes` draws the rest only once.

    Text takes most of a figure's time, and ticks and labels stay the same while a slider moves. `artists()` names the moving parts
    from the lowest to the topmost; they are drawn over all that stays.
    """
    figure.labkit_moving = _MovingParts(figure, artists)  # type: ignore[attr-defined]


def has_moving_parts(figure: Figure) -> bool:
    return getattr(figure, "labkit_moving", None) is not None


class _MovingParts:
    def __init__(self, figure: Figure, artists: Callable[[], Sequence[Artist]]):
        self.figure, self.artists = figure, artists
        self._still: Any = None

    def draw(self) -> None:
        """Bring the canvas (a `FigureCanvasAgg`) up to date."""
        canvas: Any = self.figure.canvas
        if self._still is None:
            for artist in self.artists():
                artist.set_visible(False)
            canvas.draw()
            self._still = canvas.copy_from_bbox(self.figure.bbox)
            for artist in self.artists():
                artist.set_visible(True)
        canvas.restore_region(self._still)
        for artist in self.artists():
            artist.draw(canvas.get_renderer())


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
