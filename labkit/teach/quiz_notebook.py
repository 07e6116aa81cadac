"""Questions in a notebook, through jupyterquiz: everything is inlined, so neither a network nor a kernel is needed later.

The answers stand in the output of the cell, in its source as it were: this is for learning, not for examining.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.teach.quiz import Question, language


def as_jupyterquiz(questions: Sequence[Question], lang: str = "en") -> list[dict[str, Any]]:
    """The list of dicts that jupyterquiz takes: multiple choice, with the reason as feedback."""
    language(lang)
    return [
        {
            "question": question.question[lang],
            "type": "multiple_choice",
            "answers": [
                {"answer": question.answer[lang], "correct": True, "feedback": question.levels["deep"][lang]},
                *(
                    {"answer": wrong.answer[lang], "correct": False, "feedback": wrong.why[lang]}
                    for wrong in question.wrong
                ),
            ],
        }
        for question in questions
    ]


def show_quiz(questions: Sequence[Question], lang: str = "en") -> None:
    """Show the questions under the cell, and list them as text for print and for readers without JavaScript."""
    from jupyterquiz import display_quiz

    display_quiz(as_jupyterquiz(questions, lang), shuffle_answers=True, max_width=900)
    for number, question in enumerate(questions, 1):
        print(f"{number}. {question.question[lang]}")
