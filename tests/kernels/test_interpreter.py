"""The kernels' arithmetic, in Triton's interpreter: a process of its own, since a backend is fixed before `import triton`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("interpreted_cases.py")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def run(num_draws: int) -> subprocess.CompletedProcess[str]:
    options = ["-x", "-p", "no:cacheprovider", "-o", "timeout=3000"]
    command = [sys.executable, "-m", "pytest", *options, str(CASES)]
    env = os.environ | {
        "LABKIT_KERNELS": "interpret",
        "LABKIT_KERNEL_DRAWS": str(num_draws),
        "OMP_NUM_THREADS": "1",
    }
    env.pop("PYTEST_XDIST_WORKER", None)
    env.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, capture_output=True, text=True, env=env)


@needs_triton
@pytest.mark.slow
def test_kernels_match_float64_in_the_interpreter():
    done = run(10)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@needs_triton
@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_kernels_match_float64_in_the_interpreter_100_draws():
    done = run(100)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
