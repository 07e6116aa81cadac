"""The player in Python: static picture, page of its own, display bundle. Its behaviour in a browser: tests/browser/."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from labkit.errors import LabError
from labkit.memory.base import Span
from labkit.viz.palette import color_of
from labkit.viz.player import draw_runs, player
from labkit.viz.player_builder import RunBuilder


def simple_run(title="run", lifetime="prefix"):
    builder = RunBuilder(100, title=title, unit="blocks", time_unit="step")
    builder.add(0, [Span(0, 50, "allocated", 50, "a", lifetime)])
    builder.add(1, [Span(25, 50, "allocated", 50, "b", lifetime)])
    builder.event(1, "oom", "asked 60 blocks")
    return builder.finish()


def colors_in(figure):
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].reshape(-1, 3)
    return {tuple(color) for color in pixels.tolist()}


def test_the_static_picture_shows_holes_owners_events_and_units():
    figure = player(simple_run()).figure()
    found = colors_in(figure)
    for label in ("prefix", "free"):
        assert tuple(round(255 * c) for c in to_rgb(color_of(label))) in found, label
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["offset (blocks)", "time (steps)"]
    assert "oom: 1" in [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert "run at step 1" in figure.axes[0].get_title(loc="left"), "it opens at the event"


def test_two_runs_stand_one_below_the_other_and_three_are_refused():
    assert len(player([simple_run("a"), simple_run("b")]).figure().axes) == 4
    with pytest.raises(LabError, match="one run or two"):
        player([simple_run()] * 3)


def test_the_page_loads_nothing_and_is_written_whole(tmp_path):
    target = player(simple_run(), title="<pool>").save_html(tmp_path / "run.html")
    text = target.read_text()
    assert "&lt;pool&gt;" in text
    assert not [
        word
        for word in ("http://", "https://", 'src="//', "import ")
        if word in text.replace("http://www.w3.org", "")
    ]
    assert "<noscript><img" in text
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


def test_the_display_bundle_carries_widget_page_and_picture(monkeypatch):
    data, _ = player(simple_run())._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["image/png"].startswith("iVBOR")
    assert "labkit-player" in data["text/html"]
    monkeypatch.setattr("labkit.viz.player.MAX_EMBEDDED_BYTES", 10)
    assert "text/html" not in player(simple_run())._repr_mimebundle_()[0]


def test_draw_runs_uses_a_figure_again():
    figure = draw_runs([simple_run()], 0)
    assert draw_runs([simple_run()], 1, figure=figure) is figure


def test_the_static_picture_names_the_colours_of_its_map():
    figure = player(simple_run(lifetime="private")).figure()
    legend = figure.axes[0].get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["private request KV", "free"]
    assert to_rgb(color_of("request")) == legend.get_patches()[0].get_facecolor()[:3]
    assert to_rgb(color_of("request")) == to_rgb(color_of("private")), "another spelling, the same colour"
