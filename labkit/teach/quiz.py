"""Interview questions whose answers can be run: `labkit/data/quiz.yaml`, read and checked.

    questions = load_questions()
    proven = prove(questions["frag-hotel"], seed=0)      # runs the experiment, and its control
    proven.holds                                         # the answer shows, and on the control it does not

A question without an experiment is an error when the file is read.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from labkit.errors import InputError, LabError
from labkit.experiments.proofs import Proof

LANGUAGES = ("en", "zh")
LEVELS = ("shallow", "good", "deep")
TOPICS = (
    "ledger",
    "contiguous and paged",
    "fragmentation",
    "allocators",
    "prefix caches",
    "scheduling",
    "preemption",
    "metrics",
    "three systems",
    "situations",
    "bonus",
)
#: the order of the argument, claim 14.2
STEPS = {
    1: ("static and dynamic memory", "静态与动态显存"),
    2: ("capacity, fragmentation, lifetimes", "容量、碎片与生命周期"),
    3: ("why contiguous is unstable", "连续缓存为何不稳"),
    4: ("what blocks change", "分块改变了什么"),
    5: ("scheduling, prefix cache, long sessions", "调度、前缀缓存与长会话"),
    6: ("metrics and proof", "指标与证明"),
}

#: a text in each language
Text = Mapping[str, str]


@dataclass(frozen=True)
class WrongAnswer:
    """A common wrong answer, and why it is wrong."""

    answer: Text
    why: Text


@dataclass(frozen=True)
class Experiment:
    """`function` is "module:name" in `labkit.experiments`; `shows` and `control` are its arguments."""

    function: str
    shows: Mapping[str, Any]
    control: Mapping[str, Any]

    def run(self, arguments: Mapping[str, Any], seed: int) -> Proof:
        """Call the function; one that draws (`rng`) gets a fresh generator."""
        call = _find(self.function)
        draws = "rng" in inspect.signature(call).parameters
        found = call(np.random.default_rng(seed), **arguments) if draws else call(**arguments)
        if not isinstance(found, Proof):
            raise LabError(f"{self.function} returned {type(found).__name__}; a proof returns a Proof")
        return found

    def line(self, arguments: Mapping[str, Any]) -> str:
        """What the reader types."""
        module, name = self.function.split(":")
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        draws = "rng" in inspect.signature(_find(self.function)).parameters
        rng = "np.random.default_rng(0), " if draws else ""
        return f"from {module} import {name}; {name}({rng}{given})"


@dataclass(frozen=True)
class Question:
    id: str
    topic: str
    step: int
    question: Text
    answer: Text
    levels: Mapping[str, Text]
    wrong: Sequence[WrongAnswer]
    proof: Experiment


@dataclass(frozen=True)
class Proven:
    """One run of a question's experiment."""

    question: Question
    shows: Proof
    control: Proof

    @property
    def holds(self) -> bool:
        """The answer shows where it should and not on the control."""
        return self.shows.holds and not self.control.holds

    def check(self) -> Proven:
        """Itself; raises `AssertionError` that says which of the two runs went wrong."""
        if not self.shows.holds:
            raise AssertionError(
                f"question {self.question.id}: the answer does not show: {self.shows.figures}"
            )
        if self.control.holds:
            raise AssertionError(
                f"question {self.question.id}: its control holds too, so it proves nothing: {self.control.figures}"
            )
        return self


def prove(question: Question, seed: int = 0) -> Proven:
    """Run the experiment of a question and its control."""
    proof = question.proof
    return Proven(question, proof.run(proof.shows, seed), proof.run(proof.control, seed))


def load_questions(path: str | Path | None = None) -> dict[str, Question]:
    """All questions by id, in the order of the file (default: the one that ships with the lab). Raises `InputError`."""
    import yaml

    where: Any = path or "quiz.yaml"
    text = (
        files("labkit.data").joinpath("quiz.yaml").read_text(encoding="utf-8")
        if path is None
        else Path(path).read_text(encoding="utf-8")
    )
    try:
        entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(where, f"is not YAML ({' '.join(str(error).split())[:120]})") from None
    if not isinstance(entries, list) or not entries:
        raise InputError(where, "is not a list of questions")
    questions: dict[str, Question] = {}
    for row, entry in enumerate(entries, 1):
        question = _question(entry, where, row)
        if question.id in questions:
            raise InputError(where, f"{question.id!r} is there twice; ids are unique", row=row, field="id")
        questions[question.id] = question
    return questions


def choose(
    questions: Mapping[str, Question],
    *,
    topic: str | None = None,
    number: int | None = None,
    seed: int = 0,
    shuffle: bool = False,
) -> list[Question]:
    """Questions of a topic (default: all), or `number` of them drawn at random; in the order of the file, or shuffled."""
    if topic is not None and topic not in TOPICS:
        raise LabError(f"unknown topic {topic!r}; choose one of: {', '.join(TOPICS)}")
    if number is not None and number < 1:
        raise LabError(f"the number of questions is {number}; ask for at least 1")
    chosen = [q for q in questions.values() if topic is None or q.topic == topic]
    rng = np.random.default_rng(seed)
    if number is not None and number < len(chosen):
        picked = rng.choice(len(chosen), number, replace=False)
        chosen = [chosen[i] for i in sorted(picked.tolist())]
    return [chosen[i] for i in rng.permutation(len(chosen)).tolist()] if shuffle else chosen


def language(name: str) -> str:
    """`name`, or a `LabError` that lists the languages."""
    if name not in LANGUAGES:
        raise LabError(f"unknown language {name!r}; choose one of: {', '.join(LANGUAGES)}")
    return name


def _find(function: str) -> Any:
    module, _, name = function.partition(":")
    if not module.startswith("labkit.experiments.") or not name:
        raise LabError(f"proof {function!r} is not a function of labkit.experiments; write module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise LabError(f"proof {function!r} does not exist") from None


def _question(entry: Any, where: Any, row: int) -> Question:
    if not isinstance(entry, dict):
        raise InputError(where, "is not a question (a mapping)", row=row)
    for field in ("id", "topic", "step", "question", "answer", "levels", "wrong", "proof"):
        if field not in entry:
            what = (
                "every question has an experiment that proves its answer"
                if field == "proof"
                else "it is required"
            )
            raise InputError(where, f"is missing; {what}", row=row, field=field)
    if entry["topic"] not in TOPICS:
        raise InputError(
            where, f"is {entry['topic']!r}; topics are {', '.join(TOPICS)}", row=row, field="topic"
        )
    if entry["step"] not in STEPS:
        raise InputError(where, f"is {entry['step']!r}; steps are 1 to {len(STEPS)}", row=row, field="step")
    wrong = entry["wrong"]
    if not isinstance(wrong, list) or len(wrong) < 2:
        raise InputError(where, "needs at least two common wrong answers", row=row, field="wrong")
    proof = entry["proof"]
    if not isinstance(proof, dict) or not {"function", "shows", "control"} <= proof.keys():
        raise InputError(where, "needs function, shows and control", row=row, field="proof")
    levels = entry["levels"]
    if not isinstance(levels, dict) or set(levels) != set(LEVELS):
        raise InputError(where, f"has to be {', '.join(LEVELS)}", row=row, field="levels")
    return Question(
        id=str(entry["id"]),
        topic=entry["topic"],
        step=entry["step"],
        question=_text(entry["question"], where, row, "question"),
        answer=_text(entry["answer"], where, row, "answer"),
        levels={name: _text(levels[name], where, row, f"levels.{name}") for name in LEVELS},
        wrong=[
            WrongAnswer(
                _text(item.get("answer"), where, row, "wrong.answer"),
                _text(item.get("why"), where, row, "wrong.why"),
            )
            for item in wrong
        ],
        proof=Experiment(proof["function"], proof["shows"], proof["control"]),
    )


def _text(value: Any, where: Any, row: int, field: str) -> Text:
    if (
        not isinstance(value, dict)
        or set(value) != set(LANGUAGES)
        or not all(isinstance(text, str) and text.strip() for text in value.values())
    ):
        raise InputError(where, f"needs a text in each of {', '.join(LANGUAGES)}", row=row, field=field)
    return value
