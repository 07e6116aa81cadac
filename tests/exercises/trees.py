"""The two trees of notebooks, and the wrong solutions with the words that must reject them."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.teach.exercises import exercise_ids, find_exercise

ROOT = Path(__file__).resolve().parents[2]
WRONG = Path(__file__).parent / "wrong"


def notebook(tree: str, exercise_id: str) -> Path:
    return ROOT / tree / f"{find_exercise(exercise_id).notebook}.ipynb"


def wrong_solutions() -> list[Path]:
    return sorted(WRONG.glob("ex*.py"))


def expected_words(path: Path) -> str:
    """What the message must contain: `EXPECT` in the file."""
    found = re.search(
        r"^EXPECT = (.*?)  # the message must contain this$", path.read_text(encoding="utf-8"), re.M
    )
    assert found, f"{path.name} has no EXPECT"
    value = eval(found[1])
    assert isinstance(value, str)
    assert len(value) >= 3
    return value


IDS = exercise_ids()
#: those that are right or wrong; 16 is open
CHECKED = [i for i in IDS if i != "16"]
