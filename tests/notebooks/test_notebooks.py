"""How notebooks are kept, and two of them executed as CI does it."""

import ast
import sys
from pathlib import Path

import nbformat
import pytest

from labkit.teach.claims import claim_list, problems_of
from labkit.teach.runner import run_notebooks

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
sys.path.insert(0, str(ROOT / "tools"))

import pairs  # noqa: E402


def names(path: Path) -> str:
    return path.stem


@pytest.fixture(params=NOTEBOOKS, ids=names)
def cells(request):
    return nbformat.read(request.param, as_version=4)


def test_every_pair_is_in_step():
    assert pairs.drifted() == []


def test_a_drifted_pair_is_named(tmp_path, monkeypatch):
    source = tmp_path / "01_x.py"
    source.write_text("# %%\nprint(1)\n")
    (tmp_path / "01_x.ipynb").write_text(pairs.text_of(source))
    monkeypatch.setattr(pairs, "NOTEBOOKS", tmp_path)
    assert pairs.drifted() == []
    source.write_text("# %%\nprint(2)\n")
    assert pairs.drifted() == ["01_x: run `make pairs`"]


def test_stripped_with_the_common_kernel(cells):
    assert cells.metadata.kernelspec.name == "python3"
    assert "widgets" not in cells.metadata
    for cell in cells.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_one_parameters_cell_of_literals(cells):
    tagged = [c for c in cells.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1
    declared = {}
    for node in ast.parse(tagged[0].source).body:
        assert isinstance(node, ast.Assign)
        declared[node.targets[0].id] = ast.literal_eval(node.value)
    assert declared == {"scale": "ci", "device": "auto", "seed": 0}


def test_nothing_that_can_hang_and_a_last_cell_that_judges(cells, request):
    code = "\n".join(c.source for c in cells.cells if c.cell_type == "code")
    for word in ("interact(", "interactive_output", "interactive(", "widgets.Output", "W.Output"):
        assert word not in code
    assert cells.cells[-1].source.rstrip().splitlines()[-1].startswith("finish(")
    assert "SliderPanel(" in code or "whatif_panel(" in code


def test_each_notebook_makes_its_own_claims(cells):
    made = {
        node.args[0].value
        for c in cells.cells
        if c.cell_type == "code"
        for node in ast.walk(ast.parse(c.source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "claim"
    }
    number = next(c.source for c in cells.cells[::-1] if c.source.strip()).split('"')[1]
    assert made == {claim_id for claim_id, entry in claim_list().items() if entry["notebook"] == number}


@pytest.mark.slow
def test_two_notebooks_run_and_their_claims_hold(tmp_path):
    chosen = [path for path in NOTEBOOKS if path.stem[:2] in ("03", "06")]
    runs = run_notebooks(chosen, tmp_path, parameters={"seed": 5}, timeout_s=120, num_kernels=2)
    assert [run.error for run in runs] == ["", ""]
    assert problems_of([v for run in runs for v in run.verdicts], notebooks=["03", "06"]) == []
