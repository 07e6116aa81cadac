"""A tiny random scheduler that drives one KV manager and one `TensorExecutor` through everything a real one does: chunked
prefill, forks, preemption by recompute, refusals, all in a random order that a seed fixes."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from labkit.kv import KVCacheManager, Move, NoSpace
from labkit.serving.base import Chunk, StepPlan
from labkit.serving.llama import Llama, plain_logits
from labkit.serving.llama_config import LlamaConfig
from labkit.serving.tensor_executor import TensorExecutor


def random_requests(
    config: LlamaConfig, num_requests: int, seed: int, *, max_prefix: int = 150, max_tail: int = 40
):
    """`[(id, prompt, num_outputs)]`: prompts begin with one of a few shared prefixes, some end inside one."""
    rng = np.random.default_rng(seed)
    prefixes = [rng.integers(0, config.vocab_size, max_prefix).tolist() for _ in range(4)]
    requests = []
    for i in range(num_requests):
        prefix = prefixes[int(rng.integers(len(prefixes)))][: int(rng.integers(1, max_prefix + 1))]
        tail = rng.integers(0, config.vocab_size, int(rng.integers(0, max_tail + 1))).tolist()
        requests.append((f"r{i}", prefix + tail, int(rng.integers(1, 13))))
    return requests


class Driver:
    """Serves `requests` to the end; `counts` says what happened on the way.

    Invariant between steps: a running request has slots for exactly its computed tokens.
    """

    def __init__(
        self,
        executor: TensorExecutor,
        kv: KVCacheManager,
        requests,
        *,
        seed: int,
        max_running: int = 8,
        fork_rate: float = 0.2,
        preempt_rate: float = 0.12,
    ):
        self.executor, self.kv = executor, kv
        self.rng = random.Random(seed)
        self.waiting = [request_id for request_id, _, _ in requests]
        self.final: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.max_running, self.fork_rate, self.preempt_rate = max_running, fork_rate, preempt_rate
        self.counts: Counter[str] = Counter()
        self.num_forks = 0
        for request_id, prompt, num_outputs in requests:
            executor.add_prompt(request_id, prompt)
            self.final[request_id] = len(prompt) + num_outputs

    def run(self) -> None:
        for _ in range(10_000):
            if not self.waiting and not self.computed:
                return
            self.step()
        raise AssertionError(f"not done after 10,000 steps: {self.counts}")

    def step(self) -> None:
        rng, kv, executor = self.rng, self.kv, self.executor
        moves: list[Move] = []
        work: dict[str, int] = {}
        if self.computed and rng.random() < self.preempt_rate:
            self.preempt(rng.choice(list(self.computed)))
        for request_id in list(self.computed):
            if request_id in self.computed:
                self.go_on(request_id, moves, work)
        for request_id in list(self.computed):
            if rng.random() < self.fork_rate and request_id not in work:
                self.fork(request_id, moves)
        while self.waiting and len(self.computed) < self.max_running:
            if not self.admit(self.waiting[0], moves, work):
                break
            self.waiting.pop(0)
        kv.check_integrity()
        chunks = []
        for request_id, num_tokens in work.items():
            start = self.computed[request_id]
            samples = start + num_tokens == len(executor.known_ids[request_id])
            table, base = tuple(kv.block_table(request_id)), kv.base_slot(request_id)
            chunks.append(Chunk(request_id, start, num_tokens, samples, table, base))
        executor.execute(StepPlan(0, chunks=chunks, moves=moves))
        self.counts["steps"] += 1
        for request_id, num_tokens in work.items():
            self.computed[request_id] += num_tokens
            if len(executor.known_ids[request_id]) >= self.final[request_id]:
                kv.free(request_id)
                del self.computed[request_id]
                self.counts["finished"] += 1

    def admit(self, request_id: str, moves: list[Move], work: dict[str, int]) -> bool:
        known = self.executor.known_ids[request_id]
        hit = self.kv.lookup(known)
        assert hit < len(known)
        first = min(len(known), hit + self.chunk())
        answer = self.kv.admit(
            request_id,
            first,
            max_tokens=self.final[request_id],
            final_tokens=self.final[request_id],
            token_ids=known,
        )
        assert answer.can_ever_fit, answer.reason
        if not answer.admitted:
            self.counts["refused"] += 1
            return False
        assert answer.num_hit_tokens == hit
        self.counts["hit_tokens"] += hit
        moves += answer.moves
        self.computed[request_id], self.told[request_id] = hit, len(known)
        work[request_id] = first - hit
        return True

    def go_on(self, request_id: str, moves: list[Move], work: dict[str, int]) -> None:
        """One more chunk, or (sometimes) nothing. Without room somebody who has not been scheduled is preempted."""
        if self.rng.random() < 0.2:
            return
        known, start = self.executor.known_ids[request_id], self.computed[request_id]
        num_tokens = min(len(known) - start, self.chunk())
        while True:
            try:
                grown = self.kv.append(request_id, num_tokens, known[self.told[request_id] :])
            except NoSpace:
                victims = [r for r in self.computed if r not in work and r != request_id]
                self.preempt(victims[-1] if victims else request_id)
                self.counts["no_space"] += 1
                if not victims:
                    return
                continue
            self.told[request_id] = len(known)
            moves += grown.moves
            work[request_id] = num_tokens
            return

    def fork(self, parent: str, moves: list[Move]) -> None:
        """Parallel sampling: the child has the parent's computed tokens and goes on with another one."""
        child = f"f{self.num_forks}"
        try:
            moves += self.kv.fork(parent, child).moves
        except NoSpace:
            self.counts["fork_refused"] += 1
            return
        self.num_forks += 1
        computed = self.computed[parent]
        other = (self.executor.known_ids[parent][computed] + 1) % self.executor.config.vocab_size
        self.executor.add_prompt(child, [*self.executor.known_ids[parent][:computed], other])
        # the manager knows the parent's told tokens; where those go beyond what is computed the child's differ
        self.computed[child], self.told[child] = computed, computed
        self.final[child] = min(self.final[parent], computed + 1 + self.rng.randint(1, 8))
        self.final[child] = max(self.final[child], computed + 2)
        self.counts["forks"] += 1

    def preempt(self, request_id: str) -> None:
        self.kv.free(request_id, num_computed_tokens=self.computed.pop(request_id))
        self.waiting.append(request_id)
        self.counts["preemptions"] += 1

    def chunk(self) -> int:
        return self.rng.choice((3, 17, 64, 1000))


def assert_same_tokens(
    executor: TensorExecutor, model: Llama, memo: dict[tuple[int, ...], float], attend=None
) -> None:
    """Every output is the best token of a forward pass without a cache over all before it, by a margin of 1e-4."""
    for request_id, known in executor.known_ids.items():
        first = executor.num_prompt_tokens[request_id]
        key = tuple(known)
        if key not in memo:
            logits = plain_logits(model, known[:-1], attend)[first - 1 :]
            best = logits.topk(2)
            assert best.indices[:, 0].tolist() == known[first:], f"request {request_id} has other tokens"
            memo[key] = float((best.values[:, 0] - best.values[:, 1]).min())
        assert memo[key] > 1e-4, f"request {request_id}: the two best logits are only {memo[key]} apart"
