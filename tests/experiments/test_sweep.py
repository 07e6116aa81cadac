"""A sweep gives one tidy row a configuration, whoever runs it, and survives being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sweep_runs

from labkit.errors import LabError
from labkit.experiments.sweep import expand, sweep

HERE = Path(__file__).parent


def test_tidy_rows_in_grid_order_from_local_processes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    frame = sweep(sweep_runs.area, {"width": [1, 2], "height": [3, 5]}, num_processes=2)
    assert list(frame.columns) == ["width", "height", "area", "pid"]
    assert frame["area"].tolist() == [3, 5, 6, 10]
    assert os.getpid() not in frame["pid"].tolist()


def test_any_executor_and_one_run_each(tmp_path):
    grid = {"folder": [str(tmp_path)], "index": range(6)}
    with ThreadPoolExecutor(2) as pool:
        done = []
        frame = sweep(
            sweep_runs.counted, grid, folder=tmp_path / "results", executor=pool, on_progress=done.append
        )
    assert frame["square"].tolist() == [i * i for i in range(6)]
    assert sum(done) == 6
    with ThreadPoolExecutor(2) as pool:
        again = sweep(
            sweep_runs.counted, {**grid, "index": range(8)}, folder=tmp_path / "results", executor=pool
        )
    assert len(again) == 8
    assert sorted(_runs(tmp_path)) == list(range(8)), "what was there is not run again; what is new is run"


def test_a_failing_run_keeps_the_finished_ones(tmp_path):
    grid = {"folder": [str(tmp_path)], "index": range(4)}
    with ThreadPoolExecutor(4) as pool, pytest.raises(RuntimeError, match="run 3 is broken"):
        sweep(sweep_runs.fails_at_three, grid, folder=tmp_path / "results", executor=pool)
    assert len(list((tmp_path / "results").glob("*.json"))) == 3


def test_killed_and_resumed(tmp_path):
    """SIGKILL in the middle: whole files only, and the second attempt runs what was missing."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sweep_runs;"
        "from concurrent.futures import ThreadPoolExecutor; from labkit.experiments.sweep import sweep;"
        "sweep(sweep_runs.slow, {'folder': [sys.argv[2]], 'index': range(12)}, folder=sys.argv[2] + '/results',"
        " executor=ThreadPoolExecutor(1))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(HERE), str(tmp_path)])
    results = tmp_path / "results"
    deadline = time.monotonic() + 60
    while len(list(results.glob("*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = list(results.glob("*.json"))
    assert 3 <= len(kept) < 12
    for path in kept:
        assert json.loads(path.read_text())["figures"]
    with ThreadPoolExecutor(4) as pool:
        frame = sweep(
            sweep_runs.slow, {"folder": [str(tmp_path)], "index": range(12)}, folder=results, executor=pool
        )
    assert frame["square"].tolist() == [i * i for i in range(12)]
    assert len(_runs(tmp_path)) <= 12 + 1, "at most the run that was under way is repeated"


def test_a_dask_cluster_runs_the_same_sweep(monkeypatch):
    distributed = pytest.importorskip(
        "distributed", reason="distributed is an optional extra: pip install labkit[dask]"
    )
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # the cluster's processes import the run from there
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        frame = sweep(sweep_runs.headroom, {"watermark": [0.0, 0.3]}, executor=client.get_executor())
    local = [sweep_runs.headroom(w)["num_preemptions"] for w in (0.0, 0.3)]
    assert frame["num_preemptions"].tolist() == local
    assert local[0] > local[1]


def test_bad_sweeps_are_one_sentence(tmp_path):
    with pytest.raises(LabError, match="the grid is empty"):
        sweep(sweep_runs.area, {"width": [], "height": [1]})
    with pytest.raises(LabError, match="is there twice"):
        expand([{"a": 1}, {"a": 1}])
    with pytest.raises(LabError, match="JSON cannot hold"):
        expand({"a": [object()]})
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(LabError, match="returned int; return a dict"):
            sweep(lambda a: a, {"a": [1]}, executor=pool)
        with pytest.raises(LabError, match="returns 'a', which names an input"):
            sweep(lambda a: {"a": a}, {"a": [1]}, executor=pool)
        grid = {"folder": [str(tmp_path)], "index": [1]}
        sweep(sweep_runs.counted, grid, folder=tmp_path / "results", executor=pool)
        (file,) = (tmp_path / "results").glob("*.json")
        file.write_text("{")
        with pytest.raises(LabError, match="is not a result of a sweep; remove it"):
            sweep(sweep_runs.counted, grid, folder=tmp_path / "results", executor=pool)


def _runs(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "runs.txt").read_text().split()]
