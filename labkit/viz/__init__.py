"""Pictures. Matplotlib is imported here and nowhere below.

draw_layout      a map of spans
draw_timeline    curves over time (`Series`), events marked on them (`Event`, `Limit`)
SliderPanel      sliders (`Slider`, `Choice`, `Toggle`) over one picture
dashboard        the five groups of metrics of a recorded run, under one clock
player           a run, scrubbed in the browser (`from labkit.viz.player import RunBuilder, player`)
"""

from labkit.viz.dashboard import dashboard
from labkit.viz.memory_map import draw_layout
from labkit.viz.panel import Choice, Slider, SliderPanel, Toggle
from labkit.viz.timeline import Event, Limit, Series, draw_timeline

__all__ = [
    "Choice",
    "Event",
    "Limit",
    "Series",
    "Slider",
    "SliderPanel",
    "Toggle",
    "dashboard",
    "draw_layout",
    "draw_timeline",
]
