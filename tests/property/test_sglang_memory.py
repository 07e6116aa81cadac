"""Books balance in every step, and what a step reads from the pages it names is what was computed for those tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from labkit.serving.base import StepPlan, StepResult
from labkit.serving.systems.sglang import SglangScheduler
from labkit.workload.base import RequestSpec
from tests.property.sglang_loads import random_case


class PagedMemory:
    """Stands for keys and values: a slot remembers the whole sequence up to the token that was written there."""

    def __init__(self, page_size: int):
        self.page_size = page_size
        self.slots: dict[int, tuple[int, ...]] = {}

    def run(self, plan: StepPlan, known: dict[str, list[int]]) -> None:
        for chunk in plan.chunks or ():
            end = chunk.start + chunk.num_tokens
            assert len(chunk.block_table) * self.page_size >= end, "the table covers what is computed"
            assert chunk.samples == (end == len(known[chunk.request_id])), "samples at the last known token"
            for position in range(chunk.start, end):
                self.slots[self.slot(chunk.block_table, position)] = tuple(
                    known[chunk.request_id][: position + 1]
                )
        for chunk in plan.chunks or ():
            for position in range(chunk.start + chunk.num_tokens):
                found = self.slots.get(self.slot(chunk.block_table, position))
                assert found == tuple(known[chunk.request_id][: position + 1]), (
                    f"{chunk.request_id} reads at {position} what belongs to another sequence"
                )

    def slot(self, table: Sequence[int], position: int) -> int:
        return table[position // self.page_size] * self.page_size + position % self.page_size


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    names = {name: value for name, value in config.items() if name not in ("cache", "enable_priority")}
    if names["retraction_policy"] == "priority" or config["enable_priority"]:
        names |= {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}
        names["priority_scheduling_preemption_threshold"] = 0
    return names


def drive(config: dict[str, Any], workload: list[dict[str, Any]]) -> tuple[int, int]:
    """Returns finished and refused requests."""
    with_ids = SglangScheduler(record_chunks=True, **options_of(config))
    counting = SglangScheduler(**options_of(config))
    memory = PagedMemory(config["page_size"])
    known: dict[str, list[int]] = {}
    coming = sorted(workload, key=lambda row: row["arrival_step"])
    finished = refused = 0
    for step in range(3000):
        while coming and coming[0]["arrival_step"] <= step:
            row = coming.pop(0)
            prompt = row["prompt_token_ids"]
            spec = RequestSpec(
                row["id"],
                0.0,
                len(prompt),
                row["output_len"],
                prompt_token_ids=prompt,
                priority=row["priority"],
            )
            reason = with_ids.add(spec)
            assert counting.add(spec) == reason
            refused += reason is not None
            known[row["id"]] = list(prompt)
        if not coming and not with_ids.has_work():
            break
        plan, counted = with_ids.schedule(), counting.schedule()
        with_ids.check_integrity()
        memory.run(plan, known)
        assert sum(c.num_tokens for c in plan.chunks or ()) == plan.num_scheduled_tokens
        assert sum(c.start for c in plan.chunks or ()) == plan.num_kv_tokens_read
        prefilled = list(plan.chunks or ())[: len(plan.chunks or ()) - plan.num_decode_requests]
        assert sum(c.num_tokens for c in prefilled) == plan.num_prefill_tokens
        assert (
            sum(c.num_tokens * (2 * c.start + c.num_tokens + 1) for c in prefilled)
            == 2 * plan.num_prefill_pairs
        )
        sampled = {
            c.request_id: _token(c.request_id, len(known[c.request_id]))
            for c in plan.chunks or ()
            if c.samples
        }
        for name, token in sampled.items():
            known[name].append(token)
        outcome = with_ids.update(plan, StepResult(0.0, sampled))
        assert counting.update(counted, StepResult(0.0, sampled)) == outcome
        plan.chunks = None
        assert plan == counted, "ids decide nothing"
        with_ids.check_integrity()
        counting.check_integrity()
        finished += len(outcome.finished)
        assert not plan.dropped, "what was let in can always be served"
    else:
        raise AssertionError("does not come to an end")
    return finished, refused


def _token(request_id: str, position: int) -> int:
    """The same for copies would be as right; different ones make mistakes visible."""
    return 1_000_000 + 10_000 * int(request_id[1:]) + position


@pytest.mark.parametrize("block", range(4))
def test_memory_is_exact(block: int) -> None:
    finished = refused = 0
    for seed in range(block * 8, block * 8 + 8):
        done, turned_away = drive(*random_case(random.Random(seed), scarce=seed % 2 == 0))
        finished, refused = finished + done, refused + turned_away
    assert finished > 50


@pytest.mark.fuzz
def test_memory_is_exact_for_long() -> None:
    for seed in range(1000, 1400):
        drive(*random_case(random.Random(seed), scarce=seed % 2 == 0))
