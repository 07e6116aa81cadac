"""Runs for the sweep tests: importable from other processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np


def area(width: int, height: int) -> dict:
    return {"area": np.int64(width * height), "pid": os.getpid()}


def counted(folder: str, index: int) -> dict:
    """Leaves a mark for every time it is really run."""
    with (Path(folder) / "runs.txt").open("a") as file:
        file.write(f"{index}\n")
    return {"square": index * index}


def slow(folder: str, index: int) -> dict:
    time.sleep(0.25)
    return counted(folder, index)


def fails_at_three(folder: str, index: int) -> dict:
    if index == 3:
        time.sleep(0.3)
        raise RuntimeError("run 3 is broken")
    return counted(folder, index)


def headroom(watermark: float) -> dict:
    from labkit.experiments.scenarios import run_scenario

    return {
        "num_preemptions": run_scenario("headroom-sweep", watermarks=[watermark]).figures["num_preemptions"][
            0
        ]
    }
