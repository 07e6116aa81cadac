"""A request inside the vLLM model, and the queue of those that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from labkit.workload.base import RequestSpec

WAITING, PREFILL, DECODE, DRAIN, DONE = range(5)
STATE_NAMES = ("waiting", "prefill", "decode", "drain", "done")


class VllmRequest:
    """Token counts: `num_tokens` are known (prompt and outputs), `computed` of them have KV, or will have at the end
    of the step that is being decided. While the state is DECODE both stand still and `offset` tells them
    (see `vllm_decoding`). DRAIN, async only: its last token is sampled and not delivered yet.

    `end` is the number of tokens at which it will finish; `cap` the number the scheduler must reckon with, because a
    model may go on until `max_output_tokens` or the model's maximum. `table[:num_cached]` are blocks with findable content.
    """

    __slots__ = (
        "arrival", "arrival_s", "cap", "computed", "delivered", "end", "first_s", "gap_from_s", "id", "keys", "last_step",
        "num_cached", "num_preemptions", "num_prompt", "num_tokens", "offset", "priority", "private", "seq", "spec", "state",
        "table", "tokens",
    )  # fmt: skip

    def __init__(self, spec: RequestSpec, arrival: int, max_model_len: int):
        prompt = spec.num_prompt_tokens
        allowed = spec.max_output_tokens if spec.max_output_tokens is not None else spec.num_output_tokens
        self.spec, self.id, self.priority, self.arrival = spec, spec.request_id, spec.priority, arrival
        self.cap = min(prompt + allowed, max(max_model_len, prompt + 1))
        self.end = min(self.cap, prompt + spec.num_output_tokens)
        self.num_prompt = self.num_tokens = prompt
        self.computed = self.offset = self.last_step = self.num_cached = self.num_preemptions = self.seq = 0
        self.state = WAITING
        self.delivered = True  # False: a sampled token is under way (async)
        self.table: list[int] = []
        self.tokens: list[int] | None = None
        self.keys: Sequence[int] | MutableSequence[int] = ()
        self.private = False
        self.arrival_s = spec.arrival_s
        self.first_s = self.gap_from_s = -1.0  # written by a loop that keeps times

    def __repr__(self) -> str:
        return f"{self.id}({STATE_NAMES[self.state]}, {self.computed}/{self.num_tokens} of {self.end})"


class WaitingQueue(Protocol):
    """`core/sched/request_queue.py`. A preempted request goes back to the front (FCFS) or to its place (priority)."""

    def append(self, r: VllmRequest) -> None: ...
    def put_back(self, r: VllmRequest) -> None: ...
    def peek(self) -> VllmRequest: ...
    def pop(self) -> VllmRequest: ...
    def remove(self, r: VllmRequest) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[VllmRequest]: ...


class FcfsQueue(deque[VllmRequest]):
    """First come, first served."""

    put_back = deque.appendleft
    pop = deque.popleft  # type: ignore[assignment]

    def peek(self) -> VllmRequest:
        return self[0]


class PriorityQueue:
    """By (priority, arrival), lower first (`request.py`, `Request.__lt__`)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, VllmRequest]] = []

    def append(self, r: VllmRequest) -> None:
        heappush(self._heap, (r.priority, r.arrival, r))

    put_back = append

    def peek(self) -> VllmRequest:
        return self._heap[0][2]

    def pop(self) -> VllmRequest:
        return heappop(self._heap)[2]

    def remove(self, r: VllmRequest) -> None:
        self._heap = [row for row in self._heap if row[2] is not r]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[VllmRequest]:
        return (row[2] for row in sorted(self._heap))
