"""The questions are whole, in both languages, and each answer is proved beside a control."""

import copy
import importlib
import json
from importlib.resources import files

import pytest
import yaml
from typer.testing import CliRunner

from labkit.cli.main import build
from labkit.errors import InputError, LabError
from labkit.teach import quiz as quiz_module
from labkit.teach.quiz import LANGUAGES, LEVELS, STEPS, TOPICS, choose, load_questions, prove
from labkit.teach.quiz_interview import POINTS, draw_interview, rubric
from labkit.teach.quiz_notebook import as_jupyterquiz, show_quiz

QUESTIONS = load_questions()
runner = CliRunner()


def cli(*arguments: str, given: str = ""):
    return runner.invoke(build(["quiz"]), ["quiz", *arguments], input=given)


@pytest.mark.parametrize("question_id", list(QUESTIONS))
def test_the_answer_shows_and_its_control_does_not(question_id):
    prove(QUESTIONS[question_id]).check()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_answer_depends_on_luck(seed):
    drawn = [q for q in QUESTIONS.values() if "rng" in q.proof.line(q.proof.shows).split("import")[1]]
    assert drawn
    for question in drawn:
        prove(question, seed).check()


def test_answers_hold_without_traces(monkeypatch):
    monkeypatch.setenv("LABKIT_NO_TRACES", "1")
    for question in QUESTIONS.values():
        if question.topic in ("fragmentation", "contiguous and paged", "metrics", "scheduling"):
            prove(question).check()


def test_there_are_enough_on_every_topic_and_step():
    assert len(QUESTIONS) >= 40
    for topic in TOPICS:
        assert len(choose(QUESTIONS, topic=topic)) >= 3, topic
    assert {q.step for q in QUESTIONS.values()} == set(STEPS)


def test_no_text_is_said_twice():
    for lang in LANGUAGES:
        texts = [q.question[lang] for q in QUESTIONS.values()] + [q.answer[lang] for q in QUESTIONS.values()]
        assert len(set(texts)) == len(texts)
        assert all(q.answer[lang] not in {w.answer[lang] for w in q.wrong} for q in QUESTIONS.values())
    chinese = "".join(q.question["zh"] + q.answer["zh"] for q in QUESTIONS.values())
    assert sum("\u4e00" <= letter <= "\u9fff" for letter in chinese) > 0.3 * len(chinese)


def test_a_control_that_also_holds_is_caught():
    question = QUESTIONS["frag-hotel"]
    same = copy.copy(question.proof)
    object.__setattr__(same, "control", question.proof.shows)
    broken = copy.copy(question)
    object.__setattr__(broken, "proof", same)
    with pytest.raises(AssertionError, match="proves nothing"):
        prove(broken).check()
    object.__setattr__(same, "shows", question.proof.control)
    object.__setattr__(same, "control", question.proof.control)
    with pytest.raises(AssertionError, match="does not show"):
        prove(broken).check()


def entries():
    return yaml.safe_load(files("labkit.data").joinpath("quiz.yaml").read_text(encoding="utf-8"))


def broken_file(tmp_path, change):
    rows = entries()[:3]
    change(rows)
    path = tmp_path / "quiz.yaml"
    path.write_text(yaml.safe_dump(rows, allow_unicode=True), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda rows: rows[1].pop("proof"),
            r"row 2, field proof: is missing; every question has an experiment",
        ),
        (lambda rows: rows[1].update(topic="gossip"), r"field topic: is 'gossip'; topics are ledger"),
        (lambda rows: rows[1].update(step=9), "steps are 1 to 6"),
        (lambda rows: rows[1].update(wrong=rows[1]["wrong"][:1]), "at least two common wrong answers"),
        (lambda rows: rows[1]["question"].pop("zh"), "needs a text in each of en, zh"),
        (lambda rows: rows[1]["proof"].pop("control"), "needs function, shows and control"),
        (lambda rows: rows[1]["levels"].pop("deep"), "has to be shallow, good, deep"),
        (lambda rows: rows[1].update(id=rows[0]["id"]), "is there twice"),
    ],
)
def test_a_broken_question_is_named(tmp_path, change, says):
    with pytest.raises(InputError, match=says):
        load_questions(broken_file(tmp_path, change))


def test_a_proof_that_does_not_exist_is_named():
    proof = copy.copy(QUESTIONS["frag-hotel"].proof)
    for function, says in (
        ("labkit.experiments.proofs.fragmentation:nothing", "does not exist"),
        ("os:getcwd", "is not a function of labkit.experiments"),
    ):
        object.__setattr__(proof, "function", function)
        with pytest.raises(LabError, match=says):
            proof.run({}, 0)


def test_the_line_shown_to_the_reader_runs():
    import numpy as np

    for question in QUESTIONS.values():
        importing, _, call = question.proof.line(question.proof.control).partition("; ")
        names = {"np": np}
        exec(importing, names)
        if question.id in ("frag-hotel", "sched-head", "ledger-kv-bytes"):
            assert eval(call, names).holds is False


def test_an_interview_follows_the_order_and_scores():
    interview = draw_interview(seed=4, per_step=2)
    assert [q.step for q in interview.path] == sorted([*STEPS, *STEPS])
    assert [q.id for q in interview.path] == [q.id for q in draw_interview(4, 2).path]
    assert [q.id for q in interview.path] != [q.id for q in draw_interview(5, 2).path]
    assert interview.weakest_step() is None
    for question in interview.path:
        interview.score(question.id, "shallow" if question.step == 3 else "deep")
    assert interview.weakest_step() == 3
    assert interview.points == 10 * POINTS["deep"] + 2 * POINTS["shallow"]
    assert "notebook 05" in interview.report()
    assert "05" in interview.report("zh")
    assert [line.split(":")[0] for line in rubric(interview.path[0])] == list(LEVELS)
    with pytest.raises(LabError, match="not on this path"):
        interview.score("nobody", "deep")
    with pytest.raises(LabError, match="choose one of: none, shallow"):
        interview.score(interview.path[0].id, "brilliant")


def test_a_notebook_gets_multiple_choice(capsys):
    rows = as_jupyterquiz(choose(QUESTIONS, topic="bonus"), "zh")
    for row in rows:
        assert row["type"] == "multiple_choice"
        assert sum(answer["correct"] for answer in row["answers"]) == 1
        assert all(answer["feedback"] for answer in row["answers"])
    importlib.import_module("jupyterquiz")
    show_quiz(choose(QUESTIONS, topic="ledger", number=2))
    assert "1. " in capsys.readouterr().out


def test_the_terminal_asks_and_counts():
    stopped = cli("--question", "frag-kind", given="q\n")
    assert stopped.exit_code == 0
    assert "0 of 0 right" in stopped.output
    letters = [
        cli("--question", "frag-kind", "--seed", "3", given=f"{letter}\nn\n").output for letter in "abc"
    ]
    assert sum("Right." in text and "1 of 1 right" in text for text in letters) == 1
    assert all("Proof: from labkit.experiments" in text for text in letters)


def test_an_empty_answer_is_told_what_is_accepted():
    said = cli("--question", "frag-kind", given="\nx\na\nperhaps\n\n").output
    assert said.count("type one of: a, b, c, or q to stop") == 2
    assert "type y to run it" in said
    assert "of 1 right" in said
    heard = cli("--interview", "--seed", "2", given="\n\nq\n").output
    assert "type one of: none, shallow, good, deep, or q to stop" in heard


def test_a_proof_is_told_in_sentences():
    said = cli("--question", "sched-head", given="a\ny\n").output
    assert "The experiment with " in said
    assert "the answer shows, as it should." in said
    assert "the answer does not show, as it should not." in said
    assert "True" not in said.split("run it?")[1].split("\n")[1]


def test_the_order_differs_and_a_seed_repeats_it():
    def first(*arguments):
        lines = cli(*arguments, given="q\n").output.splitlines()
        return lines[0], lines[2:6]

    assert first("--seed", "7") == first("--seed", "7")
    assert first("--seed", "7") != first("--seed", "8")
    drawn = {first()[0] for _ in range(4)}
    assert len(drawn) > 1  # of 10,000 seeds
    seed = next(iter(drawn)).split()[1]
    assert first("--seed", seed)[0] == f"seed {seed} (--seed {seed} asks the same again)"
    assert cli("--interview", given="\nq\n").output.startswith("seed ")
    orders = {tuple(q.id for q in choose(QUESTIONS, seed=seed, shuffle=True)) for seed in range(5)}
    assert len(orders) == 5
    assert all(sorted(order) == sorted(QUESTIONS) for order in orders)


def test_chinese_throughout():
    said = cli("--lang", "zh", "--question", "frag-kind", given="\na\ny\n").output
    heard = cli("--lang", "zh", "--interview", "--seed", "2", given="\ngood\nn\n" * 6).output
    for words in ("your answer", "Right.", "Answer:", "Proof:", "run it", " right", "type ", "Step "):
        assert words not in said + heard
    for words in ("你的答案", "请输入 a, b, c 之一", "实验（", "对照（", "1 题答对"):
        assert words in said
    for words in ("你答到哪一级", "12 / 18 分。各步得分相同。"):
        assert words in heard


def test_the_terminal_interviews():
    heard = cli("--interview", "--seed", "2", given="\ngood\nn\n" * 6)
    assert heard.exit_code == 0
    assert "12 of 18 points. All marked steps are equal." in heard.output
    assert "Weakest" not in heard.output
    assert heard.output.index("Step 1") < heard.output.index("Step 6")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_length_does_not_give_the_answer_away(lang):
    """Chance is one third of three options, for the longest and for each other rank; and none is far shorter."""
    ranks = [sum(len(w.answer[lang]) >= len(q.answer[lang]) for w in q.wrong) for q in QUESTIONS.values()]
    assert {len(q.wrong) for q in QUESTIONS.values()} == {2}
    for rank in range(3):
        assert ranks.count(rank) <= 0.4 * len(ranks), (lang, rank, ranks.count(rank))
    for question in QUESTIONS.values():
        shortest = min(len(wrong.answer[lang]) for wrong in question.wrong)
        assert shortest >= 0.5 * len(question.answer[lang]), question.id


def test_json_and_errors():
    rows = json.loads(cli("--topic", "bonus", "--json").output)
    assert {row["topic"] for row in rows} == {"bonus"}
    proved = json.loads(cli("--question", "sched-head", "--prove", "--json").output)
    assert proved["num_failed"] == 0
    assert proved["rows"][0]["control"] is False
    for arguments, says in (
        (["--topic", "gossip"], "unknown topic"),
        (["--lang", "fr"], "unknown language"),
        (["--question", "nothing"], "ids are:"),
        (["-n", "0"], "at least 1"),
    ):
        result = cli(*arguments)
        assert isinstance(result.exception, LabError)
        assert says in str(result.exception)


def test_a_failed_proof_is_an_exit_code(monkeypatch):
    never = quiz_module.Proof(False)
    monkeypatch.setattr(quiz_module.Experiment, "run", lambda self, arguments, seed: never)
    result = cli("--question", "frag-hotel", "--prove")
    assert result.exit_code == 1
    assert "DOES NOT HOLD" in result.output
