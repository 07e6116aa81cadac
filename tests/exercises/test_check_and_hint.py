"""What a learner calls: check, hint, and the command line with its progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.teach import check, hint
from labkit.teach.exercises import CheckFailed, report_on
from labkit.teach.exercises.progress import progress_file, read_progress, status_rows
from tests.exercises.trees import WRONG, notebook


class Right:
    """Exercise 07, another way than the solution's."""

    def __init__(self, num_blocks: int, block_size: int):
        self.owner: list[str | None] = [None] * num_blocks
        self.size = block_size
        self.tables: dict[str, list[int]] = {}
        self.tokens: dict[str, int] = {}

    def _take(self, name: str, count: int) -> bool:
        free = [b for b, owner in enumerate(self.owner) if owner is None]
        if count > len(free):
            return False
        for block in free[:count]:
            self.owner[block] = name
            self.tables.setdefault(name, []).append(block)
        return True

    def allocate(self, name: str, tokens: int) -> bool:
        ok = self._take(name, (tokens + self.size - 1) // self.size)
        if ok:
            self.tokens[name] = tokens
        return ok

    def append(self, name: str) -> bool:
        if self.tokens[name] == len(self.tables[name]) * self.size and not self._take(name, 1):
            return False
        self.tokens[name] += 1
        return True

    def free(self, name: str) -> None:
        for block in self.tables.pop(name):
            self.owner[block] = None

    def block_table(self, name: str) -> list[int]:
        return self.tables[name]

    def slot(self, name: str, position: int) -> int:
        return self.tables[name][position // self.size] * self.size + position % self.size

    @property
    def num_free_blocks(self) -> int:
        return self.owner.count(None)


class Leaky(Right):
    def free(self, name: str) -> None:
        self.tables.pop(name)


def test_check_shows_the_verdict_and_notes_the_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckFailed) as failed:
        check("07", Leaky)
    assert "all its 3 blocks" in str(failed.value)
    assert failed.value._render_traceback_() == ["exercise 07: not yet. hint('07') helps."]
    assert "✗ exercise 07, not yet" in capsys.readouterr().out
    assert read_progress()["07"]["passed_at"] is None
    check("7", Right)
    assert "✓ exercise 07, passed" in capsys.readouterr().out
    entry = read_progress()["07"]
    assert entry["num_checks"] == 2
    assert entry["passed_at"]


def test_the_box_escapes_what_a_learner_wrote() -> None:
    class Rude(Right):
        def __init__(self, num_blocks: int, block_size: int):
            raise ValueError("<script>alert(1)</script>")

    report = report_on("07", Rude)
    assert "<script>" in report.text()
    assert "<script>" not in report.html()
    assert set(report._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_an_error_of_the_learner_names_its_line_and_prints_are_kept() -> None:
    class Buggy(Right):
        def append(self, name: str) -> bool:
            print("appending to", name)
            return bool(self.tables["nobody"])

    report = report_on("07", Buggy)
    assert "your code raised KeyError: 'nobody' (append, line " in report.message
    assert "appending to a" in report.printed


def test_hints_come_one_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(1, 5):
        hint("07")
        assert capsys.readouterr().out.startswith(f"hint {number} of 4: ")
    hint("07")
    said = capsys.readouterr().out
    assert said.startswith("those were all 4 hints; from the first again:\nhint 1 of 4: ")
    assert "hint 2 of 4" not in said
    hint("07")
    assert capsys.readouterr().out.startswith("hint 2 of 4: ")
    hint("07", start_over=True)
    assert capsys.readouterr().out.startswith("hint 1 of 4: ")
    assert read_progress()["07"]["num_hints"] == 7


def test_wrong_calls_are_refused_in_one_sentence() -> None:
    with pytest.raises(LabError, match=r"exercise '99' is not known; choose one of: 01, 02"):
        check("99", Right)
    with pytest.raises(LabError, match=r"takes 3 arguments: my_round_size, my_segment_size, my_should_split"):
        check("05", len)


def test_an_object_in_place_of_the_class_is_said() -> None:
    report = report_on("07", Right(4, 4))
    assert not report.passed
    assert 'without calling it: check("07", MyBlockTable).' in report.message
    assert report_on("11", None).message.startswith("my_admit: the check got None.")


def test_status_of_a_damaged_progress_file() -> None:
    progress_file().write_text("not json")
    assert {row["state"] for row in status_rows()} == {"open"}


def test_a_damaged_file_is_kept_aside(capsys: pytest.CaptureFixture[str]) -> None:
    progress_file().write_text("not json")
    hint("07")
    assert "it is kept as progress.json.damaged" in capsys.readouterr().err
    assert progress_file().with_name("progress.json.damaged").read_text() == "not json"
    assert read_progress()["07"]["num_hints"] == 1
    progress_file().write_text('{"07": {"num_hints": "many"}}')
    hint("07")
    assert progress_file().with_name("progress.json.2.damaged").exists()
    progress_file().write_text("")
    capsys.readouterr()
    hint("07")
    assert capsys.readouterr().err == ""


def test_a_place_that_cannot_be_written_is_said_and_stops_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "file" / "me.json"))
    check("07", Right)
    said = capsys.readouterr()
    assert said.err == f"progress is not saved: {tmp_path / 'file' / 'me.json'}: Not a directory\n"
    assert "✓ exercise 07, passed" in said.out


def test_a_pass_and_a_later_failure_are_kept_apart() -> None:
    with pytest.raises(CheckFailed):
        check("07", Leaky)
    check("07", Right)
    row = {row["id"]: row for row in status_rows()}["07"]
    assert row["state"] == "passed"
    assert row["last_check_passed"] is True
    assert "all its 3 blocks" in row["last_failed_message"]
    assert row["last_message"] != row["last_failed_message"]
    with pytest.raises(CheckFailed):
        check("07", Leaky)
    later = {row["id"]: row for row in status_rows()}["07"]
    assert (later["state"], later["last_check_passed"]) == ("passed", False)
    assert later["passed_at"] == row["passed_at"]


def test_a_table_of_the_room(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    stuck = {"num_checks": 5, "num_hints": 0, "passed_at": None, "last_message": "m"}
    stuck |= {"last_failed_message": "block 3 is lost", "last_failed_at": "2026-01-02"}
    asks = stuck | {"num_hints": 1, "last_failed_at": "2026-01-01", "last_failed_message": "older"}
    (share / "anna.json").write_text(json.dumps({"07": stuck, "03": asks}))
    (share / "ben.json").write_text(json.dumps({"07": stuck | {"passed_at": "2026-01-03"}}))
    (share / "empty.json").write_text("")
    (share / "half.json").write_text('{"07": {"num_che')
    (share / "ben.json.damaged").write_text("x")
    assert _exit_code(["exercises", "status", str(share), "--json"]) == 0
    rows = {Path(row["file"]).name: row for row in json.loads(capsys.readouterr().out)["learners"]}
    assert (rows["anna.json"]["stuck"], rows["anna.json"]["passed"]) == (["07"], [])
    assert (rows["anna.json"]["num_checks"], rows["anna.json"]["num_hints"]) == (10, 1)
    assert rows["anna.json"]["last_failed"] == {"id": "07", "message": "block 3 is lost"}
    assert (rows["ben.json"]["stuck"], rows["ben.json"]["passed"]) == ([], ["07"])
    assert rows["empty.json"]["problem"] == "is empty"
    assert rows["half.json"]["passed"] is None
    assert _exit_code(["exercises", "status", str(share / "ben.json"), str(share)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["learner", "ben", "anna"]
    assert lines[3].startswith("2 learners; stuck: 4 or more checks")
    assert any("half.json: is damaged" in line for line in lines[4:])
    assert any("ben.json.damaged: was damaged and is kept aside" in line for line in lines[4:])
    for given, says in ((share / "nobody.json", "no such file"), (tmp_path, "no progress in it")):
        progress_file().unlink(missing_ok=True)
        assert _exit_code(["exercises", "status", str(given)]) == 2
        assert says in capsys.readouterr().err


def test_the_columns_of_the_status_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code(["exercises", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert len({line.rindex("open") for line in lines}) == 1
    progress_file().write_text("not json")
    assert _exit_code(["exercises", "status"]) == 0
    assert "nothing is known" in capsys.readouterr().out


def test_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(notebook("exercises", "07").parents[1])
    assert _exit_code(["exercises", "check", "07", str(notebook("solutions", "07")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert _exit_code(["exercises", "check", "07"]) == 1  # the notebook in exercises/
    assert "ex07: " in capsys.readouterr().out
    picture = tmp_path / "wrong.png"
    wrong = WRONG / "ex07_free_last_only.py"
    assert _exit_code(["exercises", "check", "07", str(wrong), "--figure", str(picture)]) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert _exit_code(["exercises", "status", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["exercises"]}
    assert rows["07"]["state"] == "passed"
    assert rows["07"]["num_checks"] == 3
    assert rows["03"]["state"] == "open"
    assert _exit_code(["exercises", "check", "07", "nowhere.py"]) == 2
    assert "nowhere.py: cannot be read" in capsys.readouterr().err
    assert _exit_code(["exercises", "generate", "--exercises", str(tmp_path / "out"), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out).values()) == {"written"}


def _exit_code(args: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return int(ended.value.code or 0)
