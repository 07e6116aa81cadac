"""Planted mistakes in the SGLang model: the comparison with the plain one, or the balance of its books, finds each."""

from __future__ import annotations

import inspect
import random
import sys
import textwrap
from typing import Any

import pytest

from labkit.errors import IntegrityError, LabError
from labkit.recording import Comparison
from labkit.serving.systems import (
    sglang,
    sglang_adder,
    sglang_decode,
    sglang_decoding,
    sglang_memory,
    sglang_policy,
    sglang_prefill,
    sglang_radix,
    sglang_ratio,
    sglang_state,
)
from labkit.serving.systems.sglang_recording import replay_steps
from tests.property.sglang_loads import random_case
from tests.property.test_sglang_memory import drive
from tests.reference.sglang_plain import record

#: a first hundred, and some that reach what is rare (ends after a retraction in one step, a refreshed prefix, a cut page)
SEEDS = (*range(100), 112, 157, 171, 215, 304, 439, 464)

#: name -> (owner, function, what stands there, what is put there)
DECISIONS: dict[str, tuple[Any, str, str, str]] = {
    "retracted goes to the front": (sglang_state.SglangState, "queue", "self.waiting.append(req)", "self.waiting.insert(0, req)"),
    "most outputs are retracted": (sglang_decode, "_retract_decode", "reverse=True", "reverse=False"),
    "order after retraction is lost": (sglang_decode, "_retract_decode", "state.rank(kept)", "pass"),
    "retraction inserts": (sglang_state.SglangState, "retract", "insert=False", "insert=True"),
    "retraction makes no room": (sglang_state.SglangState, "retract", "num_left * RETRACT_DECODE_STEPS", "0"),
    "ratio decays in a retraction": (sglang_ratio.NewTokenRatio, "after_retraction", "min(1.0, expected)", "min(1.0, expected) - self.decay"),
    "candidate charged by the ratio": (sglang_adder.PrefillAdder, "_choose", "length + max_new + page_size", "length + max_new * self.ratio + page_size"),
    "prefix not pinned while it is measured": (sglang_adder.PrefillAdder, "add_one", "self.tree.lock(req.last_node)", "self.tree.lock(self.tree.root)"),
    "cut not rounded to pages": (sglang_adder.PrefillAdder, "_choose", "(req.prefix_len + self.rem_chunk) // page_size * page_size - req.prefix_len", "self.rem_chunk"),
    "victims need no gap": (sglang_adder.PrefillAdder, "preempt_for", "<= options.priority", "< options.priority"),
    "whole prompt may hit": (sglang_memory.RequestMemory, "match", "len(tokens) - 1", "len(tokens)"),
    "prompt not cut from its outputs": (sglang_memory.RequestMemory, "_insert", "0 < prompt < length", "False"),
    "no page too many is asked for": (sglang_memory.RequestMemory, "allocate_extend", "num_tokens + page_size * len(reqs)", "num_tokens"),
    "decode asks for what it needs": (sglang_decode, "take_decode_slots", "page_size > 1", "False"),
    "somebody overtakes": (sglang_prefill, "_admit", "if verdict is not Verdict.CONTINUE:\n            return", "if verdict is Verdict.OTHER:\n            return"),
    "mixed rows forgotten": (sglang, "_settle", "[*state.extend_rows, *state.decode_rows]", "[*state.decode_rows, *state.extend_rows]"),
    "copies are not put last": (sglang_policy.QueueOrder, "_match_all", ">= DEPRIORITIZE_IN_BATCH", ">= 1 << 30"),
    "waiting prefixes are not refreshed": (sglang_policy.QueueOrder, "_refresh", "if due:", "if False:"),
    "heavy branches last": (sglang_policy, "dfs_weight_order", "-weight[child]", "weight[child]"),
    "hits counted twice": (sglang_radix.RadixTree, "insert", "if at > counted", "if at > 0"),
    "split loses hits": (sglang_radix.RadixTree, "_split", "front.hit_count, front.history = child.lock_ref, child.hit_count, child.history", "front.history = child.lock_ref, child.history"),
    "touched leaf keeps its place": (sglang_radix.RadixTree, "_touch", "self._list(node)", "pass"),
    "leaf is as old as the walk": (sglang_radix.RadixTree, "_split", "self._touch(child, time)", "child.last_access = 0"),
    "emptied parent is not evictable": (sglang_radix.RadixTree, "_remove", "self._is_evictable_leaf(parent)", "False"),
    "stale last step": (sglang_decoding.DecodeCounts, "advance", "if req.last_at == self.clock", ""),
    "listed twice": (sglang_decoding.DecodeCounts, "advance", "dict.fromkeys(done)", "done"),
    "finished out of order": (sglang_decoding.DecodeCounts, "advance", "done.sort(key=lambda req: req.rank)", "done.reverse()"),
    "page due one step late": (sglang_decoding.DecodeCounts, "_count", "(self.clock - num_computed)", "(self.clock - num_computed + 1)"),
}  # fmt: skip

#: wrong page ids: no count and no decision shows them
PLACES: dict[str, tuple[Any, str, str, str]] = {
    "duplicate pages kept": (sglang_memory.RequestMemory, "_insert", "tree.path_pages(node)[first:last]", "req.pages[first:last]"),
    "prefix pages of nobody": (sglang_memory.RequestMemory, "allocate_extend", "self.tree.path_pages(req.last_node)[:have]", "[0] * have"),
    "split shares its pages": (sglang_radix.RadixTree, "_split", "child.pages = child.pages[length // self.page_size :]", "pass"),
    "decode page to the wrong row": (sglang_decode, "take_decode_slots", "for req in state.running:", "for req in reversed(state.running):"),
    "duplicate pages leak": (sglang_memory.RequestMemory, "_insert", "self.pool.give(last - first, req.pages[first:last])", "pass"),
    "lock left behind": (sglang_memory.RequestMemory, "_insert", "tree.unlock(req.lock)", "pass"),
}  # fmt: skip
#: a permutation of free pages among rows is no mistake
HARMLESS = {"decode page to the wrong row"}


def replay(recording):
    """The steps of a record that the plain scheduler wrote: it has no header and no totals."""
    comparison = Comparison("sglang")
    replay_steps(recording, comparison)
    return comparison


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Rewrite one function of the shipped model for the length of a test, wherever it was imported to."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} does not stand once in {name}"
    namespace = dict(sys.modules[function.__module__].__dict__)
    exec(compile("from __future__ import annotations\n" + source.replace(old, new), name, "exec"), namespace)
    monkeypatch.setattr(owner, name, namespace[name])
    for module in list(sys.modules.values()):
        if (
            getattr(module, "__name__", "").startswith("labkit.serving.systems.sglang")
            and getattr(module, name, None) is function
        ):
            monkeypatch.setattr(module, name, namespace[name])


@pytest.fixture(scope="module")
def recordings() -> list[dict[str, Any]]:
    return [record(*random_case(random.Random(seed), scarce=seed % 3 != 0)) for seed in SEEDS]


def found(recordings: list[dict[str, Any]]) -> bool:
    for recording in recordings:
        try:
            if replay(recording).num_differences:
                return True
        except (IntegrityError, LabError, KeyError, AssertionError, ValueError, IndexError, TypeError):
            return True
    return False


def test_without_a_mistake_nothing_is_found(recordings: list[dict[str, Any]]) -> None:
    assert not found(recordings)


@pytest.mark.parametrize("name", DECISIONS)
def test_wrong_decision_is_found(
    name: str, recordings: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *DECISIONS[name])
    assert found(recordings)


@pytest.mark.parametrize("name", PLACES)
def test_wrong_place_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *PLACES[name])

    def noticed() -> bool:
        for seed in range(40):
            try:
                drive(*random_case(random.Random(seed), scarce=seed % 2 == 0))
            except (IntegrityError, LabError, KeyError, AssertionError):
                return True
        return False

    assert noticed() is (name not in HARMLESS)
