"""Bars and trade-offs: what is drawn is what was given, and nobody's label is cut."""

import itertools

import numpy as np
import pytest

from labkit.viz.charts import draw_bars, draw_tradeoff, number
from labkit.viz.figure import png_bytes
from labkit.viz.timeline import Event, Limit, Series, draw_timeline


def heights(figure):
    return [round(patch.get_height(), 6) for patch in figure.axes[0].patches]


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text")) if t.get_text()]


def inside(figure):
    """Every visible text lies within the picture."""
    png_bytes(figure)
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    for text in figure.findobj(lambda artist: hasattr(artist, "get_text")):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent(renderer)
            if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1:
                return f"{text.get_text()!r} lies outside: {box}"
    return ""


GROUPS = {
    "contiguous": {"free": 12.5, "in one piece": 4.5},
    "in blocks": {"free": 12.5, "in one piece": 12.5},
}


def test_bars_have_the_given_heights_and_say_them():
    figure = draw_bars(GROUPS, ylabel="GiB", title="a title")
    assert heights(figure) == [12.5, 12.5, 4.5, 12.5]
    assert {"12.5", "4.5", "GiB", "free", "in one piece", "contiguous", "in blocks"} <= set(texts(figure))
    assert inside(figure) == ""


def test_a_series_that_a_group_lacks_has_no_bar_and_no_label():
    figure = draw_bars({"a": {"x": 1.0}, "b": {"x": 2.0, "y": 3.0}}, ylabel="n")
    assert np.isnan(heights(figure)[2])
    assert "nan" not in " ".join(texts(figure))


def test_stacked_bars_stand_on_each_other():
    figure = draw_bars(GROUPS, ylabel="GiB", stacked=True)
    bottoms = [patch.get_y() for patch in figure.axes[0].patches]
    assert bottoms == [0, 0, 12.5, 12.5]


def test_two_bars_do_not_fill_the_width():
    figure = draw_bars({"a": {"x": 1.0}, "b": {"x": 2.0}}, ylabel="n")
    left, right = figure.axes[0].get_xlim()
    assert right - left == 4
    many = draw_bars({str(i): {"x": 1.0} for i in range(9)}, ylabel="n")
    assert np.diff(many.axes[0].get_xlim()) == 9


def test_long_labels_wrap_and_a_plus_stays_with_its_word():
    names = [
        "none",
        *(f"+ {word}" for word in ("lengths", "growth", "continuous batching", "shared prefixes")),
    ]
    figure = draw_bars({name: {"a": 1.0, "b": 2.0} for name in names}, ylabel="n")
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert any("\n" in label for label in labels)
    assert not any(label.startswith("+\n") for label in labels)
    assert inside(figure) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.1234, "0.123"), (12.5, "12.5"), (1020.4, "1,020"), (-2345, "-2,345")]
)
def test_numbers_are_short_and_never_have_an_exponent(value, text):
    assert number(value) == text


def test_a_log_axis_of_bars_shows_plain_numbers():
    figure = draw_bars({"a": {"x": 0.01}, "b": {"x": 1000.0}}, ylabel="s", logy=True)
    png_bytes(figure)
    shown = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert "1,000" in shown
    assert not any("10^" in text for text in shown)


def test_a_tradeoff_shows_points_labels_and_the_good_corner():
    curves = {"trace": [(2, 5.0, "64"), (40, 0.2, "1024")], "control": [(3, 0.0, "256")]}
    figure = draw_tradeoff(
        curves, xlabel="waste (%)", ylabel="copied", title="t", good=(10, 0.1), linthresh_y=0.1
    )
    lines = figure.axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[2, 40], [3]]
    assert {"64", "1024", "256", "good at both", "trace", "control"} <= set(texts(figure))
    assert inside(figure) == ""


def test_labels_on_top_of_each_other_are_left_out():
    curves = {"a": [(1, 1, "first"), (1.001, 1, "second"), (9, 9, "third")]}
    shown = texts(draw_tradeoff(curves, xlabel="x", ylabel="y"))
    assert "first" in shown
    assert "second" not in shown
    assert "third" in shown


def test_a_figure_can_be_used_again():
    figure = draw_bars(GROUPS, ylabel="GiB")
    again = draw_bars({"a": {"x": 1.0}}, ylabel="n", figure=figure)
    assert again is figure
    assert len(again.axes) == 1
    assert heights(again) == [1.0]


def test_limits_of_one_row_are_told_apart_without_colour():
    figure = draw_timeline(
        [Series("in use", [0, 1], [1e9, 2e9])], limits=[Limit(3e9, "memory"), Limit(2.5e9, "the sum")]
    )
    dashes = {line.get_label(): line._unscaled_dash_pattern for line in figure.axes[0].lines[1:]}
    assert set(dashes) == {"memory", "the sum"}
    assert dashes["memory"] != dashes["the sum"]


def test_a_single_event_is_named_and_many_are_counted():
    series = [Series("free", [0, 9], [1, 2], "requests")]
    events = [Event(1, "other", "first wait"), Event(2, "oom", "a"), Event(3, "oom", "b")]
    shown = " ".join(texts(draw_timeline(series, events=events)))
    assert "first wait" in shown
    assert "oom: 2" in shown


def test_a_logarithmic_size_axis_shows_plain_numbers():
    figure = draw_timeline([Series("usable", [1, 10, 1000], [100, 50, 0], "%")], logx=True)
    png_bytes(figure)
    assert figure.axes[0].get_xscale() == "log"
    assert "1,000" in [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


def test_labels_of_points_stay_off_the_lines_and_inside_the_frame():
    falling = [
        (0, 8, "first"),
        (5, 8, "middle"),
        (10, 0, "last"),
    ]  # no room above the first two, a line below the last
    figure = draw_tradeoff({"a": falling}, xlabel="x", ylabel="y")
    png_bytes(figure)
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    frame = axes.get_window_extent()
    points = axes.transData.transform(axes.lines[0].get_xydata())
    parts = [a + np.linspace(0, 1, 500)[:, None] * (b - a) for a, b in itertools.pairwise(points)]
    line = np.concatenate(parts)
    assert len(axes.texts) == 3
    for text in axes.texts:
        box = text.get_window_extent(renderer)
        assert np.all(frame.min <= box.min), text
        assert np.all(box.max <= frame.max), text
        assert not np.any(np.all((box.min < line) & (line < box.max), axis=1)), text


def test_stacked_bars_say_their_values_and_leave_room_above():
    figure = draw_bars({"a": {"x": 50.0, "y": 49.0, "z": 1.0}, "b": {"y": 3.0}}, ylabel="n", stacked=True)
    shown = texts(figure)
    assert {"50", "49"} <= set(shown)
    assert "1" not in [label.get_text() for label in figure.axes[0].texts], "too flat to be written in"
    assert figure.axes[0].get_ylim()[1] > 104


def test_events_of_one_text_are_counted_under_it():
    series = [Series("free", [0, 9], [1, 2], "requests")]
    shown = texts(
        draw_timeline(series, events=[Event(1, "other", "documents"), Event(4, "other", "documents")])
    )
    assert "● documents: 2" in shown


def test_a_curve_of_zeros_lies_on_the_bottom_and_long_names_fit():
    figure = draw_timeline(
        [Series("a name that is much longer than the margin is wide", [0, 9], [0, 0], "%")]
    )
    assert figure.axes[0].get_ylim() == (0.0, 1.0)
    png_bytes(figure)
    name = figure.axes[0].get_legend().get_texts()[0].get_window_extent(figure.canvas.get_renderer())
    assert name.x1 <= figure.bbox.x1


@pytest.mark.parametrize("peak", [5.0, 9.7, 12.0])
def test_a_limit_never_lies_on_the_frame(peak):
    figure = draw_timeline([Series("in use", [0, 1], [0, peak], "x")], limits=[Limit(10.0, "memory", "x")])
    top = figure.axes[0].get_ylim()[1]
    assert top > 1.02 * max(10.0, peak)
