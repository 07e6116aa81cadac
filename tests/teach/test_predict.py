"""A prediction: commit first, compare later, and say nothing false when nobody committed."""

import pytest

from labkit.errors import LabError
from labkit.teach import predict


def test_without_a_commitment_only_the_result_is_stated(capsys):
    predict("How many?", low=0, high=10, unit="GiB").compare(7.25)
    assert capsys.readouterr().out == "How many?\n  measured: 7.25 GiB (no prediction was committed)\n"


@pytest.mark.parametrize(
    ("said", "verdict"), [(10, "exactly"), (12, "2 too high"), (7, "3 too low"), (4000, "3,990 too high")]
)
def test_a_number_is_compared_with_the_measured_one(capsys, said, verdict):
    guess = predict("How many?", low=0, high=5000)
    guess.commit(said)
    guess.compare(10)
    assert capsys.readouterr().out.rstrip().endswith(f"you said {said:,}: {verdict}")


def test_an_answer_in_words_is_repeated(capsys):
    guess = predict("Which?", options=["a", "b"])
    guess.commit("b")
    guess.compare("a")
    assert "measured: a; you said b" in capsys.readouterr().out


def test_a_range_without_room_is_refused():
    with pytest.raises(LabError, match="low < high; got 5 and 5"):
        predict("How many?", low=5, high=5)


@pytest.mark.parametrize("options", [None, ["a", "b"]])
def test_the_button_commits_what_the_widget_shows(options):
    guess = predict("How <many>?", low=0, high=10, options=options)
    bundle = guess._repr_mimebundle_()
    assert bundle["text/plain"] == "Predict: How <many>?"
    assert "How &lt;many&gt;?" in bundle["text/html"]
    answer, button, said = guess._widget.children[1].children
    answer.value = "b" if options else 3
    assert guess.committed is None
    button.click()
    assert guess.committed == ("b" if options else 3)
    assert said.value.startswith("committed: ")
