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
    seed: Annotated[
        int | None,
        typer.Option(
            help="repeats what was drawn; default: another one each time, printed (proofs: 0)", min=0
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="questions and rubric as JSON; asks nothing")
    ] = False,
) -> None:
    """Ask, show the answer and the rubric, and run the proof on request. With --prove: exit 1 when one does not hold."""
    from labkit.errors import LabError
    from labkit.teach.quiz import choose, language, load_questions
    from labkit.teach.quiz_interview import draw_interview

    language(lang)
    asks = not prove and not as_json
    if seed is None:
        seed = _any_seed() if asks else 0
    questions = load_questions()
    if question is not None:
        if question not in questions:
            raise LabError(f"no question {question!r}; ids are: {', '.join(questions)}")
        chosen = [questions[question]]
    elif interview:
        chosen = draw_interview(seed, per_step).path
    else:
        chosen = choose(questions, topic=topic, number=number, seed=seed, shuffle=asks)
    if prove:
        _prove(chosen, seed, as_json)
    elif as_json:
        typer.echo(json.dumps([_as_dict(q) for q in chosen], indent=1, ensure_ascii=False))
    else:
        from labkit.teach.quiz_words import WORDS

        typer.echo(WORDS[lang]["seed"].format(seed=seed))
        (_interview if interview else _ask)(chosen, lang, seed)


def _any_seed() -> int:
    """Short enough to be read out."""
    import secrets

    return secrets.randbelow(10_000)


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
            typer.echo(f"{'':24} control: {_short(proven.control.figures)}")
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

    from labkit.teach.quiz_words import WORDS, topic_name

    say, rng = WORDS[lang], np.random.default_rng(seed)
    num_right = num_asked = 0
    for number, question in enumerate(chosen, 1):
        options = [(question.answer[lang], None), *((w.answer[lang], w.why[lang]) for w in question.wrong)]
        options = [options[i] for i in rng.permutation(len(options)).tolist()]
        typer.echo(
            "\n"
            + say["number"].format(number=number, total=len(chosen))
            + f"  [{topic_name(question.topic, lang)}, {question.id}]\n{question.question[lang]}"
        )
        for letter, (text, _) in zip("abcdef", options):
            typer.echo(f"  {letter}) {text}")
        said = _letter(len(options), lang)
        if said is None:
            break
        why = options[said][1]
        num_asked += 1
        num_right += why is None
        typer.echo(say["right"] if why is None else say["wrong"].format(why=why))
        _answer(question, lang)
        _offer_proof(question, lang, seed)
    typer.echo("\n" + say["total"].format(right=num_right, asked=num_asked))


def _letter(num_options: int, lang: str) -> int | None:
    """A place among the options; None to stop."""
    from labkit.teach.quiz_words import WORDS

    letters = "abcdef"[:num_options]
    accepted = WORDS[lang]["accepted"].format(letters=", ".join(letters))
    said = _one_of([*letters, "q"], WORDS[lang]["ask"], accepted)
    return None if said == "q" else letters.index(said)


def _one_of(answers: list[str], ask: str, accepted: str) -> str:
    """Ask until one of `answers` comes; anything else, nothing too, is told what is accepted."""
    while True:
        said: str = typer.prompt(ask, default="", show_default=False).strip().lower()
        if said in answers:
            return said
        typer.echo(accepted)


def _answer(question: Any, lang: str) -> None:
    from labkit.teach.quiz_interview import rubric
    from labkit.teach.quiz_words import WORDS

    typer.echo(WORDS[lang]["answer"].format(answer=question.answer[lang]))
    for line in rubric(question, lang):
        typer.echo(f"  {line}")


def _offer_proof(question: Any, lang: str, seed: int) -> None:
    from labkit.teach.quiz import prove
    from labkit.teach.quiz_words import WORDS, proof_sentences

    say, proof = WORDS[lang], question.proof
    typer.echo(say["proof"].format(line=proof.line(proof.shows)))
    if _one_of(["y", "n", ""], say["run it"], say["yes or no"]) == "y":
        proven = prove(question, seed)
        given = _short(proof.shows), _short(proof.control)
        for sentence, found in zip(proof_sentences(proven, lang, given), (proven.shows, proven.control)):
            typer.echo(f"  {sentence}\n    {_short(found.figures)}")


def _interview(chosen: list[Any], lang: str, seed: int) -> None:
    from labkit.teach.quiz import STEPS
    from labkit.teach.quiz_interview import POINTS, Interview
    from labkit.teach.quiz_words import LEVEL_NAMES, WORDS

    say, interview = WORDS[lang], Interview(chosen)
    names = [f"{level} {LEVEL_NAMES[lang][level]}".strip() for level in POINTS]
    for question in chosen:
        step = STEPS[question.step][0 if lang == "en" else 1]
        typer.echo("\n" + say["step"].format(step=question.step, name=step) + f"\n{question.question[lang]}")
        typer.prompt(say["aloud"], default="", show_default=False)
        _answer(question, lang)
        for wrong in question.wrong:
            typer.echo("  " + say["common"].format(answer=wrong.answer[lang], why=wrong.why[lang]))
        shown = ", ".join(names)
        level = _one_of([*POINTS, "q"], say["level"].format(levels=shown), say["levels"].format(levels=shown))
        if level == "q":
            break
        interview.score(question.id, level)
        _offer_proof(question, lang, seed)
    typer.echo("\n" + interview.report(lang))
