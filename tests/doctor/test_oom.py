"""Real out-of-memory messages, rendered from their numbers, read back and judged."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.cli.doctor import app
from labkit.doctor.oom import explain_oom
from labkit.doctor.oom_message import parse_oom, render_oom
from labkit.errors import LabError
from labkit.units import GIB, MIB

EXAMPLES = json.loads((Path(__file__).parent / "oom_examples.json").read_text())["messages"]
BY_ID = {example["id"]: example for example in EXAMPLES}

#: what a person concludes from each message
EXPECTED = {
    "O1": "fits_if_defragmented",
    "O3": "truly_full",
    "O5": "truly_full",
    "O6": "fits_if_defragmented",
    "O8": "truly_full",
    "O10": "exceeds_card",
    "O11": "exceeds_card",
    "O13": "truly_full",
    "O15": "other_process",
    "O16": "other_process",
    "O18": "truly_full",
}


def text_of(example):
    return render_oom(example["printed"], example["generation"])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_message_is_judged_as_a_person_would(name):
    verdict = explain_oom(text_of(BY_ID[name]))
    assert verdict.kind == EXPECTED[name], verdict
    assert verdict.advice


def test_every_example_has_an_expectation():
    assert BY_ID.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_number_is_read_back_as_it_was_printed(name):
    example = BY_ID[name]
    message = parse_oom(f"Traceback:\n  torch.OutOfMemoryError: {text_of(example)}\nmore log")
    printed = example["printed"]
    assert message.generation == example["generation"]
    assert message.gpu_index == printed["gpu_index"]
    assert (message.tried.text, message.total.text, message.free.text) == (
        printed["tried"],
        printed["total_capacity"],
        printed["free"],
    )
    assert message.allocated.text == printed["allocated"]
    for field, key in (("private_pools", "private_pools"), ("this_process", "this_process")):
        value = getattr(message, field)
        assert (value.text if value else None) == printed.get(key)
    assert [line.text for _, line in message.processes] == printed.get("process_lines", [])
    if "reserved_unallocated" in printed:
        assert message.reserved_unallocated.text == printed["reserved_unallocated"]


PLAIN = {
    "tried": "2.00 GiB", "gpu_index": 0, "total_capacity": "80.00 GiB", "free": "1.00 GiB", "this_process": "79.00 GiB",
    "allocated": "76.00 GiB", "reserved_unallocated": "2.50 GiB",
}  # fmt: skip


def kind(generation="2.2", **changes):
    return explain_oom(render_oom({**PLAIN, **changes}, generation)).kind


def test_three_dumps_with_the_same_unallocated_bytes_have_three_verdicts():
    assert kind() == "fits_if_defragmented"
    assert kind(private_pools="2.40 GiB") == "private_pools"
    assert kind(tried="4.00 GiB") == "truly_full"


def test_a_small_private_pool_does_not_hide_fragmentation():
    assert kind(private_pools="200.00 MiB") == "fits_if_defragmented"


def test_a_limit_of_the_process_is_told_from_a_full_card():
    changes = {
        "free": "39.00 GiB",
        "this_process": "40.50 GiB",
        "allocated": "38.00 GiB",
        "reserved_unallocated": "2.00 GiB",
    }
    assert kind(**changes, allowed="41.00 GiB", tried="3.00 GiB") == "memory_fraction"


def test_others_count_only_when_they_hold_what_is_missing():
    less = {
        "this_process": "50.00 GiB",
        "allocated": "48.00 GiB",
        "reserved_unallocated": "1.00 GiB",
        "free": "0.50 GiB",
    }
    assert kind(**less, process_lines=["29.50 GiB"]) == "other_process"
    more = {
        "this_process": "78.50 GiB",
        "allocated": "77.00 GiB",
        "reserved_unallocated": "1.00 GiB",
        "free": "0.50 GiB",
    }
    assert kind(**more, process_lines=["1.00 GiB"], tried="4.00 GiB") == "truly_full"
    assert kind(**more, process_lines=["1.00 GiB"], tried="1.20 GiB") == "fits_if_defragmented"


def test_memory_that_no_line_explains_belongs_to_a_process_we_cannot_see():
    hidden = {
        "this_process": "40.00 GiB",
        "allocated": "38.00 GiB",
        "reserved_unallocated": "1.00 GiB",
        "free": "0.50 GiB",
    }
    verdict = explain_oom(render_oom({**PLAIN, **hidden}, "2.2"))
    assert verdict.kind == "other_process"
    assert verdict.numbers["others"] == pytest.approx(39.5 * GIB)


def test_a_message_whose_numbers_decide_by_their_last_digit_says_so():
    text = render_oom({**PLAIN, "tried": "3.50 GiB"}, "2.2")
    assert explain_oom(text).borderline
    assert not explain_oom(render_oom(PLAIN, "2.2")).borderline


def test_rounding_is_half_of_the_last_digit():
    message = parse_oom(text_of(BY_ID["O5"]))
    assert message.reserved_unallocated.num_bytes == 1018 * 1024
    assert message.reserved_unallocated.slack == pytest.approx(5.12)
    assert parse_oom(text_of(BY_ID["O13"])).free.num_bytes == 0
    assert message.tried.num_bytes == 518 * MIB


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no PyTorch out-of-memory message"),
        ("RuntimeError: CUDA error: an illegal memory access", "no PyTorch out-of-memory message"),
        ("CUDA out of memory. Tried to allocate 1.33 GiB.", "does not say which GPU"),
        (
            "CUDA out of memory. Tried to allocate lots. GPU 0 has a total capacity of 1 GiB",
            "no readable size for tried",
        ),
        (render_oom(PLAIN, "2.2").replace("of which 1.00 GiB is free", ""), "no readable size for free"),
    ],
)
def test_text_that_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(LabError, match=sentence) as caught:
        explain_oom(text)
    assert "\n" not in str(caught.value)


def test_the_command_prints_a_verdict_and_json():
    text = text_of(BY_ID["O6"])
    shown = CliRunner().invoke(app, ["oom", text])
    assert shown.exit_code == 0
    assert shown.output.startswith("fits if defragmented: 1.08 GiB free on the card and 1.83 GiB")
    parsed = json.loads(CliRunner().invoke(app, ["oom", "-", "--json"], input=text).output)
    assert parsed["kind"] == "fits_if_defragmented"
    assert parsed["numbers"]["tried"] == pytest.approx(1.96 * GIB)
