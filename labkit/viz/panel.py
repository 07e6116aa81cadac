"""A slider panel: controls above one picture, and a button back to the notebook's values.

A callback draws a figure and puts its PNG into one `Image` widget. There is no `Output` widget and no `interact` on purpose:
they can hang papermill for ever (a missed reply on the shell channel), and an `Image` is also three times faster.

    panel = SliderPanel(draw, {"block_size": Slider(16, 1, 128), "policy": Choice("paged", ["paged", "reserve"])})
    panel                          # in a notebook: controls and picture
    panel.figure(block_size=32)    # the same picture for papermill, HTML and print
"""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from labkit.errors import LabError
from labkit.viz.figure import png_bytes


@dataclass(frozen=True)
class Slider:
    """A number in `[low, high]`. All three integers: an integer slider. `label` says the unit."""

    value: float
    low: float
    high: float
    step: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Choice:
    """One of `options`."""

    value: Any
    options: Sequence[Any]
    label: str = ""


@dataclass(frozen=True)
class Toggle:
    """On or off."""

    value: bool
    label: str = ""


Control = Slider | Choice | Toggle


class SliderPanel:
    """`draw(**values) -> Figure`, redrawn whenever a control changes.

    If `draw` has a parameter `figure`, it gets the figure it returned last (None at first) and may redraw it, which saves
    about half the time. Changes arrive one at a time and the browser holds back all but the newest until the kernel is
    idle again, so a fast drag never queues up pictures nobody will see. An error in `draw` is shown as text above the last good picture.
    """

    def __init__(self, draw: Callable[..., Figure], controls: Mapping[str, Control], *, title: str = ""):
        if not controls:
            raise LabError("a slider panel needs at least one control")
        self.draw, self.controls, self.title = draw, dict(controls), title
        self.defaults = {name: control.value for name, control in self.controls.items()}
        self._reuses_figure = "figure" in inspect.signature(draw).parameters
        self._figure: Figure | None = None
        self._widget: Any = None
        self._quiet = False
        #: seconds the last redraw took in the kernel, PNG included
        self.last_draw_s = 0.0

    @property
    def values(self) -> dict[str, Any]:
        """What the controls show now; the notebook's values while nothing is on screen."""
        return (
            {name: widget.value for name, widget in self._inputs.items()}
            if self._widget
            else dict(self.defaults)
        )

    def figure(self, **values: Any) -> Figure:
        """The picture for `values` (others as in the notebook), as a figure of its own. Raises what `draw` raises."""
        unknown = sorted(values.keys() - self.controls.keys())
        if unknown:
            raise LabError(f"unknown control {unknown[0]!r}; this panel has: {', '.join(self.controls)}")
        return self.draw(**{**self.defaults, **values})

    @property
    def widget(self) -> Any:
        """The ipywidgets tree; built, with its first picture, when first asked for."""
        if self._widget is None:
            self._build()
        return self._widget

    def reset(self) -> None:
        """Put every control back to the notebook's value; one redraw."""
        self._quiet = True
        try:
            for name, value in self.defaults.items():
                self._inputs[name].value = value
        finally:
            self._quiet = False
        self._redraw()

    def _build(self) -> None:
        import ipywidgets as W

        _spare_the_collector()
        self._inputs = {name: _input(name, control) for name, control in self.controls.items()}
        self._image = W.Image(format="png", layout=W.Layout(max_width="100%"))
        self._message = W.HTML()
        button = W.Button(
            description="Reset to the notebook's values", icon="undo", layout=W.Layout(width="auto")
        )
        button.on_click(lambda _: self.reset())
        for widget in self._inputs.values():
            widget.observe(self._changed, names="value")
        head = [W.HTML(f"<b>{_escape(self.title)}</b>")] if self.title else []
        self._widget = W.VBox(
            [*head, *self._inputs.values(), button, self._message, self._image],
            layout=W.Layout(align_items="flex-start"),
        )
        self._widget.add_class("labkit-panel")
        self._redraw()

    def _changed(self, _: Any) -> None:
        if not self._quiet:
            self._redraw()

    def _redraw(self) -> None:
        began = time.perf_counter()
        values = self.values
        if self._reuses_figure:
            values["figure"] = self._figure
        try:
            self._figure = self.draw(**values)
            self._image.value = png_bytes(self._figure)
            self._message.value = ""
        except Exception as error:  # a reader's slider must not end in a lost traceback
            self._figure = None
            text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            self._message.value = f'<span role="alert" style="color:#B00020">{_escape(text)}</span>'
        self.last_draw_s = time.perf_counter() - began

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live widget, and beside it the PNG for readers without widgets' JavaScript."""
        import base64

        bundle = dict(self.widget._repr_mimebundle_(**kwargs) or {})
        if self._image.value:
            bundle["image/png"] = base64.b64encode(self._image.value).decode()
        return bundle


def _input(name: str, control: Control) -> Any:
    import ipywidgets as W

    label = control.label or name.replace("_", " ")
    style, layout = {"description_width": "16em"}, W.Layout(width="min(100%, 44em)")
    if isinstance(control, Toggle):
        return W.Checkbox(value=control.value, description=label, indent=False, layout=layout)
    if isinstance(control, Choice):
        return W.Dropdown(
            value=control.value, options=list(control.options), description=label, style=style, layout=layout
        )
    whole = all(isinstance(v, int) for v in (control.value, control.low, control.high, control.step or 1))
    kind, step = (
        (W.IntSlider, control.step or 1)
        if whole
        else (W.FloatSlider, control.step or (control.high - control.low) / 100)
    )
    return kind(
        value=control.value, min=control.low, max=control.high, step=step, description=label,
        continuous_update=True, style=style, layout=layout,
    )  # fmt: skip


def _spare_the_collector() -> None:
    """Take what lives now out of the garbage collector's rounds.

    After a notebook's cells, a full round looks at millions of objects and takes 70 to 140 ms, in the middle of every tenth
    redraw or so. What an earlier panel set aside is looked at once more first, so nothing stays for ever.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _escape(text: str) -> str:
    import html

    return html.escape(text)
