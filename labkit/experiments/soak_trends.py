"""Does a figure grow over the life of a server? Slope tests for soak runs.

    rise     what it had gained when the life ended: median of the last quarter less its fresh value
    slope    Theil-Sen: the median of the slopes of all pairs of windows (Sen, 1968)
    p        Mann-Kendall, one-sided: how often as many rising pairs would come up by chance (Mann, 1945; Kendall, 1975)

A figure has aged when it rose by at least its threshold, and either the rise goes on (p below 0.01) or it has settled there:
every window of the second half lies above half of the threshold. Both need windows: fewer than six prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_WINDOWS = 6
P_GROWS = 0.01


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure over one life. `threshold` and `rise` in `unit`; `slope` in `unit` an hour."""

    name: str
    unit: str
    life: int
    num_windows: int
    fresh: float
    last: float
    rise: float
    slope: float
    p: float
    threshold: float
    settled_above: bool

    @property
    def grows(self) -> bool:
        """It rises from window to window, more than chance would."""
        return self.num_windows >= MIN_WINDOWS and self.p < P_GROWS

    @property
    def aged(self) -> bool:
        """It rose by its threshold, and still grows or has settled above."""
        return (
            self.num_windows >= MIN_WINDOWS
            and self.rise >= self.threshold
            and (self.grows or self.settled_above)
        )

    @property
    def leaks(self) -> bool:
        """It aged and does not come to rest."""
        return self.aged and self.grows


def trend(
    name: str,
    unit: str,
    life: int,
    hours: Sequence[float],
    values: Sequence[float],
    *,
    threshold: float,
    fresh: float | None = None,
) -> Trend:
    """Test one figure. `fresh` is its value before the first window; None takes the median of the first quarter.
    Values, `fresh` and `threshold` (the rise that counts) in `unit`."""
    y = np.asarray(values, dtype=float)
    num = len(y)
    quarter = max(1, num // 4)
    start = float(np.median(y[:quarter])) if fresh is None else float(fresh)
    last = float(np.median(y[-quarter:]))
    return Trend(
        name,
        unit,
        life,
        num,
        fresh=start,
        last=last,
        rise=last - start,
        slope=theil_sen(hours, y),
        p=mann_kendall_p(y),
        threshold=threshold,
        settled_above=bool(np.all(y[num // 2 :] - start >= threshold / 2)),
    )


def theil_sen(x: Sequence[float], y: Sequence[float] | np.ndarray) -> float:
    """Median of the slopes of all pairs with different `x`; 0 when there are none."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    i, j = np.triu_indices(len(xs), 1)
    apart = xs[j] != xs[i]
    if not apart.any():
        return 0.0
    return float(np.median((ys[j] - ys[i])[apart] / (xs[j] - xs[i])[apart]))


def mann_kendall_p(y: Sequence[float] | np.ndarray) -> float:
    """One-sided p of "it rises", normal approximation with ties and continuity; 1.0 when nothing rises."""
    ys = np.asarray(y, dtype=float)
    num = len(ys)
    i, j = np.triu_indices(num, 1)
    s = float(np.sign(ys[j] - ys[i]).sum())
    if s <= 0:
        return 1.0
    _, ties = np.unique(ys, return_counts=True)
    variance = (num * (num - 1) * (2 * num + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return 0.5 * math.erfc((s - 1) / math.sqrt(variance) / math.sqrt(2)) if variance > 0 else 1.0
