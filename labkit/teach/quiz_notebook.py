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
    from IPython.display import HTML, Javascript, display
    from IPython.utils.capture import capture_output
    from jupyterquiz import display_quiz

    with capture_output() as captured:
        display_quiz(as_jupyterquiz(questions, lang), shuffle_answers=True, max_width=900)
    for output in captured.outputs:
        script = output.data.get("application/javascript")
        display(HTML(output.data["text/html"]) if script is None else Javascript(without_mathjax(script)))  # type: ignore[no-untyped-call]
    for number, question in enumerate(questions, 1):
        print(f"{number}. {question.question[lang]}")


def without_mathjax(script: str) -> str:
    """The same script for a page without MathJax: no question has a formula.

    Where JupyterLab has announced a MathJax that is not loaded, `show_questions` of jupyterquiz 2.9.6 puts bare settings in the
    place of the page's `MathJax`, asks a server on the network for the library, and half a second later reads
    `MathJax.version[0]` of the settings, which have no version: an error on every page that is used offline.
    """
    return f"{{ const MathJax = undefined;\n{script}\n}}"
