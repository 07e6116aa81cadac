"""The seed matrix on tiny notebooks: flips, failures, going on where it was, and the command."""

import json
from pathlib import Path

import nbformat
import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.teach.runner import find_notebooks
from labkit.teach.seeds import Row, parse_seeds, run_seeds, seeds_table

#: 15.1 holds everywhere, 15.2 by luck; a mark is left for every run
SOURCE = """
from pathlib import Path
from labkit.teach import claim, finish
Path("{marks}").mkdir(exist_ok=True)
Path("{marks}", f"{{scale}}-{{seed}}").touch()
claim("15.1", "always", held=True, control=False)
claim("15.2", "by luck", held=seed != 2, control=False)
finish("15")
"""


def write_notebook(folder: Path, name: str, source: str) -> None:
    cells = [nbformat.v4.new_code_cell("scale = 'ci'\nseed = 0", metadata={"tags": ["parameters"]})]
    nbformat.write(nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(source)]), folder / name)


def test_seeds_are_numbers_and_ranges():
    assert parse_seeds("1,2, 5-8,2") == [1, 2, 5, 6, 7, 8]
    for text in ("", "1,", "a", "3-1", "1-", "-1"):
        with pytest.raises(LabError, match="--seeds"):
            parse_seeds(text)


def test_what_counts_as_a_flip_and_as_good():
    assert Row("15_x", "15.1", {1: "held", 2: "held"}).good
    assert Row("15_x", "15.1", {1: "held", 2: "not held"}).flips
    same_and_bad = Row("15_x", "15.1", {1: "control holds", 2: "control holds"})
    assert not same_and_bad.flips
    assert not same_and_bad.good
    table = seeds_table([same_and_bad, Row("00_tour", "", {1: "ran", 2: "failed"})], [1, 2])
    assert "CONTROL HOLDS" in table
    assert table.endswith("2 rows x 2 seeds: 1 flip")


@pytest.mark.slow
def test_a_matrix_finds_the_lucky_claim_and_goes_on_where_it_was(tmp_path, capsys):
    marks = tmp_path / "marks"
    write_notebook(tmp_path, "15_x.ipynb", SOURCE.format(marks=marks))
    out = tmp_path / "out"
    found = find_notebooks(tmp_path, ["15"])
    rows = run_seeds(found, [1], out, parameters={"scale": "lab"})
    assert [(r.claim_id, dict(r.outcomes)) for r in rows] == [("15.1", {1: "held"}), ("15.2", {1: "held"})]
    (marks / "lab-1").unlink()

    options = ["--folder", str(tmp_path), "--out", str(out), "-p", "scale", "lab", "--json"]
    with pytest.raises(SystemExit) as exit:
        main(["notebooks", "seeds", "15", "--seeds", "1,2", *options])
    assert exit.value.code == 1
    table = json.loads(capsys.readouterr().out)
    assert table["num_flips"] == 1
    assert [(row["id"], row["outcomes"]) for row in table["rows"]] == [
        ("15.1", {"1": "held", "2": "held"}),
        ("15.2", {"1": "held", "2": "not held"}),
    ]
    assert sorted(p.name for p in marks.iterdir()) == ["lab-2"]  # seed 1 was taken over

    write_notebook(tmp_path, "15_x.ipynb", SOURCE.format(marks=marks) + "1 / 0")
    (end, row, _) = run_seeds(found, [1], out, parameters={"scale": "lab"})
    assert (end.outcomes[1], end.good) == ("failed", False)
    assert row.good  # its claims were made before it failed
    assert (marks / "lab-1").exists()  # another notebook: run again


@pytest.mark.slow
def test_a_notebook_that_fails_early_misses_its_claims(tmp_path):
    write_notebook(
        tmp_path, "15_x.ipynb", "if seed == 2:\n    1 / 0\n" + SOURCE.format(marks=tmp_path / "marks")
    )
    write_notebook(tmp_path, "00_x.ipynb", "assert seed != 3")
    rows = run_seeds(find_notebooks(tmp_path, []), [1, 2, 3], tmp_path / "out", num_kernels=2)
    assert [(r.notebook, r.claim_id, list(r.outcomes.values())) for r in rows] == [
        ("00_x", "", ["ran", "ran", "failed"]),
        ("15_x", "", ["ran", "failed", "ran"]),
        ("15_x", "15.1", ["held", "missing", "held"]),
        ("15_x", "15.2", ["held", "missing", "held"]),
    ]


def test_the_seed_is_not_a_parameter_here(tmp_path):
    write_notebook(tmp_path, "15_x.ipynb", "print(seed)")
    with pytest.raises(LabError, match="come from --seeds"):
        run_seeds(find_notebooks(tmp_path, []), [1], tmp_path / "out", parameters={"seed": 3})
