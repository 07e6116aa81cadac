"""Soak: a simulated day at a share of measured saturation, a restart in the middle, and tests of what had aged.

    result = soak(SoakOptions(hours=24, policy="vllm"))
    result.verdict, result.sentence

The day is cut into windows. At the end of each the server is drained, and the memory that is left is looked at: in an empty
server every live byte is one that somebody forgot, and every hole one that somebody left. Nothing of a window is kept but
one row, so memory does not grow with the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from labkit.experiments.soak_load import arrivals, measure_saturation, soak_lengths
from labkit.experiments.soak_result import SoakOptions, SoakResult, Window
from labkit.experiments.soak_server import Server
from labkit.experiments.soak_verdict import judge, trends_of
from labkit.kv.base import KVStats


def soak(options: SoakOptions, on_window: Callable[[Window], object] | None = None) -> SoakResult:
    """Run it. Raises `LabError` for options that do not go together and when the server stops making progress."""
    options.check()
    began = time.process_time()
    rng = np.random.default_rng(options.seed)
    prompts, outputs, origin = soak_lengths(options.load, options.max_model_len, rng)
    saturation = measure_saturation(options, prompts, outputs) if options.rate is None else float("nan")
    rate = options.share * saturation if options.rate is None else options.rate
    total_s = options.hours * 3600
    window_s = min(total_s, options.window_s or max(60.0, total_s / 48))
    num = max(1, round(total_s / window_s))
    lives = [num - num // 2, num // 2] if options.restart and num > 1 else [num]
    windows: list[Window] = []
    fresh: list[KVStats] = []
    for life, num_windows in enumerate(lives):
        server = Server(options)
        fresh.append(server.memory())
        for _ in range(num_windows):
            load = arrivals(prompts, outputs, rate, window_s, rng, prefix=f"w{len(windows)}-")
            row = server.serve(load, life, (len(windows) + 1) * window_s / 3600, prompts, rng)
            windows.append(row)
            if on_window is not None:
                on_window(row)
        server.check()
    trends = [t for life in range(len(lives)) for t in trends_of(life, windows, fresh[life])]
    verdict, sentence = judge(trends)
    return SoakResult(
        options, origin, saturation, rate, windows, fresh, trends, verdict, sentence, time.process_time() - began
    )  # fmt: skip
