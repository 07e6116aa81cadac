"""The three ways: each in a process of its own, as the choice is made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from labkit.errors import LabError
from labkit.kernels import backend

PROGRAM = """
import sys, json
BLOCK
from labkit.errors import LabError
try:
    import labkit.kernels as k
    from labkit.kernels import backend
    import torch
    q = torch.ones(1, 2, 32); c = torch.ones(2, 8, 2, 32)
    try:
        out = k.paged_decode_attention(q, c, c, torch.tensor([[1]]), torch.tensor([3]), scale=1.0)
        ran = bool((out == 1).all())
    except LabError as error:
        ran = str(error)
    print(json.dumps(backend.describe() | {"ran": ran, "triton_imported": sys.modules.get("triton") is not None}))
except LabError as error:
    print(json.dumps({"refused": str(error)}))
"""


def start(choice=None, *, block=False, **env):
    program = PROGRAM.replace("BLOCK", "sys.modules['triton'] = None" if block else "")
    clean = {k: v for k, v in os.environ.items() if k not in ("LABKIT_KERNELS", "TRITON_INTERPRET")}
    given = clean | env | ({"LABKIT_KERNELS": choice} if choice else {})
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_reference_imports_no_triton():
    seen = start("reference")
    assert (seen["mode"], seen["ran"], seen["triton_imported"]) == ("reference", True, False)


def test_triton_unimportable_leaves_the_reference_and_says_so():
    seen = start(block=True)
    assert (seen["mode"], seen["ran"], seen["triton"]) == ("reference", True, None)
    assert "triton cannot be imported" in seen["reason"]


def test_interpreter():
    pytest.importorskip("triton")
    seen = start(TRITON_INTERPRET="1")
    assert (seen["mode"], seen["requested"], seen["ran"]) == ("interpret", "auto", True)


def test_compiled_kernels_do_not_fall_back_on_cpu_tensors():
    pytest.importorskip("triton")
    seen = start("triton")
    assert seen["mode"] == "triton"
    assert seen["ran"].startswith("kernels: LABKIT_KERNELS=triton runs compiled kernels on CUDA tensors only")


@pytest.fixture
def choose(monkeypatch):
    """The rule itself, for an environment that is not this process's."""

    def run(choice, *, importable=True, interpret="0", cuda=False):
        monkeypatch.setenv("LABKIT_KERNELS", choice)
        monkeypatch.setenv("TRITON_INTERPRET", interpret)
        monkeypatch.setattr(backend, "TRITON_IMPORTABLE", importable)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        return backend._choose()[1:]

    return run


@pytest.mark.parametrize(
    ("given", "mode", "reason"),
    [
        ({}, "reference", "no CUDA device"),
        ({"cuda": True}, "triton", "a CUDA device and triton are there"),
        ({"cuda": True, "importable": False}, "reference", "triton cannot be imported"),
        ({"cuda": True, "interpret": "1"}, "interpret", "TRITON_INTERPRET=1 is set"),
    ],
)
def test_auto_says_what_it_chose_and_why(choose, given, mode, reason):
    chosen = choose("auto", **given)
    assert chosen[0] == mode
    assert reason in chosen[1]


@pytest.mark.parametrize(
    ("choice", "given", "message"),
    [
        ("triton", {"importable": False}, "needs triton, which cannot be imported here"),
        ("interpret", {"importable": False}, "needs triton, which cannot be imported here"),
        ("triton", {"interpret": "1"}, "contradicts TRITON_INTERPRET=1"),
        ("cuda", {}, "choose one of: auto, triton, interpret, reference"),
    ],
)
def test_what_cannot_be_is_refused(choose, choice, given, message):
    with pytest.raises(LabError, match=message):
        choose(choice, **given)
