"""The three ways: each in a process of its own, as the choice is made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_auto_without_cuda_is_the_reference_and_says_so():
    seen = start()
    assert (seen["mode"], seen["requested"], seen["ran"]) == ("reference", "auto", True)
    assert "no CUDA device" in seen["reason"] or "triton cannot be imported" in seen["reason"]


def test_triton_unimportable_leaves_the_reference_and_says_so():
    seen = start(block=True)
    assert (seen["mode"], seen["ran"], seen["triton"]) == ("reference", True, None)
    assert "triton cannot be imported" in seen["reason"]


@pytest.mark.parametrize("choice", ["triton", "interpret"])
def test_what_needs_triton_is_refused_without_it(choice):
    assert "needs triton, which cannot be imported here" in start(choice, block=True)["refused"]


def test_interpreter():
    pytest.importorskip("triton")
    assert start("interpret")["mode"] == "interpret"
    seen = start(TRITON_INTERPRET="1")
    assert (seen["mode"], seen["ran"]) == ("interpret", True)


def test_compiled_kernels_do_not_fall_back_on_cpu_tensors():
    pytest.importorskip("triton")
    seen = start("triton")
    assert seen["mode"] == "triton"
    assert seen["ran"].startswith("kernels: LABKIT_KERNELS=triton runs compiled kernels on CUDA tensors only")


def test_an_unknown_choice_lists_the_valid_ones():
    assert start("cuda")["refused"].endswith("choose one of: auto, triton, interpret, reference")


def test_contradiction_is_refused():
    pytest.importorskip("triton")
    assert "contradicts TRITON_INTERPRET=1" in start("triton", TRITON_INTERPRET="1")["refused"]
