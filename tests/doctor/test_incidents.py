"""Three incidents a kind, and what makes the generator worth trusting."""

from __future__ import annotations

import json

import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.experiments.incidents.evaluate import evaluate, evaluation_rows, one
from labkit.experiments.incidents.kinds import KINDS
from labkit.experiments.incidents.make import make_incident, make_incidents, plan_incidents
from labkit.experiments.incidents.score import said, score_folder, summarise

SEED = 11


@pytest.mark.parametrize("kind", KINDS)
def test_three_of_a_kind(kind):
    rows = plan_incidents(3, [kind], None, None)
    notes = [one(SEED, 100 * KINDS.index(kind) + i, row) for i, row in enumerate(rows)]
    assert [said(note["kinds"], note["answers"]) for note in notes] == [kind] * 3, notes


def test_same_seed_same_bytes_and_no_truth_in_the_evidence(tmp_path):
    row = {"kind": "kv_block_leak", "severity": "mild", "trace": "azure-code", "look_alike": "", "double": ""}
    for name in ("a", "b"):
        incident = make_incident(5, 3, row, tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        text = path.read_text()
        assert text == (tmp_path / "b" / path.name).read_text()
        assert not any(kind in text for kind in KINDS if kind != "healthy")
    assert incident.felt(0.10, 0.02)


def test_command_line(tmp_path, capsys):
    out = tmp_path / "made"
    args = [
        "--seed",
        "4",
        "--num",
        "2",
        "--kinds",
        "healthy,idle_sessions_left_behind",
        "--trace",
        "azure-code",
    ]
    for call in (["make", *args, "--severity", "severe", "--out", str(out)], ["score", str(out), "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "incidents", *call])
        assert ended.value.code == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) >= {"macro_f1", "per_kind_recall", "confusion"}
    assert result["macro_f1"] == 1.0
    with pytest.raises(SystemExit):
        main(["doctor", "diagnose", str(out / "0001" / "evidence")])
    text = capsys.readouterr().out
    for part in (
        "idle sessions left behind (12.5)",
        "measure next:",
        "try:",
        "excluded:",
        "estimated on a fitted load",
    ):
        assert part in text
    with pytest.raises(SystemExit):
        main(["doctor", "scrape", str(out / "0000" / "evidence" / "metrics.prom")])
    assert "kv_usage" in capsys.readouterr().out


def test_counting():
    result = summarise(
        [["healthy"], ["a", "b"], ["a", "b"], ["a"]], [["healthy"], ["b", "a"], ["a"], ["c", "a"]]
    )
    assert result["confusion"] == {"healthy": {"healthy": 1}, "a": {"a": 1, "only one of two": 1, "c": 1}}
    assert result["per_kind_recall"] == {"healthy": 1.0, "a": pytest.approx(1 / 3)}
    assert result["macro_f1"] == pytest.approx((1 + 2 / 4) / 2)
    assert said(["a"], ["b", "a"]) == "b"


def test_the_plan():
    rows = evaluation_rows()
    assert len(rows) == 780
    assert sum(row["kind"] == "healthy" for row in rows) == 300
    assert sum(bool(row["double"]) for row in rows) == 48
    even = [row["kind"] for row in plan_incidents(26, None, None, None)]
    assert all(even.count(kind) == 2 for kind in KINDS)


def test_stopped_and_resumed(tmp_path):
    first = evaluate(3, tmp_path, num_each=0, num_healthy=2, workers=1)
    notes = tmp_path / "answers-3.jsonl"
    notes.write_text(notes.read_text()[:-20])
    again = evaluate(3, tmp_path, num_each=0, num_healthy=2, workers=1)
    assert first == again


@pytest.mark.parametrize(
    ("wrong", "said_"),
    [
        ({"kinds": ["flu"]}, "choose one of: contiguous_fragmentation"),
        ({"severity": "awful"}, "choose one of: mixed, mild"),
        ({"trace": "mine"}, "choose one of: mixed, azure-conv"),
        ({"num": 0}, "start at 1"),
    ],
)
def test_mistakes(tmp_path, wrong, said_):
    with pytest.raises(LabError, match=said_):
        make_incidents(**{"seed": 1, "num": 1, "out": tmp_path, **wrong})
    with pytest.raises(LabError, match="no such file"):
        score_folder(tmp_path)
