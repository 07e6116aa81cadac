"""Section 14: the deep answer's predictions come out, on every seed; where all is ample nothing tells the answers apart."""

import numpy as np
import pytest

from labkit.experiments.interview import (
    Case,
    calm_load,
    each_step_explains_some,
    memory_for,
    predictions,
    remainders,
    service_load,
)
from labkit.experiments.proofs import Proof
from labkit.teach.quiz import load_questions
from labkit.teach.quiz_interview import ARGUMENT, BONUS


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_deep_answer_predicts_what_the_shallow_one_gets_wrong(seed):
    for case in predictions(seed, hard=True):
        assert case.tells_apart(), case
    for case in predictions(seed, hard=False):
        assert case.deep_right, case
        assert case.shallow_right, case
        assert not case.tells_apart(), case


def test_without_traces_it_is_the_same(monkeypatch):
    monkeypatch.setenv("LABKIT_NO_TRACES", "1")
    assert all(case.tells_apart() for case in predictions(3, hard=True))
    assert not any(case.tells_apart() for case in predictions(3, hard=False))
    load = service_load(np.random.default_rng(3))
    assert each_step_explains_some(remainders(load, memory_for(load)))
    assert not each_step_explains_some(remainders(calm_load(load), memory_for(load)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_step_leaves_less(seed):
    load = service_load(np.random.default_rng(seed))
    found = remainders(load, memory_for(load))
    assert each_step_explains_some(found), found
    assert all(0 <= r.refused_share <= 1 for r in found)
    calm = remainders(calm_load(load), memory_for(load))
    assert not each_step_explains_some(calm)
    assert [r.refused_share for r in calm[1:]] == [0, 0, 0]


def test_a_prediction_needs_both_halves():
    right = Case("x", "y", "z", shallow=(0, 0), deep=(1, 2), measured=1.5)
    assert right.tells_apart()
    assert not Case("x", "y", "z", shallow=(0, 3), deep=(1, 2), measured=1.5).tells_apart()
    assert not Case("x", "y", "z", shallow=(0, 0), deep=(2, 3), measured=1.5).tells_apart()


def test_the_argument_and_the_bonus_points_are_questions():
    questions = load_questions()
    for step, names in ARGUMENT.items():
        assert all(questions[name].step in (step, 2, 5) for name in names)
    assert all(questions[name].topic == "bonus" for name in BONUS.values())
    assert bool(Proof(np.bool_(True)))
    assert Proof(np.bool_(False)).holds is False
