"""vLLM's scheduler and block pool as plainly as they can be said: every running request is looked at in every step.

This is the readable statement of the rules (vLLM 0.33, `v1/core/sched/scheduler.py`, `v1/core/block_pool.py`); the
shipped `labkit.serving.systems.vllm` must decide the same, and a property test compares the two. Slow on purpose.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class PlainRequest:
    id: str
    tokens: list[int]  # prompt and delivered outputs
    outputs: list[int]  # what the model will answer, one by one
    max_outputs: int
    priority: int
    arrival: int
    num_prompt: int = 0
    computed: int = 0
    placeholders: int = 0  # async: sampled, not delivered yet
    in_flight: int = 0  # async: scheduled, result not processed
    stale: int = 0  # async: of those, scheduled before a preemption
    num_cached: int = 0
    table: list[int] = field(default_factory=list)
    status: str = "waiting"
    preempted: bool = False
    mid_prompt: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - self.num_prompt


class PlainPool:
    """Free blocks in one queue, head first; a cached block nobody holds stays in the queue and can still be found."""

    def __init__(self, num_blocks: int):
        self.free = OrderedDict.fromkeys(range(1, num_blocks))  # block 0 is the null block
        self.ref = [0] * num_blocks
        self.key: list[Any] = [None] * num_blocks
        self.map: dict[Any, list[int]] = {}
        self.evicted: list[int] = []

    def take(self, n: int) -> list[int]:
        taken = [self.free.popitem(last=False)[0] for _ in range(n)]
        for block in taken:
            self.ref[block] = 1
            if self.key[block] is not None:
                self.evicted.append(block)
                holders = self.map[self.key[block]]
                holders.remove(block)
                if not holders:
                    del self.map[self.key[block]]
                self.key[block] = None
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.ref[block] == 0:
                del self.free[block]
            self.ref[block] += 1

    def publish(self, block: int, key: Any) -> None:
        self.key[block] = key
        self.map.setdefault(key, []).append(block)

    def release(self, table: list[int]) -> None:
        for block in reversed(table):
            self.ref[block] -= 1
        unused = [block for block in reversed(table) if self.ref[block] == 0]
        for block in unused:
            self.free[block] = None  # to the tail, where cached blocks age
        for block in reversed([b for b in unused if self.key[b] is None]):
            self.free.move_to_end(block, last=False)  # without content: next to be reused


class PlainVllm:
    def __init__(self, options: dict[str, Any]):
        o = self.o = {
            "max_num_scheduled_tokens": None, "max_num_active_seqs": None, "prefill_schedule_interval": 1,
            "long_prefill_token_threshold_adaptive": False, **options,
        }  # fmt: skip
        self.bs, self.max_len, self.lag = o["block_size"], o["max_model_len"], o["async_scheduling"]
        self.pool = PlainPool(o["num_gpu_blocks"])
        self.running: list[PlainRequest] = []
        self.waiting: list[PlainRequest] = []
        self.keys: dict[Any, int] = {}
        self.pending: list[tuple[PlainRequest, int, bool]] = []
        self.added = self.executed = 0
        self.last_prefill = -o["prefill_schedule_interval"]
        self.capacity_bound = False

    def add(self, id: str, prompt: list[int], outputs: list[int], max_outputs: int, priority: int) -> None:
        r = PlainRequest(id, list(prompt), outputs, max_outputs, priority, self.added, len(prompt))
        self.added += 1
        self.enqueue(r, front=False)

    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.pending)

    def step(self) -> dict[str, Any]:
        """Schedule, then process the result of this step (sync) or of the step before (async)."""
        rec = self.schedule()
        free = len(self.pool.free)
        results, self.pending = (self.pending, rec.pop("rows")) if self.lag else (rec.pop("rows"), [])
        finished = self.process(results)
        return rec | {
            "free_blocks_after_schedule": free, "finished": finished, "free_blocks_end": len(self.pool.free),
            "running": [r.id for r in self.running], "waiting": [r.id for r in self.waiting],
            "cached_blocks_in_map": sum(map(len, self.pool.map.values())),
        }  # fmt: skip

    def schedule(self) -> dict[str, Any]:
        o, budget = self.o, self.o["max_num_batched_tokens"]
        count = len(self.running) + len(self.waiting)
        threshold = o["long_prefill_token_threshold"] if count > 1 else 0
        if threshold and o["long_prefill_token_threshold_adaptive"]:
            threshold = max(threshold, budget // count)
        budget = min(budget, o["max_num_scheduled_tokens"] or budget)
        decodes = any(not r.mid_prompt for r in self.running)
        recent = self.executed + 1 - self.last_prefill < o["prefill_schedule_interval"]
        hold = decodes and recent and not self.capacity_bound
        self.pool.evicted, prefilled = [], False
        rows: dict[PlainRequest, int] = {}
        new: dict[PlainRequest, list[int]] = {}
        preempted: list[dict[str, Any]] = []
        admitted: list[dict[str, Any]] = []

        i = 0
        while i < len(self.running) and budget > 0:
            r = self.running[i]
            finishing = r.placeholders and r.computed + 2 - r.placeholders >= r.num_prompt + r.max_outputs
            want = len(r.tokens) + r.placeholders - r.computed
            want = min(want, threshold or want, budget, self.max_len - r.computed - 1)
            if finishing or want <= 0 or (hold and r.mid_prompt):
                i += 1
                continue
            while (blocks := self.allocate(r, want)) is None:
                if o["policy"] == "priority":
                    victim = max(self.running, key=lambda v: (v.priority, v.arrival))
                else:
                    victim = self.running[-1]
                if self.running.index(victim) < i:
                    i -= 1
                budget += rows.pop(victim, 0)
                new.pop(victim, None)
                preempted.append({
                    "id": victim.id, "blocks": len(victim.table),
                    "num_computed_tokens": victim.computed, "num_tokens": len(victim.tokens),
                })  # fmt: skip
                self.preempt(victim)
                if victim is r:
                    break
            if blocks is None:
                if o["policy"] == "priority":
                    continue
                break
            rows[r], new[r] = want, blocks
            prefilled |= r.mid_prompt
            budget -= want
            i += 1

        limit = o["max_num_active_seqs"] or o["max_num_seqs"]
        while not preempted and self.waiting and budget > 0 and len(self.running) < limit:
            r = self.waiting[0]
            hit = self.lookup(r)
            rest = len(r.tokens) - len(hit) * self.bs
            if hold and rest > 1:
                break
            want = min(rest, threshold or rest)
            if want > budget and not o["enable_chunked_prefill"]:
                break
            want = min(want, budget)
            blocks = self.allocate(r, want, hit, admission=True)
            if blocks is None:
                break
            self.waiting.pop(0)
            self.running.append(r)
            admitted.append({
                "id": r.id, "cached_tokens": r.computed, "cached_blocks": len(hit),
                "resumed": r.preempted, "table": list(r.table),
            })  # fmt: skip
            r.status = "running"
            rows[r], new[r] = want, blocks
            prefilled |= rest > 1
            budget -= want
        if not preempted and not hold:
            self.capacity_bound = bool(self.waiting)

        self.executed += bool(rows)
        if prefilled:
            self.last_prefill = self.executed
        sampled = []
        for r, n in rows.items():
            r.computed += n
            r.in_flight += n
            r.mid_prompt = r.computed < len(r.tokens) + r.placeholders
            r.placeholders += self.lag and not r.mid_prompt
            sampled.append((r, n, not r.mid_prompt))
        return {
            "scheduled": [[r.id, n] for r, n in rows.items()], "admitted": admitted,
            "new_block_ids": {r.id: b for r, b in new.items()}, "preempted": preempted,
            "evicted_block_ids": self.pool.evicted, "rows": sampled,
        }  # fmt: skip

    def process(self, rows: list[tuple[PlainRequest, int, bool]]) -> list[str]:
        finished = []
        for r, n, sampled in rows:
            r.in_flight -= n
            is_stale, r.stale = r.stale > 0, max(0, r.stale - n)
            if not sampled or r.status == "finished":
                continue
            r.tokens.append(r.outputs[r.num_outputs])
            done = r.num_outputs >= min(len(r.outputs), r.max_outputs) or len(r.tokens) >= self.max_len
            if r.placeholders and not is_stale:
                r.placeholders -= 1
                self.cache(r, r.computed - r.in_flight)
            if done:
                finished.append(r.id)
                r.status = "finished"
                (self.running if r in self.running else self.waiting).remove(r)
                self.pool.release(r.table)
                r.table = []
        return finished

    def allocate(
        self, r: PlainRequest, n: int, hit: list[int] | None = None, admission: bool = False
    ) -> list[int] | None:
        """Blocks for `n` more tokens, or None and nothing changed."""
        hit = hit or []
        reserve = len([b for b in hit if self.pool.ref[b] == 0])
        if admission and self.running:
            reserve += int(self.o["watermark"] * self.o["num_gpu_blocks"])
        start = r.computed + len(hit) * self.bs
        held = len(r.table) + len(hit)
        if admission and self.o["scheduler_reserve_full_isl"]:
            whole = self.blocks_for(len(r.tokens)) - held
            if max(0, whole) + reserve > len(self.pool.free):
                return None
        need = max(0, self.blocks_for(start + n) - held)
        if need + reserve > len(self.pool.free):
            return None
        self.pool.touch(hit)
        new = self.pool.take(need)
        r.table += hit + new
        r.num_cached += len(hit)
        r.computed = start
        self.cache(r, start + n)
        return new

    def blocks_for(self, num_tokens: int) -> int:
        return -(-min(num_tokens, self.max_len) // self.bs)

    def cache(self, r: PlainRequest, num_tokens: int) -> None:
        """Publish the full blocks among the first `num_tokens`, as far as the tokens are known."""
        full = min(num_tokens, len(r.tokens)) // self.bs
        if self.o["enable_prefix_caching"]:
            for i, key in list(enumerate(self.content(r, full)))[r.num_cached :]:
                self.pool.publish(r.table[i], key)
                r.num_cached += 1

    def content(self, r: PlainRequest, num_blocks: int) -> list[int]:
        """One number per block for everything up to and including it."""
        keys, parent = [], 0
        for i in range(num_blocks):
            chain = (parent, tuple(r.tokens[i * self.bs : (i + 1) * self.bs]))
            parent = self.keys.setdefault(chain, len(self.keys) + 1)
            keys.append(parent)
        return keys

    def lookup(self, r: PlainRequest) -> list[int]:
        hit: list[int] = []
        if self.o["enable_prefix_caching"]:
            for key in self.content(r, (len(r.tokens) - 1) // self.bs):
                if key not in self.pool.map:
                    break
                hit.append(self.pool.map[key][0])
        return hit

    def preempt(self, r: PlainRequest) -> None:
        self.running.remove(r)
        self.pool.release(r.table)
        r.table, r.computed, r.num_cached, r.placeholders = [], 0, 0, 0
        r.stale, r.status, r.preempted, r.mid_prompt = r.in_flight, "waiting", True, False
        self.enqueue(r, front=True)

    def enqueue(self, r: PlainRequest, front: bool) -> None:
        if self.o["policy"] == "priority":
            self.waiting.append(r)
            self.waiting.sort(key=lambda w: (w.priority, w.arrival))
        else:
            self.waiting.insert(0 if front else len(self.waiting), r)
