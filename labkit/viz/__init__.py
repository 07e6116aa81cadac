"""Pictures. Matplotlib is imported here and nowhere below.

from labkit.viz.memory_map import draw_layout                      # a map of spans
from labkit.viz.timeline import Event, Limit, Series, draw_timeline  # curves over time, events marked
from labkit.viz.panel import Choice, Slider, SliderPanel, Toggle    # sliders over one picture
from labkit.viz.player import player                                # a run, scrubbed in the browser
"""
