"""Planted bugs in the shipped vLLM scheduler: the comparison with the plain one must notice each of them.

A mutant replaces one piece of source text. Integrity checks are off, so it is the decisions that give it away.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any, NamedTuple

import pytest

from labkit.serving.systems.vllm_blocks import BlockPool
from labkit.serving.systems.vllm_content import Contents
from labkit.serving.systems.vllm_decoding import Decoding
from labkit.serving.systems.vllm_options import VllmOptions
from labkit.serving.systems.vllm_placing import VllmPlacing
from labkit.serving.systems.vllm_recording import replay
from labkit.serving.systems.vllm_state import VllmState
from labkit.serving.systems.vllm_steps import VllmSteps
from labkit.serving.systems.vllm_walking import VllmWalking
from tests.property.test_vllm_equals_plain import compare
from tests.serving.test_vllm_recordings import load

NEVER = 10**9


class Mutant(NamedTuple):
    owner: type
    method: str
    old: str
    new: str
    first_seed: int = 0  # where to start looking: some bugs need a rare load


MUTANTS = {
    "a block is findable one step late": Mutant(
        VllmSteps, "decide", "(decoding.step + 1) % self.block_size", "decoding.step % self.block_size"
    ),
    "visit in no order": Mutant(
        VllmSteps, "decide", "sorted({*due, *filled, *prefilling}, key=by_seq)", "[*dict.fromkeys([*prefilling, *filled, *due])]"
    ),
    "blocks are enough although one is missing": Mutant(VllmSteps, "decide", "len(due) <= pool.num_free", "len(due) <= pool.num_free + 1"),
    "admit in a step that preempts": Mutant(VllmSteps, "decide", " and not self.preempted", ""),
    "decoding requests cost no budget": Mutant(VllmSteps, "decide", "self.options.budget - decoding.num", "self.options.budget"),
    "the lag is forgotten when a block fills": Mutant(VllmSteps, "_fill", "self.lag and r.num_cached + 1 >= len(r.table)", "False"),
    "a priority request that gave itself up stops the step": Mutant(VllmSteps, "_visit", "not self.by_priority", "True"),
    "an unforeseen end is foreseen": Mutant(VllmSteps, "_prompt_done", " + unforeseen", ""),
    "the last block is not findable after an async end": Mutant(VllmSteps, "_finish", "r.state == DRAIN", "False"),
    "append to a due row instead of sorting in": Mutant(Decoding, "enter", "row[-1].seq > r.seq", "False"),
    "the last step stays registered": Mutant(Decoding, "leave", "row.remove(r)", "pass"),
    "budget is not given back": Mutant(VllmPlacing, "place", "given_back += self._take_back(victim)", "self._take_back(victim)", 360),
    "the in-flight token counts as known": Mutant(VllmPlacing, "place", "start + 1 - (not r.delivered)", "start + 1"),
    "FCFS takes the first": Mutant(VllmPlacing, "_choose_victim", "next(reversed(self.running))", "next(iter(self.running))"),
    "priority ignores arrival": Mutant(VllmPlacing, "_choose_victim", "(r.priority, r.arrival)", "r.priority"),
    "no limit for a lone long prefill is forgotten": Mutant(VllmPlacing, "threshold", "count < 2", "False"),
    "idle hits cost nothing": Mutant(VllmPlacing, "blocks_at_admission", "self.pool.num_idle(hit)", "0"),
    "the watermark also holds when idle": Mutant(VllmPlacing, "blocks_at_admission", "if self.running else 0", "if True else 0"),
    "the gate is off": Mutant(VllmPlacing, "blocks_at_admission", "self.options.scheduler_reserve_full_isl", "False"),
    "a whole prompt may hit": Mutant(VllmPlacing, "cached_prefix", "(r.num_tokens - 1)", "r.num_tokens"),
    "the watermark leaves out the null block": Mutant(VllmOptions, "watermark_blocks", "self.num_gpu_blocks)", "(self.num_gpu_blocks - 1))"),
    "a preempted request goes to the back": Mutant(VllmState, "preempt", "self.waiting.put_back(r)", "self.waiting.append(r)"),
    "a preempted private request stays private": Mutant(VllmState, "preempt", "if r.private:", "if False:"),
    "a token under way is lost": Mutant(VllmState, "preempt", "under_way and r.num_tokens == r.end", "False", 25),
    "outdated entries count": Mutant(BlockPool, "touch", "self.outdated[block] = self.outdated.get(block, 0) + 1", "pass"),
    "a rebuild keeps outdated entries": Mutant(BlockPool, "_rebuild", "if self.outdated.get(block):", "if False:"),
    "shallow blocks age first": Mutant(BlockPool, "release", "table[num_cached - 1 :: -1]", "table[:num_cached]"),
    "the newest copy is found": Mutant(BlockPool, "_unpublish", "copies.pop(0)", "copies.pop()", 45),
    "content ignores what came before": Mutant(Contents, "extend", "keys[i - 1] if i else 0", "0"),
    "a held prefill chunk runs": Mutant(VllmWalking, "decide_by_walking", "(hold and r.state == PREFILL)", "False"),
    "one passed over is served": Mutant(VllmWalking, "decide_by_walking", "if r.state == DECODE and r not in served", "if False", 165),
    "its token under way is forgotten": Mutant(VllmWalking, "after_walking", "r.delivered = True", "pass", 615),
}  # fmt: skip


def plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect.getattr_static(mutant.owner, mutant.method)
    function = found.fget if isinstance(found, property) else found
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"the text of the mutant occurs {source.count(mutant.old)} times"
    namespace: dict[str, Any] = {}
    exec(source.replace(mutant.old, mutant.new), sys.modules[function.__module__].__dict__, namespace)
    monkeypatch.setattr(mutant.owner, mutant.method, namespace[mutant.method])


def is_noticed(first_seed: int = 0, max_seeds: int = 600) -> bool:
    for seed in range(first_seed, first_seed + max_seeds):
        for rare, content in ((False, "tokens"), (True, "tokens"), (False, "private"), (False, "published")):
            try:
                compare(seed, rare, content, check_every=NEVER)  # type: ignore[arg-type]
            except Exception:
                return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(MUTANTS[name], monkeypatch)
    assert is_noticed(MUTANTS[name].first_seed), f"nobody noticed: {name}"


def test_a_finish_list_in_no_order_is_noticed_by_its_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests whose decode starts out of admission order and ends in one step."""
    plant(
        Mutant(
            VllmSteps, "_finish", "delivered.sort(key=by_seq)", "delivered.sort(key=by_seq, reverse=True)"
        ),
        monkeypatch,
    )
    assert replay(load("finish_order_a")).num_differences > 0


def test_without_a_planted_bug_nothing_is_noticed() -> None:
    assert not is_noticed(max_seeds=15)
