"""`labkit quiz`: interview questions in a terminal, each with the experiment that proves its answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def run(
    topic: Annotated[str | None, typer.Option(help="questions of one topic only")] = None,
    number: Annotated[int | None, typer.Option("--number", "-n", help="so many, drawn at random")] = None,
    question: Annotated[str | None, typer.Option(help="one question by its id")] = None,
    lang: Annotated[str, typer.Option(help="en or zh")] = "en",
    interview: Annotated[
        bool, typer.Option("--interview", help="a mock interview in the order of the argument")
    ] = False,
    per_step: Annotated[int, typer.Option(help="mock interview: questions a step")] = 1,
    prove: Annotated[bool, typer.Option("--prove", help="run the experiments instead of asking")] = False,
    seed: Annotated[int, typer.Option(help="for drawing and for the experiments")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="questions and rubric as JSON; asks nothing")
    ] = False,
) -> None:
    """Ask, show the answer and the rubric, and run the proof on request. With --prove: exit 1 when one does not hold."""
    from labkit.errors import LabError
    from labkit.teach.quiz import choose, language, load_questions
    from labkit.teach.quiz_interview import draw_interview

    language(lang)
    questions = load_questions()
    if question is not None:
        if question not in questions:
            raise LabError(f"no question {question!r}; ids are: {', '.join(questions)}")
        chosen = [questions[question]]
    elif interview:
        chosen = draw_interview(seed, per_step).path
    else:
        chosen = choose(questions, topic=topic, number=number, seed=seed)
    if prove:
        _prove(chosen, seed, as_json)
    elif as_json:
        typer.echo(json.dumps([_as_dict(q) for q in chosen], indent=1, ensure_ascii=False))
    elif interview:
        _interview(chosen, lang, seed)
    else:
        _ask(chosen, lang, seed)


def _as_dict(question: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(question)


def _prove(chosen: list[Any], seed: int, as_json: bool) -> None:
    from labkit.teach.quiz import prove

    rows, num_failed = [], 0
    for question in chosen:
        proven = prove(question, seed)
        num_failed += not proven.holds
        rows.append(
            {
                "id": question.id,
                "holds": proven.holds,
                "shows": proven.shows.holds,
                "control": proven.control.holds,
                "figures": proven.shows.figures,
                "control_figures": proven.control.figures,
            }
        )
        if not as_json:
            mark = "holds" if proven.holds else "DOES NOT HOLD"
            typer.echo(f"{question.id:24} {mark}   {_short(proven.shows.figures)}")
            typer.echo(f"{'':24} control {_short(proven.control.figures)}")
    if as_json:
        typer.echo(
            json.dumps(
                {"num_questions": len(rows), "num_failed": num_failed, "rows": rows}, indent=1, default=str
            )
        )
    else:
        typer.echo(f"{len(rows)} proofs, {num_failed} failed")
    if num_failed:
        raise typer.Exit(1)


def _short(figures: Any) -> str:
    text = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
    return text if len(text) <= 150 else text[:147] + "..."


def _ask(chosen: list[Any], lang: str, seed: int) -> None:
    """Multiple choice; right answers are counted."""
    import numpy as np

    rng, num_right = np.random.default_rng(seed), 0
    for number, question in enumerate(chosen, 1):
        options = [(question.answer[lang], None), *((w.answer[lang], w.why[lang]) for w in question.wrong)]
        options = [options[i] for i in rng.permutation(len(options)).tolist()]
        typer.echo(
            f"\n{number} of {len(chosen)}  [{question.topic}, {question.id}]\n{question.question[lang]}"
        )
        for letter, (text, _) in zip("abcdef", options):
            typer.echo(f"  {letter}) {text}")
        said = _letter(len(options))
        if said is None:
            break
        why = options[said][1]
        num_right += why is None
        typer.echo("Right." if why is None else f"No. {why}")
        _answer(question, lang)
        _offer_proof(question, seed)
    typer.echo(f"\n{num_right} right.")


def _letter(num_options: int) -> int | None:
    letters = "abcdef"[:num_options]
    while True:
        said = typer.prompt("your answer (a letter, q to stop)").strip().lower()
        if said == "q":
            return None
        if said and said in letters:
            return letters.index(said)
        typer.echo(f"one of: {', '.join(letters)}, q")


def _answer(question: Any, lang: str) -> None:
    from labkit.teach.quiz_interview import rubric

    typer.echo(f"Answer: {question.answer[lang]}")
    for line in rubric(question, lang):
        typer.echo(f"  {line}")


def _offer_proof(question: Any, seed: int) -> None:
    from labkit.teach.quiz import prove

    proof = question.proof
    typer.echo(f"Proof: {proof.line(proof.shows)}")
    if typer.confirm("run it?", default=False):
        proven = prove(question, seed)
        typer.echo(f"  shows {proven.shows.holds}: {_short(proven.shows.figures)}")
        typer.echo(f"  control {proven.control.holds}: {_short(proven.control.figures)}")


def _interview(chosen: list[Any], lang: str, seed: int) -> None:
    from labkit.teach.quiz import STEPS
    from labkit.teach.quiz_interview import POINTS, Interview

    interview = Interview(chosen)
    for question in chosen:
        typer.echo(
            f"\nStep {question.step}: {STEPS[question.step][0 if lang == 'en' else 1]}\n{question.question[lang]}"
        )
        typer.prompt("answer aloud, then press Enter", default="", show_default=False)
        _answer(question, lang)
        for wrong in question.wrong:
            typer.echo(f"  wrong: {wrong.answer[lang]} -> {wrong.why[lang]}")
        while True:
            level = typer.prompt(f"what was yours? ({', '.join(POINTS)}, q to stop)").strip().lower()
            if level in POINTS or level == "q":
                break
        if level == "q":
            break
        interview.score(question.id, level)
        _offer_proof(question, seed)
    typer.echo("\n" + interview.report(lang))
