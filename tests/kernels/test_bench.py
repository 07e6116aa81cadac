"""The bench's code paths, without a clock: shapes, alternatives and report. Times need a GPU."""

from __future__ import annotations

import pytest
import torch

from labkit.errors import LabError
from labkit.kernels import alternatives, bench
from labkit.kernels.paged_decode import paged_decode_attention
from labkit.kernels.report import bench_report

TINY = bench.Shapes(
    contexts=(128, 256),
    block_sizes=(1, 16, 128),
    num_tokens=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    copy_bytes=1 << 10,
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_refuses_to_report_cpu_times():
    with pytest.raises(LabError, match="refuses to report CPU times as kernel times"):
        bench.run_bench(quick=True)


def test_every_row_runs_and_every_alternative_answers():
    def once(function):
        function()
        return 1.0

    result = bench.measure(TINY, "cpu", once)
    rows = result["rows"]
    assert {row["kernel"] for row in rows} == {
        "contiguous_decode",
        "paged_decode",
        "paged_prefill",
        "mla_decode",
        "kv_write",
        "block_copy",
        "move_slots",
        "block_gather",
        "swap_blocks",
    }
    named = {name: value for row in rows for name, value in row["alternatives_ms"].items()}
    assert named.keys() == {"SDPA, contiguous", "FlexAttention, paged mask", "FlashInfer", "torch indexing"}
    assert {value for name, value in named.items() if name != "FlashInfer"} == {1.0}
    assert named["FlashInfer"] in (1.0, "not installed")
    assert bench.compare_block_sizes(rows)["2 x 128"] == {
        "blocks of 1": 1,
        "blocks of 16": 1,
        "blocks of 128": 1,
    }
    header = {"device": "none", "torch": torch.__version__, "triton": None}
    assert "contiguous_decode" in bench_report(header | result)


def test_alternatives_compute_the_same_attention():
    generator = torch.Generator().manual_seed(0)
    batch, context, block_size = 2, 256, 128
    rows = [torch.randn(batch * context, 2, 32, generator=generator) for _ in range(2)]
    query = torch.randn(batch, 4, 32, generator=generator)
    seq_lens = torch.full((batch,), context)
    caches = [r.view(-1, block_size, 2, 32) for r in rows]
    in_order = torch.arange(4, dtype=torch.int32).view(batch, -1)
    expected = paged_decode_attention(query, *caches, in_order, seq_lens, scale=0.2)
    torch.testing.assert_close(alternatives.sdpa_decode(query, *rows, 0.2)()[:, :, 0], expected)
    shuffled = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    expected = paged_decode_attention(query, *caches, shuffled, seq_lens - 5, scale=0.2)
    flex = alternatives.flex_decode(query, *caches, shuffled, seq_lens - 5, 0.2)()
    torch.testing.assert_close(flex[:, :, 0], expected)
