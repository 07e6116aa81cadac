"""The process that compiles: cases as JSON on stdin, rows as JSON on the last line of stdout. Started by `compile.py`."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.kernels.backend import triton
from labkit.kernels.compile import CompileRow
from labkit.kernels.occupancy import occupancy
from labkit.kernels.sass import load_widths, parse_ptxas
from labkit.kernels.specs import CompileCase

#: what Triton says of a type that the architecture lacks
_UNSUPPORTED = re.compile(
    r"type (\w+) not supported in this architecture|(bf16|fp8)\w* .*not supported", re.IGNORECASE
)


def compile_case(case: CompileCase, arch: int) -> CompileRow:
    """`triton.compile` for a `GPUTarget`, ptxas's report on the way, then the disassembler on the machine code."""
    try:
        kernel, report = build(case, arch)
    except Exception as error:
        chain = f"{error} {error.__cause__ or ''}"
        if unsupported := _UNSUPPORTED.search(chain):
            return CompileRow(case.kernel, case.shape, arch, f"not supported: {unsupported[0]}")
        raise
    ptx, metadata = kernel.asm["ptx"], kernel.metadata
    figures = parse_ptxas(report)
    loads = load_widths(disassemble(kernel.asm["cubin"]))
    share, limit = occupancy(arch, figures.registers, metadata.shared, metadata.num_warps)
    return CompileRow(
        case.kernel,
        case.shape,
        arch,
        "ok",
        registers=figures.registers,
        spill_bytes=figures.spill_bytes,
        shared_bytes=metadata.shared,
        num_warps=metadata.num_warps,
        occupancy=share,
        occupancy_limit=limit,
        kv_load_bits=min((bits for _, bits in loads["kv"]), default=None),
        kv_loads={f"{name}.{bits}": count for (name, bits), count in sorted(loads["kv"].items())},
        table_loads={f"{name}.{bits}": count for (name, bits), count in sorted(loads["table"].items())},
        mma=matrix_instructions(ptx),
        tf32=".tf32" in ptx,
        hints=list(case.aligned),
    )


def build(case: CompileCase, arch: int) -> tuple[Any, str]:
    """`(compiled kernel, text of ptxas -v)`. Triton runs `ptxas -v` itself and prints its text when asked to."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(case.module), case.function)
    names = function.arg_names
    signature = {n: "constexpr" if n in case.constexprs else case.types.get(n, "i32") for n in names}
    unknown = (set(case.types) | set(case.constexprs) | set(case.aligned)) - set(names)
    if unknown:
        raise ValueError(f"{case.kernel}: the case names parameters that the kernel lacks: {sorted(unknown)}")
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned}
    source = ASTSource(function, signature, constexprs=case.constexprs, attrs=attrs)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, **case.options}
    assert triton is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return kernel, printed.getvalue()


def disassemble(cubin: bytes) -> str:
    """SASS with source lines."""
    assert triton is not None
    assert triton.__file__ is not None
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(cubin)
        binary.flush()
        command = [str(tool), "--print-line-info", binary.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def matrix_instructions(ptx: str) -> list[str]:
    """`["mma.bf16"]`, `["wgmma.f16"]`, ... of the products in the PTX; tcgen05 names only the kind (f16 covers bf16)."""
    found = set()
    for name, types in re.findall(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)([.\w:]+)", ptx):
        operand = re.search(r"\.(bf16|f16|tf32|s8|e4m3)\.(?:bf16|f16|tf32|s8|e4m3)", types)
        kind = re.search(r"kind::(\w+)", types)
        found.add(f"{name.split('.')[0]}.{operand[1] if operand else kind[1] if kind else '?'}")
    return sorted(found)


def main() -> None:
    jobs = json.load(sys.stdin)
    rows = []
    for job in jobs:
        case = CompileCase(**job["case"] | {"aligned": tuple(job["case"]["aligned"])})
        rows.append(asdict(compile_case(case, job["arch"])))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
