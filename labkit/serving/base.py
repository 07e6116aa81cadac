"""Deciding and executing are two things. A `Scheduler` decides a step; an `Executor` runs it and says how long it took.

The same decided step goes to `CostModelExecutor` (time from a roofline) or `TensorExecutor` (real keys and values), so
what the simulator says about memory is what the tensors do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.kv.base import Move
from labkit.workload.base import RequestSpec


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one request computes in one step: positions `[start, start + num_tokens)`.

    `samples` says that the step computes its last known token, so one new token comes out. `block_table` covers at
    least `start + num_tokens` positions; a contiguous cache has `base_slot` instead.
    """

    request_id: str
    start: int
    num_tokens: int
    samples: bool
    block_table: Sequence[int] = ()
    base_slot: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that joined in this step. `num_hit_tokens` were found in the prefix cache; `resumed` after a preemption."""

    request_id: str
    num_hit_tokens: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class Preempted:
    """`num_computed_tokens` is the work that recompute must repeat."""

    request_id: str
    num_blocks: int
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A request given up while it ran (pressure response "refuse"), after `num_output_tokens` tokens."""

    request_id: str
    num_output_tokens: int
    reason: str


@dataclass(slots=True)
class StepPlan:
    """One decided step. The counters are always there; `chunks` only when the scheduler was built with
    `record_chunks=True` (they cost time proportional to the batch).

    What happened in few steps only is an empty tuple until a scheduler assigns a list: most steps of a long simulation
    carry nothing but counters, and six new lists would cost as much as deciding them.
    """

    step: int
    num_scheduled_tokens: int = 0
    num_prefill_tokens: int = 0
    num_decode_requests: int = 0
    num_running: int = 0
    #: tokens already in the cache that the step attends to: the sum of `start` over the chunks of the batch
    num_kv_tokens_read: int = 0
    #: query-key pairs of the prefill chunks, sum of n * (start + (n + 1) / 2); 0 where a scheduler does not count them
    num_prefill_pairs: int = 0
    admitted: Sequence[Admitted] = ()
    preempted: Sequence[Preempted] = ()
    dropped: Sequence[Dropped] = ()
    moves: Sequence[Move] = ()
    swapped_bytes: int = 0
    chunks: Sequence[Chunk] | None = None


@dataclass(slots=True)
class StepResult:
    """What an executor says of a step: how long it took, in seconds, and the tokens it sampled."""

    duration_s: float
    #: request id -> sampled token; None for an executor that has no tensors
    tokens: Mapping[str, int] | None = None


@dataclass(slots=True)
class StepOutcome:
    """What `update` found: which requests produced their first token in this step, and which finished.

    `truncated` maps the finished requests that ended before the length the load gave them (a degraded maximum, the
    model's maximum) to the tokens they did produce. Like a plan's, these are only made when there is something to say.
    """

    started: Sequence[str] = ()
    finished: Sequence[str] = ()
    truncated: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """Why a request waits. Blocks; `limit` names what binds (e.g. "blocks", "max_num_seqs", "token_budget", "head_of_line").

    Where a prefix is cached, `num_needed_blocks` is without it, and the lab's scheduler counts the cached blocks that the request
    itself would use out of `num_evictable_blocks` too: evicting them gives it nothing.
    """

    request_id: str
    num_needed_blocks: int
    num_free_blocks: int
    num_evictable_blocks: int
    limit: str
    can_ever_fit: bool
    sentence: str


class Scheduler(ABC):
    """Owns requests from arrival to finish. One step is `schedule()`, execution, `update()`."""

    name: str

    @abstractmethod
    def add(self, spec: RequestSpec) -> str | None:
        """Queue a request. Returns None, or the reason (one sentence) when it can never fit and is refused."""

    @abstractmethod
    def schedule(self) -> StepPlan: ...

    @abstractmethod
    def update(self, plan: StepPlan, result: StepResult) -> StepOutcome: ...

    @abstractmethod
    def has_work(self) -> bool: ...

    @abstractmethod
    def why_waiting(self, request_id: str) -> WaitingReason: ...

    @abstractmethod
    def check_integrity(self) -> None: ...


class Executor(ABC):
    """Carries out what a scheduler decided, and decides nothing."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult: ...


class Recorder:
    """What the engine loop tells an observer. Every method is optional; seconds are on the load's clock."""

    def on_arrival(self, spec: RequestSpec, now_s: float, refused: str | None) -> None:
        """`spec` reached the scheduler at `now_s` (its `arrival_s`, or later when a step was running).
        `refused` is the reason when it can never fit."""

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        """A step that ran from `start_s` to `end_s`; the scheduler shows the state after it."""

    def on_end(self, scheduler: Scheduler, now_s: float) -> None:
        """The load is served."""
