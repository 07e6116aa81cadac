"""The runner on tiny notebooks: what fails, what hangs, what is written."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from labkit.errors import LabError
from labkit.teach.report import write_html
from labkit.teach.runner import declared_parameters, find_notebooks, run_notebooks

pytestmark = pytest.mark.slow

PARAMETERS = ("scale = 'ci'\nseed = 0", ["parameters"])
SLIDER = """
import ipywidgets as W
from IPython.display import display
slider, image = W.IntSlider(0, 0, 9), W.HTML()
slider.observe(lambda change: setattr(image, 'value', f"<b>{change['new']}</b>"), 'value')
display(W.VBox([slider, image]))
for value in range(10):
    slider.value = value
print('moved to', image.value)
"""


def notebook(folder: Path, name: str, *cells: str) -> Path:
    parts = [nbformat.v4.new_code_cell(PARAMETERS[0], metadata={"tags": PARAMETERS[1]})]
    parts += [nbformat.v4.new_code_cell(source) for source in cells]
    path = folder / name
    nbformat.write(nbformat.v4.new_notebook(cells=parts), path)
    return path


def test_parameters_claims_and_html(tmp_path):
    claim = (
        "from labkit.teach import claim\nclaim('15.1', 'seeded', held=seed == 7, control=False, seed=seed)"
    )
    path = notebook(tmp_path, "15_x.ipynb", SLIDER, claim)
    (run,) = run_notebooks([path], tmp_path / "out", parameters={"seed": 7}, timeout_s=60)
    assert run.error == ""
    assert [(v.id, v.verdict, v.figures) for v in run.verdicts] == [("15.1", "held", {"seed": 7})]
    write_html(run, tmp_path / "out" / "x.html")
    page = (tmp_path / "out" / "x.html").read_text()
    assert "Claim 15.1: held" in page
    assert "moved to" in page
    assert "widget-view" not in page


def test_a_failing_a_hanging_and_a_dying_notebook_do_not_stop_the_others(tmp_path):
    failing = notebook(tmp_path, "01_fails.ipynb", "print('before')", "1 / 0", "print('after')")
    hanging = notebook(tmp_path, "02_hangs.ipynb", "import time; time.sleep(600)")
    dying = notebook(tmp_path, "03_dies.ipynb", "import os; os._exit(3)")
    good = notebook(tmp_path, "04_good.ipynb", "print(scale)")
    runs = run_notebooks([failing, hanging, dying, good], tmp_path / "out", timeout_s=3, num_kernels=2)
    assert "ZeroDivisionError" in runs[0].error
    assert "longer than 3 s" in runs[1].error
    assert "kernel died" in runs[2].error
    assert runs[3].error == ""
    partial = (tmp_path / "out" / "01_fails.ipynb").read_text()
    outputs = [o.get("text", "") for c in json.loads(partial)["cells"] for o in c.get("outputs", [])]
    assert "before\n" in ["".join(text) for text in outputs]


def test_an_undeclared_parameter_is_refused_before_anything_runs(tmp_path):
    path = notebook(tmp_path, "01_x.ipynb", "print(1)")
    with pytest.raises(LabError, match="no parameter 'sede'; it declares scale, seed"):
        run_notebooks([path], tmp_path / "out", parameters={"sede": 1})
    assert not (tmp_path / "out").exists()


def test_notebooks_are_found_by_number_or_name(tmp_path):
    path = notebook(tmp_path, "06_paged.ipynb")
    assert find_notebooks(tmp_path, ["06"]) == find_notebooks(tmp_path, ["06_paged"]) == [path]
    assert declared_parameters(path) == ["scale", "seed"]
    with pytest.raises(LabError, match="there are: 06_paged"):
        find_notebooks(tmp_path, ["07"])


def test_a_kernel_that_does_not_come_up_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("labkit.teach.runner.KERNEL_START_TIMEOUT_S", 1)
    (run,) = run_notebooks([notebook(tmp_path, "01_x.ipynb", "print(1)")], tmp_path / "out", timeout_s=3)
    assert run.error == "the kernel did not start: Kernel didn't respond in 1 seconds"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_what_was_done_and_the_next_starts_clean(tmp_path, how):
    gate = tmp_path / "gate"
    path = notebook(
        tmp_path,
        "00_x.ipynb",
        "print('be' + 'fore')",
        f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)",
        "print('af' + 'ter')",
    )
    command = [sys.executable, "-m", "labkit.cli.main", "notebooks", "run", "00"]
    command += ["--folder", str(path.parent), "--out", str(tmp_path / "out")]
    running = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    output = tmp_path / "out" / "notebooks" / "00_x.ipynb"
    until = time.monotonic() + 60
    while not (output.exists() and "before" in output.read_text()):
        assert time.monotonic() < until, "no partial output"
        time.sleep(0.1)
    running.send_signal(how)
    assert running.wait(60) != 0
    left = output.read_text()
    assert "before" in left
    assert "after" not in left
    gate.touch()
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert "after" in output.read_text()
