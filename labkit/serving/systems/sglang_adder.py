"""One prefill pass: which waiting requests fit (`managers/schedule_policy.py` `PrefillAdder`,
`mem_cache/prefill_budget.py` `PrefillBudget`).

Three budgets:

    rem_input    tokens of the pass (`max_prefill_tokens`)
    rem_chunk    tokens of the pass when prefills are cut (`chunked_prefill_size`)
    rem_total    free and evictable tokens, minus what running requests are expected to add, minus what was admitted

A candidate is charged for everything it may still generate; those that run are charged `new_token_ratio` of it. The
offsets are floating-point numbers, added in the server's order, because the last bit may decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from labkit.serving.systems.sglang_options import SglangOptions
from labkit.serving.systems.sglang_pool import TokenPool
from labkit.serving.systems.sglang_radix import RadixTree
from labkit.serving.systems.sglang_request import CLIP_MAX_NEW_TOKENS, Req

#: tokens each request keeps in hand when completion is simulated (`IGNORE_EOS_RESERVE_TOKENS`)
RESERVE_TOKENS = 1


class Verdict(Enum):
    """What an attempt says about the next candidate."""

    CONTINUE = "continue"
    NO_TOKEN = "no_token"
    OTHER = "other"


class PrefillAdder:
    """`admitted` fills up; `new_chunked` is the request that this pass cut."""

    def __init__(
        self,
        options: SglangOptions,
        tree: RadixTree,
        pool: TokenPool,
        running: list[Req],
        new_token_ratio: float,
        clock: int,
        *,
        release: Callable[[Req, int], None],
    ):
        self.options = options
        self.tree = tree
        self.pool = pool
        self.running = running
        self.clock = clock
        self.ratio = 1.0 if options.ignore_eos else new_token_ratio
        self.release = release
        num_mixed = len(running) if options.enable_mixed_chunk and options.chunk_tokens else 0
        self.rem_input = options.max_prefill_tokens - num_mixed
        chunk = options.chunk_tokens
        self.rem_chunk = None if chunk is None else chunk - num_mixed
        expected, ratio = 0.0, self.ratio
        for req in running:  # `new_tokens_left`, written out: this walk is the dearest part of a pass
            left = req.max_new_tokens - clock - req.base  # type: ignore[operator]
            expected += (left if left < CLIP_MAX_NEW_TOKENS else CLIP_MAX_NEW_TOKENS) * ratio
        self.total_offset: float = num_mixed + expected
        self.current_offset = num_mixed
        self.admitted: list[Req] = []
        self.preempted: list[Req] = []
        self.new_chunked: Req | None = None
        self._completions: list[tuple[float, int]] | None = None

    @property
    def rem_total(self) -> float:
        """Tokens left in the whole pool, with what running requests may still need set aside."""
        return self.pool.available + self.tree.num_evictable - self.total_offset

    @property
    def rem_current(self) -> int:
        """Tokens left in the whole pool, with only what was added in this step set aside."""
        return self.pool.available + self.tree.num_evictable - self.current_offset

    def budget_state(self) -> Verdict:
        """Whether another request may be looked at, and what is spent if not."""
        if self.rem_total <= 0 or self.rem_current <= 0:
            return Verdict.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def add_chunked(self, req: Req, limit: int | None) -> Req | None:
        """The next piece of the cut request comes first. At most `limit` tokens (None: what the pass has left).
        Returns it again while more is left."""
        assert self.rem_chunk is not None
        room = min(self.rem_chunk, int(self.rem_total))
        if room <= 0:
            room = self.rem_chunk  # it must get on to give its memory back
        if limit is not None:
            room = min(room, limit)
        left = req.seqlen(self.clock) - req.prefix_len
        length = min(left, room)
        req.extend_end = req.prefix_len + length
        self.admitted.append(req)
        cut = left > room
        self._charge(length, 0 if cut else min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS))
        return req if cut else None

    def add_one(self, req: Req, has_chunked: bool) -> Verdict:
        """Admit the candidate if it fits; the verdict is about the next one."""
        options = self.options
        if options.prefill_max_requests is not None and len(self.admitted) >= options.prefill_max_requests:
            return Verdict.OTHER
        if options.ignore_eos and options.disable_radix_cache:
            return self._add_one_to_completion(req)
        assert req.last_node is not None
        self.tree.lock(req.last_node)
        try:
            choice = self._choose(req, has_chunked)
        finally:
            self.tree.unlock(req.last_node)
        if isinstance(choice, Verdict):
            return choice
        length, max_new = choice
        self._admit(req, length, max_new, cut=req.prefix_len + length < req.seqlen(self.clock))
        return self.budget_state()

    def _choose(self, req: Req, has_chunked: bool) -> tuple[int, int] | Verdict:
        """Tokens to compute and outputs to charge, while the matched prefix is pinned."""
        page_size = self.options.page_size
        length = req.seqlen(self.clock) - req.prefix_len
        max_new = min(max(req.max_new_tokens - req.outputs(self.clock), 0), CLIP_MAX_NEW_TOKENS)
        if length + max_new + page_size >= self.rem_total:
            return Verdict.NO_TOKEN
        paged = self._ceil_page(length)
        if self.rem_chunk is None and self.admitted and paged >= self.rem_input:
            return Verdict.OTHER
        if self.rem_chunk is None or paged <= self.rem_chunk:
            return length, min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        if has_chunked and self.options.schedule_policy == "shortest-prefill-first":
            return Verdict.OTHER
        length = (req.prefix_len + self.rem_chunk) // page_size * page_size - req.prefix_len
        return (length, 0) if length > 0 else Verdict.OTHER

    def _add_one_to_completion(self, req: Req) -> Verdict:
        """No cache and no early end: the pool's future is known, so play it forward (`add_one_req_ignore_eos`)."""
        length = req.seqlen(self.clock) - req.prefix_len
        paged = self._ceil_page(length) + self.options.page_size
        if paged > min(self.rem_current, self.rem_total):
            return Verdict.NO_TOKEN
        if not self._completes(req, paged):
            return Verdict.NO_TOKEN
        if self.rem_chunk is None or length <= self.rem_chunk:
            self._admit(req, length, min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS), cut=False, locked=False)
        elif self.rem_chunk <= 0:
            return Verdict.OTHER
        else:
            self._admit(req, self.rem_chunk, 0, cut=True, locked=False)
        return self.budget_state()

    def _completes(self, req: Req, paged: int) -> bool:
        """Would everybody reach the end, in order of tokens left, each giving back what it holds?"""
        if self._completions is None:
            states = [self._completion(r) for r in (req, *self.running, *self.admitted)]
            self._completions = sorted((s for s in states if s[0] > 0), key=lambda state: state[0])
        else:
            mine = self._completion(req)
            if mine[0] > 0:
                states = self._completions
                at = next(
                    (i for i, state in enumerate(states) if mine[0] <= state[0]), max(0, len(states) - 1)
                )
                states.insert(at, mine)
        room = self.rem_current - paged
        freed = 0
        for i, (left, occupied) in enumerate(self._completions):
            num_left = len(self._completions) - i
            if room + freed - left * num_left <= RESERVE_TOKENS * num_left:
                return False
            freed += occupied
        return True

    def _completion(self, req: Req) -> tuple[float, int]:
        return req.max_new_tokens * self.ratio - req.outputs(self.clock), req.seqlen(self.clock)

    def _admit(self, req: Req, length: int, max_new: int, *, cut: bool, locked: bool = True) -> None:
        req.extend_end = req.prefix_len + length
        if locked and req.last_node is not None:
            req.lock = self.tree.lock(req.last_node)
        self.admitted.append(req)
        if cut:
            self.new_chunked = req
        self._charge(length, max_new)

    def _charge(self, length: int, max_new: int) -> None:
        paged = self._ceil_page(length)
        now = paged + self.options.page_size
        self.total_offset += now + max_new
        self.current_offset += now
        self.rem_input -= paged
        if self.rem_chunk is not None:
            self.rem_chunk -= paged

    def _ceil_page(self, num_tokens: int) -> int:
        return -(-num_tokens // self.options.page_size) * self.options.page_size

    def preempt_for(self, req: Req) -> bool:
        """Make a slot by sending less urgent running requests back (`preempt_to_schedule`). They must be less urgent by
        more than the threshold, and their expected tokens must cover what the candidate needs. `fill_len` and `prefix_len`
        are what its last attempt left: a request that was never looked at counts without its prompt."""
        options = self.options
        sign = 1 if options.schedule_low_priority_values_first else -1
        candidates = [r for r in self.running if not r.finished]
        candidates.sort(key=lambda r: (r.priority * -sign, -r.queue_entry))
        needed: float = req.fill_len - req.prefix_len + min(req.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        needed -= self.rem_total
        victims: list[Req] = []
        for victim in candidates:
            if (req.priority - victim.priority) * -sign <= options.priority_scheduling_preemption_threshold:
                break
            victims.append(victim)
            needed -= victim.new_tokens_left(self.clock) * self.ratio
            if needed <= 0:
                break
        if not victims or needed > 0:
            return False
        self._send_back(victims)
        return True

    def _send_back(self, victims: Sequence[Req]) -> None:
        """In the order of the running list; each is told how many will then be left. (The server puts several victims of
        one candidate into its queue in the order of a Python set, which is no order; here it is the running list's.)"""
        gone = set(victims)
        num_left = len(self.running)
        kept = []
        for victim in self.running:
            if victim not in gone:
                kept.append(victim)
                continue
            self.total_offset -= victim.new_tokens_left(self.clock) * self.ratio
            num_left -= 1
            self.release(victim, num_left)
            self.preempted.append(victim)
        self.running[:] = kept
