"""A bad argument raises before anything is launched: one sentence that names argument and index."""

from __future__ import annotations

import re

import pytest
import torch

import labkit.kernels as kernels
from labkit.errors import LabError
from labkit.kernels import checks


def arguments(num_requests=3, num_heads=4, num_kv_heads=2, head_dim=32, num_blocks=8, block_size=16):
    """Valid arguments of paged decode; tests break one of them."""
    return {
        "query": torch.zeros(num_requests, num_heads, head_dim),
        "k_cache": torch.zeros(num_blocks, block_size, num_kv_heads, head_dim),
        "v_cache": torch.zeros(num_blocks, block_size, num_kv_heads, head_dim),
        "block_tables": torch.arange(6, dtype=torch.int32).view(3, 2),
        "seq_lens": torch.tensor([5, 17, 32]),
        "scale": 0.2,
    }


def broken(**changes):
    given = arguments() | changes
    with pytest.raises(LabError) as caught:
        kernels.paged_decode_attention(**given)
    message = str(caught.value)
    assert "\n" not in message
    return message


def table(row, column, value):
    tables = arguments()["block_tables"].clone()
    tables[row, column] = value
    return tables


def test_valid_arguments_pass():
    assert kernels.paged_decode_attention(**arguments()).shape == (3, 4, 32)


@pytest.mark.parametrize("value", [8, -1, 2**30])
def test_out_of_range_block_id(value):
    message = broken(block_tables=table(2, 1, value))
    assert message == f"block_tables[2, 1]: block id {value} is out of range, the cache has 8 blocks"


def test_an_unused_entry_may_be_anything():
    given = arguments() | {"block_tables": table(0, 1, 2**30)}
    assert torch.isfinite(kernels.paged_decode_attention(**given)).all()


def test_block_table_shorter_than_the_length():
    message = broken(seq_lens=torch.tensor([5, 33, 32]))
    assert message == "block_tables[1]: has 2 blocks of 16 tokens, too short for seq_lens[1] = 33"


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        (
            {"query": torch.zeros(3, 4, 32, dtype=torch.float16)},
            "query: has dtype torch.float16, accepted is the dtype of k_cache",
        ),
        ({"v_cache": torch.zeros(8, 16, 2, 32, dtype=torch.float16)}, "v_cache: has dtype torch.float16"),
        ({"v_cache": torch.zeros(8, 16, 1, 32)}, "v_cache: has shape [8, 16, 1, 32]"),
        (
            {"query": torch.zeros(3, 5, 32)},
            "query: has 5 heads, accepted is a multiple of the 2 KV heads of k_cache",
        ),
        ({"query": torch.zeros(3, 4, 64)}, "query: has head_dim 64"),
        ({"seq_lens": torch.tensor([5, -1, 3])}, "seq_lens[1]: is negative (-1)"),
        ({"seq_lens": torch.tensor([5, 1])}, "seq_lens: has 2 entries, accepted is one for each request (3)"),
        ({"seq_lens": torch.tensor([5.0, 1.0, 2.0])}, "seq_lens: has dtype torch.float32"),
        ({"block_tables": torch.zeros(3, dtype=torch.int32)}, "block_tables: has 1 dimensions"),
        ({"k_cache": torch.zeros(8, 16, 64)}, "k_cache: has 3 dimensions"),
        ({"scale": 0.0}, "scale: is 0.0"),
        ({"window": 0}, "window: is 0"),
        ({"k_scale": torch.ones(8, 16, 2)}, "k_scale: was given for a cache of torch.float32"),
    ],
)
def test_mismatches(changes, start):
    assert broken(**changes).startswith(start)


def test_quantised_caches_need_scales():
    stored = {name: torch.zeros(8, 16, 2, 32, dtype=torch.int8) for name in ("k_cache", "v_cache")}
    assert broken(**stored).startswith("k_scale: is missing")
    wrong = {"k_scale": torch.ones(8, 16, 2), "v_scale": torch.ones(8, 16)}
    assert broken(**stored, **wrong).startswith(
        "v_scale: is torch.float32 [8, 16], accepted is torch.float32 [8, 16, 2]"
    )


def test_kv_write_slots():
    given = arguments()
    rows = torch.zeros(3, 2, 32)
    for slots, start in (
        ([0, 128, 3], "slot_mapping[1]: slot 128 is out of range, accepted are -1 and [0, 128)"),
        ([0, 1, -2], "slot_mapping[2]: slot -2 is out of range"),
        ([0, 1], "slot_mapping: has 2 entries, accepted is one for each token (3)"),
    ):
        with pytest.raises(LabError, match=re.escape(start)):
            kernels.kv_write(rows, rows, given["k_cache"], given["v_cache"], torch.tensor(slots))
    with pytest.raises(LabError, match=r"^value: has shape"):
        kernels.kv_write(rows, rows[:, :1], given["k_cache"], given["v_cache"], torch.tensor([0, 1, 2]))


def test_prefill_rows():
    given = arguments()
    given["query"] = torch.zeros(10, 4, 32)
    for starts, start in (
        ([0, 3, 6], "cu_query_lens: has 3 entries, accepted is 4"),
        ([0, 3, 2, 10], "cu_query_lens[1]: decreases to 2"),
        ([0, 3, 6, 9], "cu_query_lens: spans 0 to 9, accepted is 0 to 10"),
        ([0, 6, 8, 10], "seq_lens[0]: 5 is shorter than the request's query rows"),
    ):
        with pytest.raises(LabError, match=re.escape(start)):
            kernels.paged_prefill_attention(**given, cu_query_lens=torch.tensor(starts))


def test_contiguous_slots():
    given = arguments()
    for name in ("k_cache", "v_cache"):
        given[name] = given[name].flatten(0, 1)
    del given["block_tables"]
    with pytest.raises(
        LabError, match=r"^base_slots\[2\]: slots from 100 on do not lie inside the cache's 128 slots"
    ):
        kernels.contiguous_decode_attention(**given, base_slots=torch.tensor([0, 5, 100]))


def test_copies():
    cache = torch.zeros(4, 8, 2, 16)
    for pairs, start in (
        ([[0, 4]], "block_pairs[0, 1]: block id 4 is out of range, caches[0] has 4 blocks"),
        ([[0, 1], [2, 1]], "block_pairs: writes a target block twice"),
        ([[0, 1], [1, 2]], "block_pairs[0]: block 1 is both a target and a source"),
    ):
        with pytest.raises(LabError, match=re.escape(start)):
            kernels.block_copy([cache], torch.tensor(pairs))
    with pytest.raises(LabError, match=re.escape("block_pairs[0]: source block id 9 is out of range")):
        kernels.swap_blocks(cache, cache.clone(), torch.tensor([[9, 0]]))


def test_alignment_names_dimension_and_stride():
    checks.check_alignment(good=torch.zeros(4, 2, 64))
    checks.check_alignment(one_head=torch.zeros(4, 65)[:, :64].unflatten(1, (1, 64))[:1])
    with pytest.raises(LabError, match=r"^query: stride of dimension 0 is 65 elements"):
        checks.check_alignment(query=torch.zeros(4, 65)[:, :64])
    with pytest.raises(LabError, match=r"^query: stride of dimension 1 is 4, accepted is 1"):
        checks.check_alignment(query=torch.zeros(64, 4).t())
