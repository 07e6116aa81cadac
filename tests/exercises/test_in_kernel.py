"""The checks where they are used: in a Jupyter kernel, with classes that only the notebook knows."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from labkit.errors import LabError
from labkit.teach.exercises.submission import read_source
from labkit.teach.triton_worker import source_of
from tests.exercises.test_exercises import TRITON
from tests.exercises.trees import ROOT, notebook

#: cells of one learner's afternoon, and a word that the output of each must contain
HOSTILE = {
    "class Loop:\n    def __init__(self, capacity):\n        while True: pass\ncheck('03', Loop)": "stopped after",
    "class Eats:\n    def __init__(self, capacity):\n        self.x = bytearray(10 * 10**9)\ncheck('03', Eats)": "more memory",
    "import os\nclass Exits:\n    def __init__(self, capacity):\n        os._exit(0)\ncheck('03', Exits)": "ended its process",
    "class Broken:\n    def malloc(self, size)\n        pass": "SyntaxError",
    "import ctypes\nclass Crashes:\n    def __init__(self, capacity):\n        ctypes.string_at(0)\ncheck('03', Crashes)": "SIGSEGV",
}  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.slow
def test_hostile_cells_and_then_the_solution_in_one_kernel(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    cells = [
        "from labkit.teach import check, hint\nanswer = 41",
        *HOSTILE,
        read_source(notebook("solutions", "03")),
    ]
    cells += ["check('03', MyFirstFit)"]
    if TRITON:
        cells += [read_source(notebook("solutions", "13")), _example("13"), "check('13', my_kv_write)"]
    cells += ["hint('03')", "print('the kernel lives:', answer + 1)"]
    found = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        found, timeout=120, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    texts = [nbformat.writes(new_notebook(cells=[cell])) for cell in found.cells]
    for (source, word), text in zip(HOSTILE.items(), texts[1:]):
        assert word in text, source
    assert texts[-1].count("the kernel lives: 42")
    checks = [
        text for text in texts if "check('03', MyFirstFit)" in text or "check('13', my_kv_write)" in text
    ]
    assert len(checks) == (2 if TRITON else 1)
    for text in checks:
        assert ": passed" in text
    if TRITON:
        rows = [*map(float, range(8)), *map(float, range(16, 24))]
        assert any(f"rows {rows}" in text for text in texts), "token 0 in slot 5, token 2 in slot 2"
        assert "ename" not in text
    failure = next(cell for cell in found.cells if "check('03', Loop)" in cell.source)
    [error] = [output for output in failure.outputs if output.output_type == "error"]
    assert error.traceback == ["exercise 03: not yet. hint('03') helps."], "one line, not a traceback"


def _example(exercise_id: str) -> str:
    """The cell to play with, under Triton's interpreter in this kernel."""
    cells = nbformat.read(notebook("solutions", exercise_id), as_version=4).cells
    source: str = next(c.source for c in cells if c.id == f"ex{exercise_id}-example")
    return f"{source.rpartition(chr(10))[0]}\nprint('rows', k_cache.view(8, 8)[[5, 2]].flatten().tolist())"


@pytest.mark.skipif(not TRITON, reason="triton cannot be imported here")
def test_source_of_a_kernel_takes_what_it_uses_along(tmp_path: Path) -> None:
    """Helpers, kernels and plain constants of the same module, each before its first use."""
    import importlib.util

    path = tmp_path / "cell.py"
    path.write_text(
        "import triton\nimport triton.language as tl\nimport torch\nWIDTH = tl.constexpr(16)\nSCALE = 2.0\n"
        "UNUSED = 3\n"
        "@triton.jit\ndef twice(x):\n    return x * 2\n"
        "@triton.jit\ndef kernel(out):\n    offs = tl.arange(0, WIDTH)\n    tl.store(out + offs, twice(offs))\n"
        "def launch(out):\n    kernel[(1,)](out)\n    return out * SCALE\n"
    )
    spec = importlib.util.spec_from_file_location("cell", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = source_of([module.launch])
    places = [
        source.index(text) for text in ("WIDTH = tl.constexpr(16)", "def twice", "def kernel", "def launch")
    ]
    assert places[1] < places[2] < places[3]
    assert places[0] < places[2]
    assert "SCALE = 2.0" in source
    assert "UNUSED" not in source
    assert source.count("@triton.jit") == 2


def test_source_that_cannot_be_found_is_said() -> None:
    namespace: dict[str, object] = {}
    exec("def launch(): pass", namespace)
    with pytest.raises(LabError, match="the source of launch cannot be found"):
        source_of([namespace["launch"]])


def test_without_triton_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.teach.exercises import report_on
    from labkit.teach.triton_worker import WORKER

    WORKER.stop()
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "blocked"))
    report = report_on("13", "def my_kv_write(*arguments):\n    pass\n")
    assert not report.passed
    assert report.message.startswith("not checked here: ")
    assert "triton is blocked on purpose" in report.message
