"""What a replay reads of memory while it runs: waste, fragmentation and the peak."""

from __future__ import annotations

from labkit.experiments.system_memory import kv_memory
from labkit.observe.recorder import RunRecorder
from labkit.serving.base import Scheduler, StepOutcome, StepPlan


class MemoryRecorder(RunRecorder):
    """Adds means over time of waste and fragmentation, and the peak, read at every `every`-th step."""

    def __init__(self, bytes_per_token: int, every: int = 4):
        super().__init__()
        self.bytes_per_token, self.every = bytes_per_token, every
        self.peak_bytes: int | None = None
        self._since_s = 0.0
        self._held_s = self._waste_s = self._free_s = self._scattered_s = 0.0

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        if self.num_steps % self.every:
            return
        stats = kv_memory(scheduler, self.bytes_per_token)
        if stats is None:
            return
        lasted, self._since_s = end_s - self._since_s, end_s
        if self.peak_bytes is None or stats.reserved_bytes > self.peak_bytes:
            self.peak_bytes = stats.reserved_bytes
        if stats.reserved_bytes:
            self._held_s += lasted
            self._waste_s += lasted * (1 - stats.token_bytes / stats.reserved_bytes)
        free = stats.free_bytes
        if free:
            self._free_s += lasted
            self._scattered_s += lasted * (1 - min(1.0, stats.largest_free_bytes / free))

    @property
    def waste(self) -> float | None:
        return self._waste_s / self._held_s if self._held_s else None

    @property
    def fragmentation(self) -> float | None:
        return self._scattered_s / self._free_s if self._free_s else None
