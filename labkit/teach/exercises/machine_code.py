"""A learner's kernel as machine code: compiled ahead of time by the lab's compiler in a child of the worker, and timed on a
GPU where there is one. Both need the source text only; nothing of it runs in this process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.teach.exercises.base import Mistake

MODULE = "learner_kernels"
COMPILE_S = 10.0  # CPU seconds; 1.2 are usual


@dataclass(frozen=True)
class Request:
    """Which kernel of the source to compile: the types of its parameters, the values of its constants, and for which GPU."""

    function: str
    types: dict[str, str]
    constexprs: dict[str, Any]
    arch: int


def compile_kernel(source: str, request: Request) -> dict[str, Any]:
    """Registers, spilled bytes and occupancy. Raises `Mistake` with the compiler's own sentence when it refuses."""
    from labkit.teach.triton_worker import WORKER

    outcome = WORKER.run("14", source, COMPILE_S, compile_as=request)
    if outcome.kind == "value":
        figures: dict[str, Any] = outcome.value
        return figures
    said = str(outcome.error or outcome.sentence)
    raise Mistake(
        f"under the interpreter your kernel is right, but it does not compile to machine code: {_refusal(said)}"
    )


def _refusal(said: str) -> str:
    """The compiler's last line, with the line of the kernel above its caret."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no word from the compiler"]
    at = lines.index("^") - 1 if "^" in lines else -1
    place = f" (at the line `{lines[at]}`)" if at > 0 else ""
    why = ""
    if found := re.search(r"(int|float|bool)\(\) argument must be", lines[-1]):
        why = f" {found[1]}() is Python's and takes numbers; what tl.load gives is a tensor of the kernel: use it as it is."
    return f"{lines[-1].rstrip('.')}{place}.{why}"


def compile_here(source: str, request: Request) -> dict[str, Any]:
    """In a forked child of the worker, which has torch already: Triton is imported anew, because the worker's own copy
    interprets. Its machine-code library stays, it cannot be loaded twice. A second process that imports everything would
    cost two seconds more."""
    for name in list(sys.modules):
        ours = name == "triton" or name.startswith(("triton.", "labkit.kernels"))
        if ours and not name.startswith("triton._C"):
            del sys.modules[name]
    os.environ["TRITON_INTERPRET"] = "0"  # set, so that the notebook's first cell leaves it
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LABKIT_KERNELS": "triton", "TRITON_CACHE_DIR": folder, "TRITON_DUMP_PTXAS_LOG": "1"}
        (Path(folder) / f"{MODULE}.py").write_text(source, encoding="utf-8")
        sys.path.insert(0, folder)
        from labkit.kernels.compile_worker import compile_case
        from labkit.kernels.specs import CompileCase

        case = CompileCase(
            kernel=request.function,
            shape="the exercise's",
            module=MODULE,
            function=request.function,
            types=request.types,
            constexprs=request.constexprs,
            aligned=tuple(name for name, kind in request.types.items() if kind.startswith("*")),
            num_warps=4,
        )
        try:
            row = compile_case(case, request.arch)
        except Exception as error:
            raise LabError(str(error)) from None  # plain text: the compiler's exceptions cannot be pickled
    return {"registers": row.registers, "spill_bytes": row.spill_bytes, "occupancy": row.occupancy or 0.0}


def bench_on_gpu(source: str) -> str:
    """`"On an NVIDIA ...: 0.42 ms, the lab's kernel 0.11 ms."`, or that there is no GPU."""
    if shutil.which("nvidia-smi") is None:
        return "No GPU here, so no time."
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{MODULE}.py").write_text(source, encoding="utf-8")
        env = {**os.environ, "TRITON_INTERPRET": "0", "LABKIT_KERNELS": "auto"}
        env["PYTHONPATH"] = os.pathsep.join([folder, *(path for path in sys.path if path)])
        command = [sys.executable, "-m", "labkit.teach.exercises.machine_code"]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return "On the GPU it did not come to an end within 120 s."
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        return f"Not timed on the GPU: {' '.join(last)}"
    found = json.loads(done.stdout.splitlines()[-1])
    return (
        f"On {found['device']}, 16 requests of 2,048 tokens: {found['learner_ms']:.3f} ms, the lab's kernel "
        f"{found['lab_ms']:.3f} ms."
    )


def main() -> None:
    """In the process that has the GPU: time both on one batch."""
    import importlib

    import torch
    import triton.testing

    from labkit.kernels import paged_decode_attention
    from labkit.teach.exercises.ex14_paged_decode import make_case

    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no CUDA device")
    learner = importlib.import_module(MODULE)
    case = make_case(0, [2048] * 16, 32, 8, 128, 16, 1.0, device="cuda", garbage=0.0)
    ours = learner.my_paged_decode(**case)
    error = float((ours - paged_decode_attention(**case)).abs().max())
    if error > 1e-3:
        raise SystemExit(f"on the GPU the result differs by {error:.2g}")
    times = {
        name: float(triton.testing.do_bench(function, return_mode="median"))
        for name, function in (
            ("learner_ms", lambda: learner.my_paged_decode(**case)),
            ("lab_ms", lambda: paged_decode_attention(**case, validate=False)),
        )
    }
    print(json.dumps({"device": torch.cuda.get_device_name(), **times}))


if __name__ == "__main__":
    main()
