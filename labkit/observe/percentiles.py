"""Percentiles by the nearest-rank-with-interpolation rule of NumPy, plain and weighted by counts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

PERCENTILES = (50, 95, 99)


def percentiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """`{"mean", "p50", "p95", "p99", "max"}`; None everywhere when there is no value."""
    array = np.asarray([v for v in values if v is not None], dtype=float)
    if not len(array):
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"), None)
    result: dict[str, float | None] = {"mean": float(array.mean())}
    for p, value in zip(PERCENTILES, np.percentile(array, PERCENTILES), strict=True):
        result[f"p{p}"] = float(value)
    result["max"] = float(array.max())
    return result


def weighted_percentiles(values: np.ndarray, counts: np.ndarray) -> dict[str, float | None]:
    """As if each value stood there `counts` times (the lower neighbour, without interpolation)."""
    keep = counts > 0
    values, counts = values[keep], counts[keep]
    if not len(values):
        return percentiles(())
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    ranks = np.cumsum(counts)
    result: dict[str, float | None] = {"mean": float((values * counts).sum() / ranks[-1])}
    for p in PERCENTILES:
        result[f"p{p}"] = float(values[np.searchsorted(ranks, p / 100 * ranks[-1])])
    result["max"] = float(values[-1])
    return result
