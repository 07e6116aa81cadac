"""One damaged file is named in one sentence and the others are used; nothing usable is one sentence and exit code 2."""

from __future__ import annotations

import json

import foreign_pages as pages
import pytest

from labkit.cli.main import main
from labkit.doctor.diagnose import diagnose_paths
from labkit.doctor.recorded import RunSettings, save_run
from labkit.errors import LabError
from labkit.experiments.serve import serve
from labkit.workload.base import RequestSpec

GOOD = pages.vllm(pages.State(), 1000.0)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.prom", "", "is empty"),
        ("a.prom", "<html><body>404</body></html>", "is not Prometheus text|has no samples"),
        ("a.prom", "vllm:num_requests_running many\n", "is not Prometheus text"),
        ("a.prom", GOOD.replace("usage_perc{engine=\"0\",model_name=\"m\"} 0.0", "usage_perc{engine=\"0\",model_name=\"m\"} 57.0"), "a share lies in"),
        ("m.json", '{"allocated_bytes.all.current": 3}', "field reserved_bytes.all.current"),
        ("m.json", '{"hello": 3}', "is JSON without"),
        ("m.jsonl", '{"reserved_bytes.all.current": 3}\n{"reserved_bytes.all', "row 2"),
        ("s.csv", "timestamp, index, memory.used [MiB]\n1, 0, 3 MiB\n", "field memory.total"),
        ("s.csv", "timestamp, index, memory.used [MiB], memory.total [MiB]\n1, 0, lots, 80 MiB\n", "row 2, field memory.used"),
        ("x.log", "2026-03-02 09:00:00 INFO hello\n", "says anything about memory"),
        ("run.parquet", "PAR1 half of a file", "requests.parquet"),
    ],
)  # fmt: skip
def test_one_sentence(tmp_path, name, text, said, capsys):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LabError, match=said) as raised:
        diagnose_paths([path])
    assert "\n" not in str(raised.value)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "diagnose", str(path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_clocks_out_of_order(tmp_path):
    (tmp_path / "1.prom").write_text(pages.vllm(pages.State(), 20.0))
    (tmp_path / "2.prom").write_text(pages.vllm(pages.State(), 10.0))
    with pytest.raises(LabError, match="before the page ahead"):
        diagnose_paths([tmp_path])


def test_missing_and_empty_folder(tmp_path):
    with pytest.raises(LabError, match="no such file"):
        diagnose_paths([tmp_path / "none"])
    with pytest.raises(LabError, match="holds no files"):
        diagnose_paths([tmp_path])
    with pytest.raises(LabError, match="no evidence given"):
        diagnose_paths([])


def test_the_others_are_used(tmp_path):
    """A damaged log beside a good series."""
    for i in range(3):
        (tmp_path / f"{i}.prom").write_text(pages.vllm(pages.State(finished=i), 1000 + 10.0 * i))
    (tmp_path / "z.csv").write_text("memory.used\nx")
    diagnosis = diagnose_paths([tmp_path])
    assert len(diagnosis.sources) == 3
    assert any("z.csv" in note and "memory.total" in note for note in diagnosis.notes)


def recorded(folder, **options):
    load = [RequestSpec(f"r{i}", 0.1 * i, 700, 60, max_output_tokens=60) for i in range(80)]
    settings = RunSettings(capacity_tokens=4_000, bytes_per_token=8, options=options)
    run = serve("paged", load, capacity_tokens=4_000, bytes_per_token=8, every=1, **options)
    return save_run(run.recorder, folder, settings)


def test_half_a_parquet_file(tmp_path):
    folder = recorded(tmp_path / "run")
    whole = (folder / "series.parquet").read_bytes()
    (folder / "series.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LabError, match="is not a whole Parquet file"):
        diagnose_paths([folder])


@pytest.mark.parametrize(
    ("kind", "options"),
    [("capacity_too_small", {}), ("admission_too_conservative", {"max_num_seqs": 1})],
)
def test_the_fix_is_replayed(tmp_path, kind, options):
    diagnosis = diagnose_paths([recorded(tmp_path / "run", **options)])
    assert diagnosis.verdict == kind, (diagnosis.excluded, diagnosis.missing)
    ttft = diagnosis.findings[0].effects[0]
    assert ttft.how == "replayed"
    assert ttft.after < 0.8 * ttft.before
    json.dumps(diagnosis.as_dict())
