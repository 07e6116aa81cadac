"""Kernels on a CUDA device against their floor and the alternatives: table, then one JSON line.

    python benchmarks/kernels.py [--quick]

The same as `labkit kernels bench`. Exits with 2 and one sentence where there is no CUDA device.
"""

from __future__ import annotations

import json
import sys

from labkit.errors import LabError
from labkit.kernels.bench import run_bench
from labkit.kernels.report import bench_report


def main() -> int:
    try:
        result = run_bench(quick="--quick" in sys.argv[1:])
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    print(bench_report(result))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
