"""Numbers that rules look at, each computed once from the evidence; a signal that the evidence cannot give is None.

A *rest* is a stretch of at least three readings in which nothing waits, no prompt token comes in, and either nobody runs or nothing ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.doctor.evidence import Evidence

#: less than this share of the pool at rest is nothing (a null block, rounding)
LEAST_HELD = 0.008
#: a rest in which slow reclaim must have ended
LONG_REST_S = 40.0
#: a wait of the queue longer than this is felt
FELT_S = 1.0
#: what a signal can need
PAGES = "a series of /metrics pages (two or more)"
LOG = "log lines that say why the head of the queue waits"
REST = "a series of /metrics pages with a quiet stretch (no arrivals for half a minute)"


@dataclass(frozen=True, slots=True)
class Signal:
    """`value` in `unit`, seen at `time_s` on the series' clock (None: over the whole time)."""

    value: float
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """`unit` of the value, what it `says`, the evidence it `needs`, and how it is computed."""

    unit: str
    says: str
    needs: str
    compute: Callable[[Signals], Signal | None]


@dataclass(frozen=True)
class Rest:
    """Rows `first..last` of the series; seconds, share of the pool, sequences."""

    start_s: float
    end_s: float
    usage_first: float
    usage_last: float
    running: float
    decoding: float | None
    since_last_end_s: float


SIGNALS: dict[str, SignalInfo] = {}


def signal(name: str, unit: str, says: str, needs: str) -> Callable[[Any], Any]:
    """Put a function into the table under `name`."""

    def register(compute: Callable[[Signals], Signal | None]) -> Callable[[Signals], Signal | None]:
        SIGNALS[name] = SignalInfo(unit, says, needs, compute)
        return compute

    return register


class Signals:
    """Signals of one body of evidence by name, computed when asked."""

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        frame = evidence.series
        self.frame = frame if frame is not None and len(frame) >= 2 else None
        self._known: dict[str, Signal | None] = {}
        self.rests = self._find_rests()

    def __getitem__(self, name: str) -> Signal | None:
        if name not in self._known:
            self._known[name] = SIGNALS[name].compute(self)
        return self._known[name]

    def value(self, name: str) -> float | None:
        """The number alone; None where the evidence does not give it."""
        found = self[name]
        return None if found is None else found.value

    def column(self, name: str) -> np.ndarray | None:
        """A column of the series, gaps filled with what came before; None where no page has it."""
        if self.frame is None or name not in self.frame.columns:
            return None
        values = self.frame[name].ffill().fillna(0.0).to_numpy(dtype=float)
        return values

    def total(self, name: str) -> float | None:
        """What a counter grew by."""
        values = self.column(name)
        return None if values is None else float(values[-1] - values[0])

    def _find_rests(self) -> list[Rest]:
        names = ("num_prompt_tokens", "num_finished", "num_waiting", "kv_usage", "num_running")
        columns = [column for name in names if (column := self.column(name)) is not None]
        if self.frame is None or len(columns) < len(names):
            return []
        prompt, done, waiting, usage, running = columns
        times, itl = self.frame["time_s"].to_numpy(dtype=float), self.column("itl_sum")
        alone = (running[1:] == 0) | (np.diff(done) == 0)
        still = np.concatenate([[False], (np.diff(prompt) == 0) & alone]) & (waiting == 0)
        restarts = self.frame["restarts"].to_numpy()
        rests, first = [], None
        for i in range(len(times) + 1):
            on = i < len(times) and bool(still[i])
            if on and first is not None:
                on = restarts[i] == restarts[first] and (running[i] == 0) == (running[first] == 0)
            if on and first is None and done[i] > done[0]:
                first = i
            elif not on and first is not None:
                last = i - 1
                if last - first >= 2:
                    lasted = times[last] - times[first]
                    decoding = None if itl is None or not lasted else float((itl[last] - itl[first]) / lasted)
                    rests.append(
                        Rest(times[first], times[last], usage[first], usage[last], running[last], decoding,
                             times[first] - times[max(0, first - 1)])
                    )  # fmt: skip
                first = i if i < len(times) and bool(still[i]) and done[i] > done[0] else None
        return rests

    @property
    def pool_tokens(self) -> float | None:
        """The pool's size: from SGLang's pages, a recorded run, or the line that a server prints at start."""
        run, total = self.evidence.run, self.column("kv_total_tokens")
        if run is not None:
            return None if run.settings is None else float(run.settings.capacity_tokens)
        return float(total[-1]) if total is not None else self.evidence.settings.get("kv_tokens")

    @property
    def usual_tokens(self) -> float | None:
        """Prompt and output of a finished request, on the mean."""
        prompt, output = self.total("num_prompt_tokens"), self.total("num_output_tokens")
        done = self.total("num_finished")
        return None if prompt is None or output is None or not done else (prompt + output) / done

    @property
    def held_by_nobody(self) -> float:
        """The most that is in use at the start of a rest with nobody running: not the sequences' that run in other rests."""
        return max((rest.usage_first for rest in self.empty_rests), default=0.0)

    @property
    def empty_rests(self) -> list[Rest]:
        """Rests with nobody running."""
        return [rest for rest in self.rests if rest.running == 0]


def felt(signals: Signals) -> bool | None:
    """Do users feel anything? None when nothing says so or otherwise."""
    limits = {
        "queued_share": 0.02, "refusal_share": 0.01, "preemption_rate": 0.02, "wait_share": 0.06,
        "blocked_share": 0.02,
    }  # fmt: skip
    known = {name: signals.value(name) for name in limits}
    if all(value is None for value in known.values()):
        return True if signals.evidence.ooms else None
    return any(value is not None and value >= limits[name] for name, value in known.items())
