"""Exercises are what the generator makes of the solutions, and nothing of a solution is in them."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import re
from pathlib import Path

import nbformat
import pytest

from labkit.errors import InputError, LabError
from labkit.teach.exercises import find_exercise
from labkit.teach.exercises.generate import BEGIN, END, generate, named_stubs, solution_lines, stripped
from labkit.teach.exercises.submission import is_example, read_source
from tests.exercises.trees import CHECKED, IDS, ROOT, notebook

#: lines so short or plain that any text may contain them
PLAIN = 14


def names(tree: str) -> list[str]:
    return sorted(path.name for path in (ROOT / tree).iterdir() if path.name != ".ipynb_checkpoints")


def test_both_trees_hold_the_same_notebooks_and_nothing_else() -> None:
    expected = sorted(f"{find_exercise(i).notebook}.ipynb" for i in IDS)
    assert names("solutions") == names("exercises") == expected


@pytest.mark.parametrize("exercise_id", IDS)
def test_regenerating_gives_no_difference(exercise_id: str) -> None:
    assert stripped(notebook("solutions", exercise_id)) == notebook("exercises", exercise_id).read_text(
        "utf-8"
    )


@pytest.mark.parametrize("exercise_id", IDS)
def test_nothing_of_the_solution_is_left(exercise_id: str) -> None:
    exercise = notebook("exercises", exercise_id).read_text("utf-8")
    text = "\n".join(cell.source for cell in nbformat.reads(exercise, as_version=4).cells)
    assert BEGIN not in text
    assert END not in text
    left = [
        line
        for line in solution_lines(notebook("solutions", exercise_id))
        if len(line) >= PLAIN and line in text
    ]
    assert not left
    assert f'raise NotImplementedError("ex{exercise_id}: ' in text


@pytest.mark.parametrize("tree", ["solutions", "exercises"])
@pytest.mark.parametrize("exercise_id", IDS)
def test_notebooks_are_stripped_and_nbgrader_can_use_them(tree: str, exercise_id: str) -> None:
    found = nbformat.read(notebook(tree, exercise_id), as_version=4)
    nbformat.validate(found)
    assert found.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in found.cells]
    assert len(set(ids)) == len(ids)
    assert all(i.startswith(f"ex{exercise_id}-") for i in ids), "stable ids, not random ones"
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    graded = [cell.metadata.nbgrader for cell in code if "nbgrader" in cell.metadata]
    assert [g.solution for g in graded].count(True) >= 1
    assert [g.grade for g in graded].count(True) == 1
    assert all(g.schema_version == 3 for g in graded)


@pytest.mark.parametrize("exercise_id", IDS)
def test_ids_are_the_same_in_both_trees(exercise_id: str) -> None:
    ids = [
        [c.id for c in nbformat.read(notebook(t, exercise_id), as_version=4).cells]
        for t in ("solutions", "exercises")
    ]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("exercise_id", [i for i in CHECKED if i < "13"])
def test_the_examples_of_the_task_are_true(exercise_id: str) -> None:
    """`>>>` lines of the text, run against the solution."""
    path = notebook("solutions", exercise_id)
    text = "\n\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
    test = doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0)
    if exercise_id == "06":
        assert not test.examples, "its example is prose"
        return
    assert len(test.examples) >= 2
    exec(compile(read_source(path), str(path), "exec"), test.globs)
    failed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failed.append)
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("exercise_id", [i for i in CHECKED if i < "13"])
def test_the_cells_to_play_with_run(exercise_id: str) -> None:
    """The example as code and the cell of "Next", after the solution, in the order of the notebook."""
    path = notebook("solutions", exercise_id)
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    examples = [c for c in cells if is_example(c)]
    assert examples[0].id == f"ex{exercise_id}-example"
    assert cells.index(examples[0]) < next(i for i, c in enumerate(cells) if c.source.startswith("check("))
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(read_source(path), str(path), "exec"), names)
        for cell in examples:
            exec(compile(cell.source, str(path), "exec"), names)


@pytest.mark.parametrize("exercise_id", IDS)
def test_links_lead_somewhere(exercise_id: str) -> None:
    """Both trees lie side by side, so what works from solutions/ works from exercises/."""
    path = notebook("exercises", exercise_id)
    text = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (path.parent / target).exists(), target
    named = re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)
    assert not re.search(r"\b([Nn]otebooks? \d\d|claims? \d)", named), "named, but not linked"


def test_a_stub_names_what_is_missing() -> None:
    source = 'class A:\n    def f(self):\n        raise NotImplementedError("ex07: this part is not written yet")\n'
    source += 'def g():\n    raise NotImplementedError("ex07: this part is not written yet")'
    named = named_stubs(source)
    assert "ex07: A.f is not written yet" in named
    assert "ex07: g is not written yet" in named


def test_generate_writes_removes_and_then_rests(tmp_path: Path) -> None:
    solutions, exercises = tmp_path / "solutions", tmp_path / "exercises"
    solutions.mkdir()
    exercises.mkdir()
    source = notebook("solutions", "07")
    (solutions / source.name).write_text(source.read_text("utf-8"), "utf-8")
    (exercises / "ex99_gone.ipynb").write_text("{}", "utf-8")
    assert generate(solutions, exercises) == {source.name: "written", "ex99_gone.ipynb": "removed"}
    assert generate(solutions, exercises) == {source.name: "unchanged"}
    assert [p.name for p in exercises.iterdir()] == [source.name]


def test_generate_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no notebook"):
        generate(tmp_path, tmp_path / "out")
    bare = json.loads(notebook("exercises", "07").read_text("utf-8"))
    path = tmp_path / "ex07_block_table.ipynb"
    path.write_text(json.dumps(bare), "utf-8")
    with pytest.raises(InputError, match="no cell has a solution"):
        stripped(path)
