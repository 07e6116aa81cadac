"""The lab scheduler's usual composition, said plainly: every running request is visited in every step.

First come first served, admission by blocks with a watermark and a gate, chunked prefill, preemption of the last
admitted by recompute. Blocks are a number here: which ones they are decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.workload.base import RequestSpec


@dataclass(eq=False)
class Row:
    spec: RequestSpec
    computed: int = 0
    outputs: int = 0
    blocks: int = 0

    @property
    def known(self) -> int:
        return self.spec.num_prompt_tokens + self.outputs


@dataclass
class PlainScheduler:
    num_blocks: int
    block_size: int
    budget: int
    max_num_seqs: int
    headroom: float = 0.0
    gate: str = "prompt"
    waiting: list[Row] = field(default_factory=list)
    running: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = self.num_blocks

    def add(self, spec: RequestSpec) -> None:
        self.waiting.append(Row(spec))

    def step(self) -> dict:
        """Decide and run one step; returns what was decided."""
        scheduled: list[tuple[str, int, int]] = []
        preempted: list[tuple[str, int, int]] = []
        admitted: list[str] = []
        decoding = [row for row in self.running if row.computed == row.known - 1 and row.outputs]
        left = self.budget - len(decoding)
        rows = decoding + [row for row in self.running if row not in decoding]
        chunks: dict[int, tuple[Row, int]] = {}
        for row in rows:
            if row not in self.running:
                continue
            want = 1 if row in decoding else min(row.known - row.computed, max(0, left))
            if not want:
                continue
            while self.missing(row, row.computed + want) > self.free and row in self.running:
                victim = self.running[-1]
                preempted.append((victim.spec.request_id, victim.blocks, victim.computed))
                if id(victim) in chunks:
                    left += 0 if victim in decoding else chunks.pop(id(victim))[1]
                    chunks.pop(id(victim), None)
                self.running.remove(victim)
                self.free += victim.blocks
                victim.blocks = victim.computed = 0
                self.waiting.insert(0, victim)
            if row not in self.running:
                continue
            self.take(row, row.computed + want)
            chunks[id(row)] = (row, want)
            if row not in decoding:
                left -= want
        while self.waiting and not preempted and left > 0 and len(self.running) < self.max_num_seqs:
            row = self.waiting[0]
            want = min(row.known, left)
            spare = int(self.headroom * self.num_blocks) if self.running else 0
            first = row.known if self.gate == "prompt" else want
            if self.missing(row, first) > self.free - spare:
                break
            self.take(row, want)
            self.running.append(self.waiting.pop(0))
            admitted.append(row.spec.request_id)
            chunks[id(row)] = (row, want)
            left -= want
        finished = []
        for row in self.running.copy():
            if id(row) not in chunks:
                continue
            want = chunks[id(row)][1]
            scheduled.append((row.spec.request_id, row.computed, want))
            row.computed += want
            row.outputs += row.computed == row.known
            if row.outputs == row.spec.num_output_tokens:
                finished.append(row.spec.request_id)
                self.running.remove(row)
                self.free += row.blocks
        return {
            "scheduled": scheduled,
            "preempted": preempted,
            "admitted": admitted,
            "finished": sorted(finished),
            "free": self.free,
        }

    def missing(self, row: Row, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size) - row.blocks

    def take(self, row: Row, num_tokens: int) -> None:
        missing = self.missing(row, num_tokens)
        row.blocks += missing
        self.free -= missing
