"""Verdicts, controls and what makes a run fail."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.teach import claims
from labkit.teach.claims import ClaimsFailed, claim, finish, problems_of


@pytest.fixture(autouse=True)
def fresh_run(monkeypatch):
    monkeypatch.setattr(claims, "_shown", {})


def all_of_15(**changes):
    for claim_id in ("15.1", "15.2"):
        claim(
            claim_id,
            "as stated",
            **{"held": True, "control": False} | changes.get(claim_id.replace(".", "_"), {}),
        )


def test_a_good_run_finishes(capsys):
    all_of_15()
    finish("15")
    assert "15.2 held" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"held": False}, "15.2 did not hold"),
        ({"control": True}, "15.2: its control holds too"),
        ({"held": np.bool_(False)}, "15.2 did not hold"),
    ],
)
def test_finish_names_what_went_wrong_and_shows_the_rest_first(change, named):
    all_of_15(**{"15_2": change})
    with pytest.raises(ClaimsFailed, match=named):
        finish("15")


def test_finish_names_a_missing_claim():
    claim("15.1", "as stated", held=True, control=False)
    with pytest.raises(ClaimsFailed, match=r"15\.2 is missing"):
        finish("15")


def test_a_known_exception_is_reported_and_does_not_fail(monkeypatch):
    monkeypatch.setattr(claims, "known_exceptions", lambda: {"15.2": "the trace is too short"})
    all_of_15(**{"15_2": {"held": False}})
    finish("15")
    assert claims._shown["15.2"].verdict == "not held"


def test_not_measured_is_a_verdict_of_its_own():
    whole = claim("6.4", "price", held=None, control=False, not_measured="kernel times: no GPU")
    half = claim("5.0", "leaner", held=True, control=False, not_measured="the timing half: no GPU")
    assert (whole.verdict, whole.held) == ("not measured here", False)
    assert (half.verdict, half.held, half.reason) == ("held", True, "the timing half: no GPU")


def test_held_is_a_boolean_and_the_id_is_known():
    with pytest.raises(LabError, match="held must be a boolean"):
        claim("15.1", "x", held=0.7, control=False)
    with pytest.raises(LabError, match="not in the list"):
        claim("99.1", "x", held=True, control=False)


def test_figures_are_plain_json():
    verdict = claim(
        "15.1", "x", held=True, control=False, a=np.float64(1 / 3), b=np.arange(2), c={"k": (1, 2)}
    )
    assert verdict.figures == {"a": 0.333333, "b": [0, 1], "c": {"k": [1, 2]}}


def test_the_list_has_every_section_and_only_wanted_notebooks_count():
    sections = {entry["notebook"] for entry in claims.claim_list().values()}
    assert sections == {f"{n:02d}" for n in range(1, 16)}
    assert len(claims.claim_list()) == 69
    assert problems_of([], notebooks=["00"]) == []
