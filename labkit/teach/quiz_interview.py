"""A mock interview: one path through the argument, in its order, scored by the reader against the rubric.

interview = draw_interview(seed=3, per_step=2)
interview.score("ledger-budget", "good")
print(interview.report())
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.errors import LabError
from labkit.teach.quiz import LEVELS, STEPS, Question, load_questions

#: points of a level; nothing said is 0
POINTS = {"none": 0, "shallow": 1, "good": 2, "deep": 3}


@dataclass
class Interview:
    """`path` is in the order of the argument; `marks` maps a question's id to the level the reader gave himself."""

    path: list[Question]
    marks: dict[str, str] = field(default_factory=dict)

    def score(self, question_id: str, level: str) -> None:
        """Note the level of one answer. Raises `LabError` for a question that is not on the path or an unknown level."""
        if question_id not in {question.id for question in self.path}:
            raise LabError(f"question {question_id!r} is not on this path")
        if level not in POINTS:
            raise LabError(f"unknown level {level!r}; choose one of: {', '.join(POINTS)}")
        self.marks[question_id] = level

    @property
    def points(self) -> int:
        return sum(POINTS[level] for level in self.marks.values())

    @property
    def max_points(self) -> int:
        return POINTS["deep"] * len(self.path)

    def weakest_step(self) -> int | None:
        """The step with the lowest mean, the earlier one of equals; None before anything was marked, and when all marked
        steps are equal."""
        means = self._means()
        if len(set(means.values())) < 2:
            return None
        return min(means, key=lambda step: (means[step], step))

    def _means(self) -> dict[int, float]:
        """Mean points of each step of which something was marked."""
        points: dict[int, list[int]] = {}
        for question in self.path:
            if question.id in self.marks:
                points.setdefault(question.step, []).append(POINTS[self.marks[question.id]])
        return {step: sum(got) / len(got) for step, got in points.items()}

    def report(self, language: str = "en") -> str:
        """Points, and where to read on."""
        english = language == "en"
        if not self.marks:
            return "nothing marked yet" if english else "尚未评分"
        said = (
            f"{self.points} of {self.max_points} points."
            if english
            else f"{self.points} / {self.max_points} 分。"
        )
        step = self.weakest_step()
        if step is None:
            num_steps = len(self._means())
            if num_steps == 1:
                same = " Only one step was marked." if english else "只评了一步。"
            else:
                same = " All marked steps are equal." if english else "各步得分相同。"
            return said + same
        notebooks = ", ".join(NOTEBOOKS[step])
        if english:
            return f"{said} Weakest step: {STEPS[step][0]}. Read notebook {notebooks}."
        return f"{said}最弱的一步：{STEPS[step][1]}。建议阅读 notebook {notebooks}。"


#: where each step of the argument is shown
NOTEBOOKS = {
    1: ("02",),
    2: ("01", "03", "04"),
    3: ("05",),
    4: ("06", "07"),
    5: ("08", "09", "10"),
    6: ("11", "12", "13"),
}


def draw_interview(seed: int = 0, per_step: int = 1) -> Interview:
    """`per_step` questions of each of the six steps, in the order of the argument; the same seed draws the same path."""
    if per_step < 1:
        raise LabError(f"per_step is {per_step}; ask at least one question a step")
    rng = np.random.default_rng(seed)
    questions = list(load_questions().values())
    path: list[Question] = []
    for step in STEPS:
        here = [question for question in questions if question.step == step]
        picked = rng.choice(len(here), min(per_step, len(here)), replace=False)
        path += [here[i] for i in picked.tolist()]
    return Interview(path)


def rubric(question: Question, language: str = "en") -> list[str]:
    """What each level says, one line each."""
    return [f"{name}: {question.levels[name][language]}" for name in LEVELS]


#: the argument of claim 14.2 by the questions whose answers carry it
ARGUMENT = {
    1: ("ledger-budget", "ledger-nvidia-smi"),
    2: ("frag-mean", "frag-kind", "frag-pools"),
    3: ("kv-reserve", "kv-grow", "kv-no-good-point"),
    4: ("kv-same-output", "kv-cow", "kv-budget"),
    5: ("sched-decision", "frag-prefix-life", "frag-long"),
    6: ("metric-limit", "prefix-false-leak", "metric-itl"),
}
#: the bonus points of claim 14.3
BONUS = {
    "a high hit rate is not efficiency": "bonus-hit-rate",
    "quantisation need not raise concurrency": "bonus-quant-weights",
    "recovery on restart points to accumulated state": "bonus-restart",
    "admit by block or token, not by request": "bonus-unit",
}
