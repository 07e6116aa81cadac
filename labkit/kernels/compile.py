"""Ahead-of-time compilation: what Triton makes of every kernel, for GPUs that need not be there.

`compile_table(cases)` compiles in a subprocess (the backend of this process is already fixed, perhaps to the interpreter)
and returns one row a case and architecture. Rows are kept under `cache_dir` by the hash of everything they depend on:
kernel sources, case, architecture and the versions of triton and ptxas.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from labkit.atomic_file import write_atomic
from labkit.errors import LabError
from labkit.kernels.backend import TRITON_IMPORTABLE
from labkit.kernels.specs import ARCHS, CompileCase, default_cases

DEFAULT_CACHE = Path("build/kernels")
PER_PROCESS = 60  # rows compiled by one process, and written when it ends


@dataclass(frozen=True, slots=True)
class CompileRow:
    """One kernel, shape and architecture. Figures are None where `status` is not "ok".

    kv_load_bits      narrowest load on the KV path (128 = every one moves 16 bytes a thread)
    kv_loads          instructions by name and width, e.g. {"LDGSTS.128": 16}
    table_loads       the same for block-table lookups
    occupancy         share of a multiprocessor's warp slots filled; `occupancy_limit` is what stops more
    mma               matrix instructions in the PTX, by operand type; empty: products on the plain ALUs
    """

    kernel: str
    shape: str
    arch: int
    status: str
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    num_warps: int | None = None
    occupancy: float | None = None
    occupancy_limit: str | None = None
    kv_load_bits: int | None = None
    kv_loads: dict[str, int] | None = None
    table_loads: dict[str, int] | None = None
    mma: list[str] | None = None
    tf32: bool | None = None
    hints: list[str] | None = None


def compile_table(
    cases: Sequence[CompileCase] | None = None,
    archs: Sequence[int] = ARCHS,
    *,
    cache_dir: Path | None = DEFAULT_CACHE,
    num_workers: int = 1,
) -> list[CompileRow]:
    """Rows for every case and architecture, in that order. Raises `LabError` where triton cannot be imported.

    A case that an architecture does not support (fp8 before sm_89) gets a row that says so; a kernel that fails to compile
    for any other reason raises.
    """
    if not TRITON_IMPORTABLE:
        raise LabError("kernels compile: triton cannot be imported here, and it is the compiler")
    jobs = [(case, arch) for case in (default_cases() if cases is None else cases) for arch in archs]
    found = {index: row for index, job in enumerate(jobs) if (row := _read(cache_dir, *job)) is not None}
    missing = [index for index in range(len(jobs)) if index not in found]
    shares = [missing[start : start + PER_PROCESS] for start in range(0, len(missing), PER_PROCESS)]
    with ThreadPoolExecutor(num_workers) as pool:
        for share, rows in zip(shares, pool.map(lambda share: _compile([jobs[i] for i in share]), shares)):
            for index, row in zip(share, rows, strict=True):
                found[index] = row
                _write(cache_dir, *jobs[index], row)
    return [found[index] for index in range(len(jobs))]


def failures(rows: Sequence[CompileRow]) -> list[str]:
    """What the checks of the compile table hold against `rows`, one sentence each; empty when all is well."""
    found = []
    for row in rows:
        name = f"{row.kernel} ({row.shape}, sm_{row.arch})"
        if row.status != "ok":
            if not row.status.startswith("not supported"):
                found.append(f"{name}: {row.status}")
            continue
        if row.spill_bytes:
            found.append(f"{name}: spills {row.spill_bytes} bytes of registers")
        if not row.occupancy:
            found.append(
                f"{name}: needs {row.shared_bytes} bytes of shared memory, more than a block may have"
            )
        if row.kv_load_bits != 128 and row.kv_loads != {}:
            found.append(f"{name}: loads {row.kv_load_bits} bits at a time on the KV path, not 128")
        if row.tf32:
            found.append(f"{name}: contains tf32 instructions")
    return found


def _compile(jobs: Sequence[tuple[CompileCase, int]]) -> list[CompileRow]:
    """One worker process for all of `jobs`."""
    request = json.dumps([{"case": asdict(case), "arch": arch} for case, arch in jobs])
    with tempfile.TemporaryDirectory() as scratch:
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        env |= {"LABKIT_KERNELS": "triton", "TRITON_CACHE_DIR": scratch, "TRITON_DUMP_PTXAS_LOG": "1"}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [sys.executable, "-m", "labkit.kernels.compile_worker"],
            input=request,
            capture_output=True,
            text=True,
            env=env,
        )
    if done.returncode:
        raise LabError(f"kernels compile: the compiler process failed: {done.stderr.strip()[-2000:]}")
    return [CompileRow(**row) for row in json.loads(done.stdout.splitlines()[-1])]


@cache
def _sources(module: str) -> str:
    """Hash of the kernel's file, of what it calls, of what measures it, and of the compiler's version."""
    digest = hashlib.sha256(version("triton").encode())
    for name in (module.rpartition(".")[2], "decode_tiles", "compile_worker", "sass", "occupancy"):
        path = Path(__file__).parent / f"{name}.py"
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def _path(cache_dir: Path, case: CompileCase, arch: int) -> Path:
    key = json.dumps([_sources(case.module), asdict(case), arch], sort_keys=True)
    return cache_dir / f"{case.kernel}-sm{arch}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def _read(cache_dir: Path | None, case: CompileCase, arch: int) -> CompileRow | None:
    if cache_dir is None or not (path := _path(cache_dir, case, arch)).is_file():
        return None
    row: dict[str, Any] = json.loads(path.read_text())
    return CompileRow(**row)


def _write(cache_dir: Path | None, case: CompileCase, arch: int, row: CompileRow) -> None:
    if cache_dir is not None:
        write_atomic(_path(cache_dir, case, arch), json.dumps(asdict(row)), parents=True)
