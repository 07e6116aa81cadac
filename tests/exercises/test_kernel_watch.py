"""Triton kernels under watch: lines of the cell, reads behind the end, prints by case, masks joined the wrong way."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from labkit.teach.exercises import Mistake, report_on
from labkit.teach.exercises.kernel_watch import explained, mask_slip
from labkit.teach.exercises.submission import read_source, report_on_file
from labkit.teach.triton_worker import source_of
from tests.exercises.test_exercises import TRITON
from tests.exercises.trees import WRONG, notebook

needs_triton = pytest.mark.skipif(not TRITON, reason="triton cannot be imported here")


def module_of(source: str, folder: Path, name: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@needs_triton
def test_an_error_names_the_line_of_the_cell(tmp_path: Path) -> None:
    source = (WRONG / "ex13_slot_indexed.py").read_text()
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "slot = slot_mapping[token]" in text)
    module = module_of(source, tmp_path, "a_cell")
    report = report_on("13", source_of([module.my_kv_write]))
    assert f"(my_kv_write_kernel, line {line}: slot = slot_mapping[token])" in report.message


@needs_triton
def test_a_notebook_names_the_line_of_its_cell(tmp_path: Path) -> None:
    text = (
        notebook("solutions", "13")
        .read_text("utf-8")
        .replace("tl.load(slot_mapping + token)", "slot_mapping[token]")
    )
    path = tmp_path / "ex13_kv_write.ipynb"
    path.write_text(text)
    source = read_source(path)
    cell = source[: source.index("slot = slot_mapping[token]")].rpartition("# line of the cell: 1\n")[2]
    assert f"line {cell.count(chr(10)) + 1}: slot = slot_mapping[token]" in report_on_file(path).message


@needs_triton
def test_prints_stand_under_their_case() -> None:
    report = report_on_file(WRONG / "ex13_row_not_masked.py")
    assert report.printed == ""
    source = (WRONG / "ex13_row_not_masked.py").read_text()
    source = source.replace(
        "    token = tl.program_id(0)\n", "    token = tl.program_id(0)\n    print('at', token)\n"
    )
    report = report_on("13", source)
    assert not report.passed
    first, *rest = report.printed.splitlines()
    assert first == "case 'one token in slot 0':"
    assert rest[:2] == ["at [0]", "case 'five tokens in scattered slots':"]
    assert report.printed.count("case '3 heads of 16") == 1


@needs_triton
def test_wild_pointers_end_in_a_sentence() -> None:
    """Far away from every tensor: not carried out, so nothing crashes and nothing is damaged."""
    source = read_source(notebook("solutions", "13"))
    far = source.replace("k_cache + slot * ROW + offs", "k_cache + 1000000 * slot * ROW + offs")
    assert "k_cache is wrong" in report_on("13", far).message
    right_but_far = source.replace(
        "    tl.store(v_cache",
        "    tl.store(k_cache + 100000000 + offs, k, mask=mask)\n    tl.store(v_cache",
    )
    message = report_on("13", right_but_far).message
    assert "but the store writes behind the end of" in message
    assert "write only to the slot of the token" in message


def test_masks_joined_the_wrong_way_are_quoted(tmp_path: Path) -> None:
    head = "def jit(f):\n    return f\n\n\n@jit\ndef kernel(a, b, n):\n    mask = "
    tail = "\n\n\ndef launch():\n    return 1 < 2 and 3 < 4\n"
    for number, (mask, word) in enumerate(
        [
            ("(a < n) and (b >= 0)", "`and` looks at one element only"),
            ("a < n & b >= 0", "& binds closer"),
            ("(a < n) & (b >= 0)", ""),
            ("a * 2", ""),
        ]
    ):
        module = module_of(head + mask + tail, tmp_path, f"masks_{number}")
        said = mask_slip(module.launch)
        assert word in said
        assert bool(said) == bool(word)


def test_the_interpreters_words_get_a_cause() -> None:
    def raised(error: Exception) -> Exception:
        try:
            raise error
        except Exception as caught:
            return explained(caught)

    pointers = raised(
        AssertionError(f"cannot cast [{' '.join(str(94391954633024 + 4 * i) for i in range(32))}] to fp32")
    )
    assert isinstance(pointers, Mistake)
    assert "[a row of addresses]" in pointers.message
    assert "tl.load reads what it points to" in pointers.message
    assert isinstance(raised(NotImplementedError("ex13: ...")), NotImplementedError)
    long = raised(ValueError("x" * 500))
    assert isinstance(long, Mistake)
    assert len(long.message) < 400
