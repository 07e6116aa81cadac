"""Maps and timelines: what the pixels say must be what the spans say."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from labkit.memory.base import Span
from labkit.units import MIB
from labkit.viz.figure import png_bytes
from labkit.viz.memory_map import draw_layout, layout_image, linear
from labkit.viz.palette import EVENTS, LIFETIMES, STATES, color_of, lifetime_class
from labkit.viz.timeline import Event, Limit, Series, draw_timeline


def rgb(label):
    return np.asarray(to_rgb(color_of(label))) * 255


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_a_cell_shows_the_mean_colour_of_its_bytes():
    spans = [Span(0, 100, "allocated", 100, lifetime="weights"), Span(100, 100, "free")]
    image = layout_image(spans, total=200, num_cells=4)
    assert np.allclose(image[0], rgb("weights"), atol=1)
    assert np.allclose(image[3], rgb("free"), atol=1)
    one = layout_image(spans, total=200, num_cells=1)[0]
    assert np.allclose(one, (rgb("weights") + rgb("free")) / 2, atol=1)


def test_a_thousand_small_holes_stay_visible_in_few_cells():
    spans = [Span(i, 1, "free" if i % 2 else "allocated", 1, lifetime="request") for i in range(2000)]
    image = layout_image(spans, total=2000, num_cells=10)
    assert np.allclose(image, (rgb("request") + rgb("free")) / 2, atol=1)


def test_rounding_waste_and_unreserved_space_have_their_own_colours():
    image = layout_image([Span(0, 100, "allocated", 50, lifetime="request")], total=200, num_cells=4)
    assert np.allclose(image[0], rgb("request"), atol=1)
    assert np.allclose(image[1], rgb("rounding waste"), atol=1)
    assert np.allclose(image[2], 255)


def test_segments_far_apart_or_starting_again_are_put_end_to_end():
    far = [Span(7 << 40, 10, "free", segment=0), Span(9 << 40, 20, "free", segment=1)]
    again = [Span(0, 10, "free", segment=0), Span(0, 20, "free", segment=1)]
    for spans in (far, again):
        assert [(span.offset, span.size) for span in linear(spans)] == [(0, 10), (10, 20)]
    near = [Span(0, 10, "free"), Span(12, 8, "free")]
    assert linear(near) == near


def test_the_map_names_units_classes_and_shares():
    spans = [Span(0, 8 * MIB, "allocated", 8 * MIB, lifetime="weights"), Span(8 * MIB, 8 * MIB, "free")]
    figure = draw_layout(spans, title="one map", capacity=32 * MIB, highlight={"asked": (0, MIB)})
    found = texts(figure)
    assert "offset (MiB)" in found
    assert "asked" in found
    assert "static weights: 8 MiB, 25.0 %" in found
    assert "not reserved: 16 MiB, 50.0 %" in found
    assert draw_layout(spans, figure=figure) is figure


def pixels(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba()).copy()


def test_a_figure_used_again_shows_exactly_what_a_fresh_one_shows():
    def layout(seed):
        rng = np.random.default_rng(seed)
        return [
            Span(i * MIB, MIB, "free" if rng.random() < 0.4 else "allocated", MIB, "", "request")
            for i in range(64)
        ]

    def decoded(figure):
        return np.asarray(Image.open(io.BytesIO(png_bytes(figure))).convert("RGB"))

    figure = draw_layout(layout(0), title="first")
    for seed in (1, 2, 3):
        again = draw_layout(layout(seed), title=f"number {seed}", figure=figure)
        assert again is figure
        assert np.array_equal(pixels(again), pixels(draw_layout(layout(seed), title=f"number {seed}")))
        assert np.array_equal(
            decoded(again), pixels(draw_layout(layout(seed), title=f"number {seed}"))[..., :3]
        )
    draw_timeline([Series("x", [0.0, 1.0], [0.0, 1.0], "count")], figure=figure)
    assert np.array_equal(decoded(figure), pixels(figure)[..., :3]), "nothing of the map is left"
    assert np.array_equal(pixels(draw_layout(layout(3), figure=figure)), pixels(draw_layout(layout(3))))


def test_a_big_space_wraps_into_rows_labelled_with_their_start():
    spans = [Span(i * MIB, MIB, "free" if i % 2 else "allocated", MIB) for i in range(2000)]
    figure = draw_layout(spans)
    assert "row starts at (GiB)" in texts(figure)
    assert figure.axes[0].get_ylim()[0] > 1


def test_every_lifetime_and_state_has_a_colour_of_its_own():
    colors = [color for color, _ in LIFETIMES.values()] + list(STATES.values())
    assert len(set(colors)) == len(colors)
    assert color_of("my own class") == color_of("my own class")
    assert lifetime_class(Span(0, 1, "allocated", 1, tag="weights")) == "weights"
    assert lifetime_class(Span(0, 1, "pending", 1, lifetime="weights")) == "pending free"


#: Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB
DEFICIENCIES = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def seen(color, matrix):
    """CIELAB of a colour as someone with that deficiency sees it."""
    lin = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)])
    lin = np.clip(np.asarray(matrix) @ lin, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ lin
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz / (0.9505, 1.0, 1.089)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", DEFICIENCIES)
def test_lifetime_colours_stay_apart_for_colour_blind_eyes(kind):
    points = {label: seen(color, DEFICIENCIES[kind]) for label, (color, _) in LIFETIMES.items()}
    for label in ("free", "pending free", "cached, reclaimable", "rounding waste"):
        points[label] = seen(color_of(label), DEFICIENCIES[kind])
    names = list(points)
    for i, left in enumerate(names):
        for right in names[i + 1 :]:
            distance = np.linalg.norm(points[left] - points[right])
            assert distance > 8, (kind, left, right, round(float(distance), 1))


def test_a_timeline_has_a_row_a_unit_and_counts_its_events():
    times = np.arange(5.0)
    figure = draw_timeline(
        [Series("reserved", times, times * 3 * 2**30), Series("TTFT", times, times, "ms")],
        events=[Event(1.0, "oom"), Event(2.0, "oom"), Event(3.0, "move")],
        limits=[Limit(20 * 2**30, "capacity")],
    )
    found = texts(figure)
    assert [axes.get_ylabel() for axes in figure.axes] == ["GiB", "ms"]
    assert "time (s)" in found
    assert any("oom: 2" in text and "move: 1" in text for text in found)
    assert figure.axes[0].lines[0].get_ydata().max() == pytest.approx(12.0)
    assert set(EVENTS) >= {"oom", "move", "eviction", "preemption"}


def test_a_redrawn_timeline_is_pixel_for_pixel_a_new_one():
    """Axes are used again while the shape stays; other units, labels or a first event make new ones."""
    rng = np.random.default_rng(0)
    kinds = ["oom", "eviction", "move"]

    def timeline(figure=None, *, seed, events=0, scale=2**30, extra=False):
        draw = np.random.default_rng(seed)
        times = np.sort(draw.random(40)) * draw.integers(1, 5000)
        series = [
            Series("live", times, draw.random(40) * 9 * scale),
            Series("asked", times, draw.random(40) * scale, dashed=True),
            Series("waiting", times, draw.integers(-3, 50, 40), "requests", step=False),
        ]
        return draw_timeline(
            series + [Series("hits", times, draw.random(40), "%")] * extra,
            events=[
                Event(float(draw.random() * times[-1] * 1.2), str(draw.choice(kinds))) for _ in range(events)
            ],
            limits=[Limit(float(draw.random()) * 20 * scale, "capacity")],
            title=f"number {seed}",
            figure=figure,
        )

    figure, reused = None, 0
    for seed in range(24):
        what = {
            "seed": seed,
            "events": int(rng.choice([0, 1, 5, 300])),
            "scale": int(rng.choice([2**30, 2**30, 2**20])),
            "extra": bool(rng.random() < 0.1),
        }
        before = figure and figure.axes[0]
        figure = timeline(figure, **what)
        reused += figure.axes[0] is before
        assert np.array_equal(pixels(figure), pixels(timeline(**what))), what
    assert 3 <= reused < 23, reused


def test_short_maps_keep_their_label_and_both_axes_have_one_unit():
    for unit, total, rows in (("rooms", 100, 2), ("bytes", 1228 * MIB, 3), ("bytes", 14 << 30, 16)):
        figure = draw_layout([Span(0, total, "free")], unit=unit, rows=rows)
        figure.canvas.draw()
        axes = figure.axes[0]
        box = axes.yaxis.label.get_window_extent(figure.canvas.get_renderer())
        assert box.y0 >= 0
        assert box.y1 <= figure.get_size_inches()[1] * figure.dpi
        name = axes.get_xlabel().split("(")[1]
        assert axes.get_ylabel().endswith(name)


def test_a_class_that_is_not_in_the_table_never_looks_like_one_that_is():
    known = {color for color, _ in LIFETIMES.values()} | set(STATES.values())
    for label in ("guest", "party", "long request", "anything", "else"):
        assert color_of(label) not in known
        assert color_of(label) == color_of(label)
