"""Run by `test_interpreter.py` in a process of its own, with LABKIT_KERNELS=interpret. Not collected otherwise."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labkit.kernels as kernels
from labkit.errors import LabError
from labkit.kernels import backend, oracle
from labkit.kernels import selfcheck as check
from labkit.kernels.selfcheck import AttentionCase

NUM_DRAWS = int(os.environ.get("LABKIT_KERNEL_DRAWS", "10"))
draws = settings(
    max_examples=NUM_DRAWS,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@st.composite
def cases(draw, *, windows=True, stores=True, prefill=False, head_dims=(64, 128, 256)):
    """Shapes of every kind that the issue of a wrong kernel would show in: lengths on and around block borders."""
    block_size = draw(st.sampled_from([1, 8, 16, 32, 64, 128, 256]))
    border = st.integers(1, max(1, 48 // block_size)).flatmap(
        lambda k: st.sampled_from([k * block_size - 1, k * block_size, k * block_size + 1])
    )
    lengths = tuple(
        draw(st.lists(st.one_of(st.sampled_from([0, 1]), border, st.integers(2, 70)), min_size=1, max_size=3))
    )
    query_lens = tuple(draw(st.integers(0, min(length, 40))) for length in lengths) if prefill else ()
    return AttentionCase(
        dtype=draw(st.sampled_from(FLOATS)),
        head_dim=draw(st.sampled_from(head_dims)),
        block_size=block_size,
        num_kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 4, 8])),
        lengths=lengths,
        window=draw(st.one_of(st.none(), st.integers(1, 80))) if windows else None,
        store=draw(st.sampled_from([None, None, torch.int8, torch.float8_e4m3fn])) if stores else None,
        strided=draw(st.booleans()),
        num_splits=draw(st.sampled_from([1, 2, 5])),
        query_lens=query_lens,
        seed=draw(st.integers(0, 2**16)),
    )


def test_the_interpreter_runs_here():
    assert backend.MODE == "interpret"


@draws
@given(cases())
def test_paged_decode(case):
    assert check.check_paged_decode(case) < check.TOLERANCES[case.dtype]


@draws
@given(cases(windows=False))
def test_contiguous_decode(case):
    assert check.check_contiguous_decode(case) < check.TOLERANCES[case.dtype]


@draws
@given(cases(prefill=True, head_dims=(64, 128)))
def test_paged_prefill(case):
    assert check.check_paged_prefill(case) < check.TOLERANCES[case.dtype]


@draws
@given(cases(windows=False, stores=False))
def test_mla_decode(case):
    assert check.check_mla_decode(case) < check.TOLERANCES[case.dtype]


@draws
@given(cases())
def test_kv_write(case):
    assert check.check_kv_write(case) == 0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("block_size", [8, 16])
def test_lengths_around_block_borders_and_empty_rows(dtype, num_splits, block_size):
    lengths = (0, 1, block_size - 1, block_size, block_size + 1, 3 * block_size, 0, 3 * block_size + 1)
    case = AttentionCase(dtype=dtype, block_size=block_size, lengths=lengths, num_splits=num_splits, group=1)
    assert check.check_paged_decode(case) < check.TOLERANCES[dtype]


def test_one_request():
    assert check.check_paged_decode(AttentionCase(lengths=(33,), group=8, head_dim=128)) < 1e-5


def test_512_requests_of_length_1():
    case = AttentionCase(lengths=(1,) * 512, num_kv_heads=1, group=1, head_dim=64)
    assert check.check_paged_decode(case) < 1e-5


@pytest.mark.parametrize("store", [None, torch.int8])
def test_non_contiguous_strides(store):
    case = AttentionCase(strided=True, store=store, query_lens=(1, 3, 17, 9))
    assert check.check_paged_decode(case) < 1e-5
    assert check.check_paged_prefill(case) < 1e-5


@pytest.mark.parametrize("window", [1, 7, 16, 33])
def test_windows_cut_every_row_at_its_own_position(window):
    case = AttentionCase(
        lengths=(40, 33, 17), query_lens=(20, 33, 5), window=window, group=1, num_kv_heads=1, num_splits=2
    )
    assert check.check_paged_prefill(case) < 1e-5
    assert check.check_paged_decode(case) < 1e-5


def test_window_smaller_than_a_block_reads_no_recycled_block():
    """Blocks before the window are gone: their table entries are garbage, as the KV manager leaves them."""
    case = AttentionCase(lengths=(50,), window=5, block_size=16)
    tensors, query = check.build(case, 1, "cpu")
    tables = tensors.block_tables.clone()
    tables[0, :2] = -3
    out = kernels.paged_decode_attention(
        query, tensors.k_cache, tensors.v_cache, tables, tensors.seq_lens, scale=case.scale, window=5
    )
    expected = oracle.paged_attention(
        query, *tensors.rows(), tensors.block_tables, [1], [50], scale=case.scale, window=5
    )
    assert oracle.worst_head_error(out, expected) < 1e-5


@pytest.mark.parametrize("argument", ["query", "k_cache", "v_cache"])
def test_a_misaligned_stride_raises_before_launch(argument):
    tensors, query = check.build(AttentionCase(), 4, "cpu")
    given = {"query": query, "k_cache": tensors.k_cache, "v_cache": tensors.v_cache}
    good = given[argument]
    padded = torch.zeros(*good.shape[:-1], good.shape[-1] + 1, dtype=good.dtype)
    padded[..., :-1] = good
    given[argument] = padded[..., :-1]
    with pytest.raises(
        LabError, match=rf"^{argument}: stride of dimension \d is \d+ elements, accepted are multiples of 16"
    ):
        kernels.paged_decode_attention(
            **given, block_tables=tensors.block_tables, seq_lens=tensors.seq_lens, scale=0.1
        )


def test_a_misaligned_address_raises_before_launch():
    tensors, query = check.build(AttentionCase(), 4, "cpu")
    shifted = torch.zeros(query.numel() + 1)[1:].view(query.shape)
    with pytest.raises(LabError, match=r"^query: starts 4 bytes off a 16-byte boundary"):
        kernels.paged_decode_attention(
            shifted, tensors.k_cache, tensors.v_cache, tensors.block_tables, tensors.seq_lens, scale=0.1
        )


class Move:
    def __init__(self, src_slot, dst_slot, num_tokens):
        self.src_slot, self.dst_slot, self.num_tokens = src_slot, dst_slot, num_tokens


copies = st.tuples(
    st.sampled_from([torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn]),
    st.sampled_from([8, 16, 32]),
    st.sampled_from([(2, 64), (1, 128), (3,), (1,), (5, 3)]),
    st.integers(0, 2**16),
)


def filled(dtype, shape, generator):
    """Any bytes at all: copies must not care."""
    size = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=generator, dtype=torch.uint8)
    return data.view(dtype)


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@draws
@given(copies)
def test_block_copy_and_swap(drawn):
    dtype, block_size, row, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    cache, other = (filled(dtype, (12, block_size, *row), generator) for _ in range(2))
    order = torch.randperm(12, generator=generator)
    pairs = order[:8].view(4, 2)
    copied, swapped = cache.clone(), other.clone()
    kernels.block_copy([copied], pairs)
    kernels.swap_blocks(cache, swapped, pairs)
    for block in range(12):
        source = next((int(s) for s, t in pairs if int(t) == block), None)
        assert same(copied[block], cache[block if source is None else source])
        assert same(swapped[block], other[block] if source is None else cache[source])


@draws
@given(copies)
def test_block_gather(drawn):
    dtype, block_size, row, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    cache = filled(dtype, (12, block_size, *row), generator)
    lengths = [0, block_size + 1, 1, 3 * block_size]
    tables = torch.randperm(12, generator=generator).view(4, 3)
    out = kernels.block_gather(cache, tables, torch.tensor(lengths))
    rows = [cache[tables[r, p // block_size], p % block_size] for r in range(4) for p in range(lengths[r])]
    assert same(out, torch.stack(rows))


@draws
@given(copies, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 30)), max_size=5))
def test_move_slots(drawn, spans):
    dtype, _, row, seed = drawn
    generator = torch.Generator().manual_seed(seed)
    cache = filled(dtype, (90, *row), generator)
    expected = cache.clone().view(torch.uint8)
    for source, target, count in spans:
        expected[target : target + count] = expected[source : source + count].clone()
    moved = kernels.move_slots([cache], [Move(*span) for span in spans])
    assert same(cache, expected)
    row_bytes = cache[0].numel() * cache.element_size()
    assert moved == row_bytes * sum(count for source, target, count in spans if source != target)
