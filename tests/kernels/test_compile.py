"""What the compiler made of every kernel: no GPU needed, a compiler process of its own."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.kernels import sass
from labkit.kernels.compile import compile_table, failures
from labkit.kernels.occupancy import occupancy
from labkit.kernels.specs import ARCHS, all_cases, default_cases, paged_case

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
CACHE = Path(__file__).parents[2] / "build" / "kernels"


@pytest.fixture(scope="module")
def rows():
    return compile_table(cache_dir=CACHE)


def test_every_kernel_compiles_for_every_architecture_without_spills_and_with_16_byte_kv_loads(rows):
    assert failures(rows) == []
    assert {row.arch for row in rows} == set(ARCHS)
    unsupported = {(row.kernel, row.arch) for row in rows if row.status != "ok"}
    assert unsupported == {("kv_write", 80)}, "only fp8 conversion is missing, before sm_89"


def test_keys_and_values_come_in_wide_loads_and_the_kernels_that_have_tables_look_blocks_up(rows):
    for row in rows:
        if row.status != "ok" or row.kernel == "paged_decode_reduce":
            continue
        assert row.kv_loads, f"{row.kernel}: no load is attributed to the KV path"
        assert all(name.endswith(".128") for name in row.kv_loads), row
        expected = row.kernel.startswith(("paged_decode", "paged_prefill", "mla", "block_gather"))
        assert bool(row.table_loads) == expected, row


def test_bfloat16_products_are_bfloat16_matrix_instructions(rows):
    seen = set()
    for row in rows:
        if row.shape.startswith("bf16") and row.kernel not in ("kv_write", "paged_decode_reduce"):
            assert row.mma in (["mma.bf16"], ["wgmma.bf16"], ["tcgen05.f16"], ["mma.bf16", "tcgen05.f16"]), (
                row
            )
            seen.add(row.arch)
    assert seen == set(ARCHS)


def test_float32_products_are_exact_no_tf32_and_no_matrix_instruction(rows):
    exact = [row for row in rows if row.shape.startswith("fp32")]
    assert {row.kernel for row in exact} == {"paged_decode", "paged_prefill"}
    assert all(row.tf32 is False and row.mma == [] for row in exact)


def test_a_planted_spilling_kernel_is_caught():
    """The decode kernel with all heads of a wide model in one warp: the accumulator alone is 256 registers a thread."""
    case = paged_case(torch.float16, torch.float16, 256, 4, 16)
    planted = replace(case, num_warps=1, constexprs=case.constexprs | {"ROWS": 32}, shape="planted")
    found = failures(compile_table([planted], archs=(90,), cache_dir=CACHE))
    assert len(found) == 1
    assert "planted, sm_90): spills" in found[0]


def test_a_missing_divisibility_hint_is_caught():
    """Without the promise that rows are 16 elements apart the compiler may not use wide loads."""
    case = paged_case(torch.float16, torch.float16, 128, 4, 16)
    aligned = tuple(name for name in case.aligned if name != "stride_k_slot")
    found = failures(
        compile_table([replace(case, aligned=aligned, shape="no hint")], archs=(80,), cache_dir=CACHE)
    )
    assert len(found) == 1
    assert "on the KV path, not 128" in found[0]


def test_a_ptxas_report_without_figures_is_an_error_not_zero_spills():
    with pytest.raises(ValueError, match="did not report"):
        sass.parse_ptxas("ptxas info: nothing to say")


@pytest.mark.parametrize("case", default_cases(), ids=lambda case: f"{case.kernel}-{case.shape}")
def test_hints_are_exactly_what_the_runtime_may_specialise_on(case):
    """Read from the source: parameters = hints + `do_not_specialize` + compile-time constants, nothing in two places."""
    tree = ast.parse(inspect.getsource(importlib.import_module(case.module)))
    kernel = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == case.function)
    constants = {a.arg for a in kernel.args.args if a.annotation is not None}
    parameters = {a.arg for a in kernel.args.args} - constants
    fixed = {ast.literal_eval(e) for e in kernel.decorator_list[0].keywords[0].value.elts}
    assert set(case.aligned) & fixed == set()
    assert set(case.aligned) | fixed == parameters
    assert set(case.constexprs) == constants


def test_the_full_matrix_has_every_shape_the_issue_names():
    shapes = {case.shape for case in all_cases()}
    for head_dim in (64, 128, 256):
        assert any(f" d{head_dim} " in shape for shape in shapes)
    for block_size in (1, 8, 16, 32, 64, 128, 256):
        assert any(shape.endswith(f" b{block_size}") for shape in shapes)
    assert len(shapes) > 60


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "num_warps", "expected"),
    [
        (80, 32, 0, 4, (1.0, "warps")),
        (80, 128, 0, 4, (0.25, "registers")),
        (80, 32, 80 << 10, 4, (8 / 64, "shared memory")),
        (90, 32, 80 << 10, 4, (8 / 64, "shared memory")),
        (90, 255, 0, 8, (8 / 64, "registers")),
        (80, 32, 200 << 10, 4, (0.0, "shared memory")),
        (75, 32, 0, 1, (0.5, "blocks")),
    ],
)
def test_occupancy(arch, registers, shared, num_warps, expected):
    assert occupancy(arch, registers, shared, num_warps) == expected
