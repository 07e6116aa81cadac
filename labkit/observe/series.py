"""One row a step: what ran, what waited, and how the KV memory was divided. Columns are plain lists until asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import LabError
from labkit.memory.base import Allocator
from labkit.serving.base import Scheduler, StepOutcome, StepPlan

if TYPE_CHECKING:
    from labkit.observe.recorder import RunRecorder

COLUMNS = (
    "step",
    "start_s",
    "end_s",
    "num_running",
    "num_waiting",
    "num_scheduled_tokens",
    "num_prefill_tokens",
    "num_decode_requests",
    "num_preempted",
    "num_admitted",
    "kv_live_bytes",
    "kv_token_bytes",
    "kv_cached_bytes",
    "kv_free_bytes",
    "kv_largest_free_bytes",
    "num_free_spans",
    "device_allocated_bytes",
    "device_reserved_bytes",
    "device_other_bytes",
)


class Series:
    """Rows of one instant are written together or not at all. `live + cached + free = capacity` at every one.

    `device` is the allocator of the device that the run draws on, where there is one; `other_bytes` what is taken on
    that device outside of it (driver context, other processes).
    """

    def __init__(self, every: int = 1, *, device: Allocator | None = None, other_bytes: int = 0):
        if every < 1:
            raise LabError(f"every={every} keeps no row; start at 1")
        self.every, self._seen = every, 0
        self._device, self._other_bytes = device, other_bytes
        self._scheduler: Scheduler | None = None
        self.rows: list[tuple[Any, ...]] = []
        self.capacity_bytes = 0

    def step(
        self,
        recorder: RunRecorder,
        scheduler: Scheduler,
        plan: StepPlan,
        outcome: StepOutcome,
        start_s: float,
        end_s: float,
    ) -> None:
        """Note the state after a step."""
        self._seen += 1
        if (self._seen - 1) % self.every:
            return
        if scheduler is not self._scheduler:
            self._scheduler, self._read = scheduler, getattr(scheduler, "kv_stats", None)
            self._allocator = getattr(getattr(scheduler, "kv", None), "allocator", None)
        kv: tuple[int | None, ...] = (None,) * 5
        if self._read is not None:
            stats = self._read()
            self.capacity_bytes = stats.capacity_bytes
            kv = (
                stats.reserved_bytes,
                stats.token_bytes,
                stats.cached_bytes,
                stats.free_bytes,
                stats.largest_free_bytes,
            )
        device: tuple[int | None, ...] = (None, None, None)
        if self._device is not None:
            device = (*self._device.held_bytes(), self._other_bytes)
        num_running = plan.num_running
        self.rows.append(
            (
                plan.step,
                start_s,
                end_s,
                num_running,
                max(0, recorder.num_live + len(outcome.finished) - num_running),
                plan.num_scheduled_tokens,
                plan.num_prefill_tokens,
                plan.num_decode_requests,
                len(plan.preempted),
                len(plan.admitted),
                *kv,
                None if self._allocator is None else self._allocator.stats().num_free_spans,
                *device,
            )
        )

    def frame(self) -> Any:
        """The rows as a pandas DataFrame with columns `COLUMNS`."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(COLUMNS))

    def column(self, name: str) -> list[Any]:
        """One column as a list, without pandas."""
        index = COLUMNS.index(name)
        return [row[index] for row in self.rows]
