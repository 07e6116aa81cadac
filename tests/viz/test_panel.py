"""The panel in Python alone; dragging it is tested in a browser."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.viz.panel import Choice, Slider, SliderPanel, Toggle
from labkit.viz.timeline import Series, draw_timeline


@pytest.fixture
def calls():
    return []


@pytest.fixture
def panel(calls):
    def draw(level, policy, on, figure=None):
        calls.append((level, policy, on))
        if level == 9:
            raise LabError("level 9 is one too many")
        if level == 8:
            raise ZeroDivisionError("oops <b>")
        return draw_timeline([Series(policy, np.arange(3.0), np.arange(3.0) * level, "count")], figure=figure)

    controls = {"level": Slider(2, 0, 9), "policy": Choice("a", ["a", "b"]), "on": Toggle(True)}
    return SliderPanel(draw, controls, title="a panel")


def test_a_change_makes_a_new_picture_and_reset_goes_back_with_one_redraw(panel, calls):
    widget = panel.widget
    first = bytes(panel._image.value)
    assert first.startswith(b"\x89PNG")
    panel._inputs["level"].value = 5
    assert panel._image.value != first
    panel._inputs["policy"].value = "b"
    before = len(calls)
    panel.reset()
    assert len(calls) == before + 1
    assert panel.values == {"level": 2, "policy": "a", "on": True}
    assert panel._image.value == first
    assert panel.widget is widget


def test_an_error_is_shown_as_text_and_the_next_change_recovers(panel):
    panel.widget  # noqa: B018
    good = bytes(panel._image.value)
    panel._inputs["level"].value = 9
    assert "level 9 is one too many" in panel._message.value
    assert "LabError" not in panel._message.value
    assert panel._image.value == good
    panel._inputs["level"].value = 8
    assert "ZeroDivisionError: oops &lt;b&gt;" in panel._message.value
    panel._inputs["level"].value = 3
    assert panel._message.value == ""
    assert panel._image.value != good


def test_the_static_figure_is_the_picture_of_the_panel(panel):
    panel.widget  # noqa: B018
    assert panel.figure()._repr_png_() == bytes(panel._image.value)
    panel._inputs["level"].value = 4
    assert panel.figure(level=4)._repr_png_() == panel._image.value
    with pytest.raises(LabError, match="unknown control 'levle'; this panel has: level, policy, on"):
        panel.figure(levle=3)


def test_the_display_bundle_has_the_widget_and_a_picture_and_no_output_widget(panel):
    import ipywidgets as W

    bundle = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/png"]

    def walk(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from walk(child)

    assert not [w for w in walk(panel.widget) if isinstance(w, W.Output)]


def test_whole_numbers_make_an_integer_slider_and_fractions_a_float_one():
    import ipywidgets as W

    panel = SliderPanel(
        lambda **_: draw_timeline([Series("x", [0.0], [1.0], "count")]),
        {"whole": Slider(1, 0, 4), "part": Slider(0.1, 0, 1)},
    )
    panel.widget  # noqa: B018
    assert isinstance(panel._inputs["whole"], W.IntSlider)
    assert isinstance(panel._inputs["part"], W.FloatSlider)
    with pytest.raises(LabError, match="at least one control"):
        SliderPanel(lambda: None, {})
