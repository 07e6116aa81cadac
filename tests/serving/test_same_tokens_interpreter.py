"""The same tokens through the Triton kernels themselves, run by Triton's interpreter: 3 requests of 8 tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed here")
def test_same_tokens_triton_interpreter():
    script = Path(__file__).with_name("interpreter_run.py")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("TRITON", "LABKIT_KERNELS"))
    }
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert rows.pop("mode") == "interpret"
    assert rows.pop("margin") > 1e-4
    wanted = rows.pop("wanted")
    assert len(rows) == 5
    for label, outputs in rows.items():
        assert outputs == wanted, f"{label} gives other tokens through the interpreter"
