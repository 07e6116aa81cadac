"""Operations per second (alloc or free, CPU time) of every allocator on the same recorded traces.

    python benchmarks/allocators.py            # 2 s a figure, best of 3
    python benchmarks/allocators.py --quick    # 0.2 s a figure

The traces are the recordings of PyTorch's allocator in tests/golden/torch_allocator, looped from a fresh allocator
until the time is up; statistics are not read. `caching` runs each with the recorded settings, the others run three
of them with the recorded capacity (their refusals are counted: they have other rules). JSON in the last line.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import time
from pathlib import Path
from typing import Any

from labkit.memory import ALLOCATORS, Allocator, OutOfMemory, make_allocator

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "torch_allocator"
SHARED = ("04_mixed_lifetimes", "06_frag_oom", "12_expandable_kv")  # what the other variants run too
OPTIONS: dict[str, dict[str, Any]] = {
    fit: {"alignment_bytes": 512} for fit in ALLOCATORS if fit.endswith("-fit")
}


def run_once(allocator: Allocator, ops: list[list[Any]]) -> int:
    """All operations once; returns the number of refused allocations."""
    live, num_ooms = {}, 0
    malloc, free = allocator.malloc, allocator.free
    for op in ops:
        if op[0] == "alloc":
            try:
                live[op[1]] = malloc(op[2])
            except OutOfMemory:
                num_ooms += 1
        elif op[0] == "free":
            if op[1] in live:
                free(live.pop(op[1]))
        elif hasattr(allocator, "empty_cache"):
            allocator.empty_cache()
    return num_ooms


def ops_per_s(make, ops: list[list[Any]], seconds: float, repeat: int) -> tuple[float, int]:
    """Best of `repeat` loops of at least `seconds` CPU time, and the refusals of one pass."""
    best, num_ooms = 0.0, 0
    for _ in range(repeat):
        num_passes, start = 0, time.process_time()
        while (spent := time.process_time() - start) < seconds or not num_passes:
            num_ooms = run_once(make(), ops)
            num_passes += 1
        best = max(best, num_passes * len(ops) / spent)
    return best, num_ooms


def load(name: str) -> dict[str, Any]:
    with gzip.open(GOLDEN / f"{name}.json.gz") as file:
        recording = json.load(file)
    # a size of 0 is a null pointer to PyTorch and an error to the contract: not an operation here
    recording["ops"] = [op for op in recording["ops"] if op[0] != "alloc" or op[2]]
    return recording


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="0.2 s a figure, once")
    parser.add_argument(
        "--variant", action="append", help="only this allocator (may be given more than once)"
    )
    args = parser.parse_args()
    seconds, repeat = (0.2, 1) if args.quick else (2.0, 3)
    names = sorted(path.name.split(".")[0] for path in GOLDEN.glob("*.json.gz"))
    rows = []
    print(f"{'trace':<24}{'allocator':<16}{'ops/s':>12}{'refused':>10}")
    for name in names:
        recording = load(name)
        config = recording["config"]
        for variant in args.variant or ALLOCATORS:
            if variant != "caching" and name not in SHARED:
                continue
            options = OPTIONS.get(variant, {})
            if variant == "caching":
                options = {key: config[key] for key in ("alloc_conf", "memory_fraction", "address_policy")}

            def make(variant=variant, options=options, config=config) -> Allocator:
                return make_allocator(variant, config["total_memory"], **options)

            speed, num_ooms = ops_per_s(make, recording["ops"], seconds, repeat)
            rows.append({"trace": name, "allocator": variant, "ops_per_s": round(speed), "refused": num_ooms})
            print(f"{name:<24}{variant:<16}{speed:>12,.0f}{num_ooms:>10}", flush=True)
    where = {"cpu": cpu_name(), "python": platform.python_version()}
    print(
        json.dumps({"benchmark": "allocators", "seconds": seconds, "best_of": repeat, **where, "rows": rows})
    )


if __name__ == "__main__":
    main()
