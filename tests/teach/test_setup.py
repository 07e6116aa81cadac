"""The first cell of every notebook: parameters checked, one generator a part."""

import pytest

from labkit.errors import LabError
from labkit.teach import setup


def test_it_says_what_runs_here(capsys):
    lab = setup("ci", "cpu", 3)
    assert (lab.scale, lab.device, lab.seed) == ("ci", "cpu", 3)
    assert capsys.readouterr().out.startswith("scale ci, seed 3. No GPU here:")


@pytest.mark.parametrize(
    ("scale", "device", "seed", "message"),
    [
        ("big", "auto", 0, "scale is 'big'; choose one of: ci, lab, gpu"),
        ("ci", "tpu", 0, "device is 'tpu'; choose one of: auto, cpu, cuda"),
        ("ci", "cpu", -1, "seed is -1"),
        ("ci", "cpu", True, "seed is True"),
        ("ci", "cpu", "0", "seed is '0'"),
    ],
)
def test_a_bad_parameter_gets_one_sentence(scale, device, seed, message):
    with pytest.raises(LabError) as error:
        setup(scale, device, seed)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_cuda_without_a_driver_is_refused(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(LabError, match="PyTorch finds no CUDA device here"):
        setup("ci", "cuda", 0)
    assert setup("ci", "auto", 0).device == "cpu"


def test_a_size_by_scale():
    assert [setup(scale, "cpu", 0).pick(ci=1, lab=2) for scale in ("ci", "lab", "gpu")] == [1, 2, 2]
    assert setup("gpu", "cpu", 0).pick(ci=1, lab=2, gpu=3) == 3


def test_parts_draw_apart_and_runs_draw_alike():
    first, again, other = setup("ci", "cpu", 0), setup("ci", "cpu", 0), setup("ci", "cpu", 1)
    assert first.rng(1).random() == again.rng(1).random()
    assert first.rng(1).random() != first.rng(2).random()
    assert first.rng(1).random() != other.rng(1).random()
