"""Part 3 of a scheduler: what goes into one step.

A composition says in which order a step is filled, from three phases, and whether it may hold more than one kind:

    decode    every decoding request computes one token
    prefill   requests that have joined and whose prompt is not done compute a chunk
    admit     waiting requests join and compute their first chunk

and how many tokens of a prompt a step takes. All decoding requests advance together, or none does.

| name | order | kinds mixed | prompts | note |
|---|---|---|---|---|
| static | decode, prefill, admit | yes | whole | joins only when nobody is left |
| continuous | decode, prefill, admit | yes | whole | no token budget: joins and leaves in every step (Orca, OSDI'22) |
| mixed | decode, prefill, admit | yes | whole | within a token budget |
| chunked | decode, prefill, admit | yes | cut to the budget | Sarathi-Serve (OSDI'24), vLLM v1 |
| prefill-first | prefill, admit, decode | no | cut to the budget | decodes stall while a prompt can run (SGLang, vLLM v0) |
| decode-first | decode, prefill, admit | no | cut to the budget | prompts wait until few decode |
| pools | decode, prefill, admit | yes | cut to the budget | long prompts have their own share of the step |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from labkit.errors import LabError
from labkit.registry import Registry
from labkit.serving.request import Request

if TYPE_CHECKING:
    from labkit.serving.running import RunningSet

BATCHINGS: Registry[type[BatchComposition]] = Registry("batch composition")
Phase = Literal["decode", "prefill", "admit"]
NO_BUDGET = 1 << 60


class BatchComposition:
    """`left` is what remains of the token budget of the step that is being filled."""

    phases: tuple[Phase, ...] = ("decode", "prefill", "admit")
    mixes = True
    cuts_prompts = True

    def __init__(self, max_num_batched_tokens: int | None = 2048, long_prefill_threshold: int = 0):
        if max_num_batched_tokens is not None and max_num_batched_tokens < 1:
            raise LabError(
                f"max_num_batched_tokens={max_num_batched_tokens} is not a token budget; start at 1"
            )
        self.max_num_batched_tokens, self.long_prefill_threshold = (
            max_num_batched_tokens,
            long_prefill_threshold,
        )
        self.left = self.budget
        self._first_prompt = True

    @property
    def budget(self) -> int:
        """Tokens that a step may compute."""
        return NO_BUDGET if self.max_num_batched_tokens is None else self.max_num_batched_tokens

    def start(self, scheduler: RunningSet) -> None:
        """A new step. Decoding requests take their tokens first where kinds mix."""
        self.left = self.budget - (scheduler.table.num_decoding + len(scheduler.stalled) if self.mixes else 0)
        self._first_prompt = True

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        """What forbids this request to join in this step, or None."""
        return None

    def chunk(self, request: Request, want: int) -> int:
        """Tokens of the prompt to compute in this step; 0 when none."""
        if self.long_prefill_threshold and self.cuts_prompts:
            want = min(want, self.long_prefill_threshold)
        if want <= self.left:
            return want
        if self.cuts_prompts:
            return max(0, self.left)
        return (
            want if self._first_prompt else 0
        )  # a prompt longer than the budget is the only one of its step

    def take(self, request: Request, num_tokens: int) -> None:
        """`num_tokens` of the budget are spent; negative gives them back."""
        self.left -= num_tokens
        self._first_prompt = False


@BATCHINGS.register("static")
class Static(BatchComposition):
    """A batch is filled once and runs until its last request ends."""

    cuts_prompts = False

    def __init__(self, max_num_batched_tokens: int | None = None):
        super().__init__(max_num_batched_tokens)
        self._open = True

    def start(self, scheduler: RunningSet) -> None:
        super().start(scheduler)
        self._open = not scheduler.running

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        return None if self._open else "batch_running"


@BATCHINGS.register("continuous")
class Continuous(BatchComposition):
    """Whole prompts, no token budget."""

    cuts_prompts = False

    def __init__(self) -> None:
        super().__init__(max_num_batched_tokens=None)


@BATCHINGS.register("mixed")
class Mixed(BatchComposition):
    """Whole prompts within the token budget."""

    cuts_prompts = False


@BATCHINGS.register("chunked")
class Chunked(BatchComposition):
    """The base class as it stands."""


@BATCHINGS.register("prefill-first")
class PrefillFirst(BatchComposition):
    """While a prompt can run, nobody decodes."""

    phases = ("prefill", "admit", "decode")
    mixes = False


@BATCHINGS.register("decode-first")
class DecodeFirst(BatchComposition):
    """Prompts run only in steps in which fewer than `min_decoding` requests decode (1: none does)."""

    mixes = False

    def __init__(
        self,
        max_num_batched_tokens: int | None = 2048,
        long_prefill_threshold: int = 0,
        min_decoding: int = 1,
    ):
        super().__init__(max_num_batched_tokens, long_prefill_threshold)
        self.min_decoding = min_decoding
        self._prompts = True

    def start(self, scheduler: RunningSet) -> None:
        super().start(scheduler)
        self._prompts = scheduler.table.num_decoding < self.min_decoding
        can_prefill = bool(scheduler.prefilling or scheduler.waiting)
        self.phases = (
            ("prefill", "admit", "decode")
            if self._prompts and can_prefill
            else ("decode", "prefill", "admit")
        )

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        return None if self._prompts else "decodes_first"


@BATCHINGS.register("pools")
class SeparatePools(BatchComposition):
    """Prompts longer than `long_prompt` tokens share `long_tokens` of each step's budget, and at most `max_long` of
    them run at once; short ones never wait behind them for budget."""

    def __init__(
        self,
        max_num_batched_tokens: int | None = 2048,
        long_prompt: int = 4096,
        long_tokens: int = 1024,
        max_long: int = 4,
    ):
        super().__init__(max_num_batched_tokens)
        self.long_prompt, self.long_tokens, self.max_long = long_prompt, long_tokens, max_long
        self._long_left = long_tokens

    def is_long(self, request: Request) -> bool:
        return request.spec.num_prompt_tokens > self.long_prompt

    def start(self, scheduler: RunningSet) -> None:
        super().start(scheduler)
        self._long_left = self.long_tokens

    def limit(self, scheduler: RunningSet, request: Request) -> str | None:
        if not self.is_long(request):
            return None
        num_long = sum(self.is_long(r) for r in scheduler.running.values())
        return "max_long" if num_long >= self.max_long else None

    def chunk(self, request: Request, want: int) -> int:
        return super().chunk(request, min(want, self._long_left) if self.is_long(request) else want)

    def take(self, request: Request, num_tokens: int) -> None:
        super().take(request, num_tokens)
        if self.is_long(request):
            self._long_left -= num_tokens
