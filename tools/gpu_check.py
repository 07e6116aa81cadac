"""`make gpu-check`: what only a GPU can show, in under 4 minutes.

    python tools/gpu_check.py

Needs a CUDA device, torch 2.11 and triton 3.6 or newer with NumPy, and nothing else (no typer, no pytest). Four parts, each
with its own verdict, and the exit code is 1 when one fails:

    kernels      every compiled kernel against float64
    tokens       the same tokens through every KV cache, as a plain forward pass gives
    allocator    PyTorch's live allocator against the model, on recorded operations
    bench        the main rows of `labkit kernels bench`

Prints tables for people and one JSON line last.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "serving")]

MAX_SECONDS = 240


def main() -> int:
    import torch

    from labkit.errors import LabError
    from labkit.kernels import backend

    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device here; nothing was measured", file=sys.stderr)
        return 2
    if backend.MODE != "triton":
        print(f"gpu-check: the backend is {backend.MODE} ({backend.describe()['reason']})", file=sys.stderr)
        return 2
    started = time.monotonic()
    facts = backend.describe()
    print(f"{facts['device']}, torch {facts['torch']}, triton {facts['triton']}, CUDA {facts['cuda']}")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "kernels": check_kernels,
        "tokens": check_tokens,
        "allocator": check_allocator,
        "bench": run_bench,
    }
    results: dict[str, Any] = {}
    for name, part in parts.items():
        began = time.monotonic()
        try:
            results[name] = part()
        except LabError as error:
            results[name] = {"held": False, "error": str(error)}
        except Exception as error:  # one part's crash must not hide the others
            traceback.print_exc()
            results[name] = {"held": False, "error": f"{type(error).__name__}: {error}"}
        results[name]["seconds"] = round(time.monotonic() - began, 1)
        verdict = "held" if results[name]["held"] else f"NOT HELD {results[name].get('error', '')}"
        print(f"{name}: {verdict} ({results[name]['seconds']} s)", flush=True)
    total = time.monotonic() - started
    held = all(result["held"] for result in results.values())
    print(f"all parts: {total:.0f} s of the {MAX_SECONDS} s they may take")
    print(
        json.dumps(
            {"environment": facts, "held": held, "seconds": round(total, 1), "parts": results}, default=str
        )
    )
    return 0 if held else 1


def check_kernels() -> dict[str, Any]:
    from labkit.kernels.selfcheck import check_all

    results = check_all("cuda")
    for r in results:
        if not r["held"]:
            print(
                f"  WRONG {r['kernel']} {r['shape']}: error {r['error']:.2e}, accepted {r['tolerance']:.0e}"
            )
    worst = max(results, key=lambda r: r["error"] / (r["tolerance"] or 1.0))
    print(f"  {len(results)} cases, worst {worst['kernel']} {worst['shape']}: {worst['error']:.2e}")
    return {"held": all(r["held"] for r in results), "num_cases": len(results), "worst": worst}


def check_tokens(device: str = "cuda") -> dict[str, Any]:
    """Three prompts that begin alike, preempted on the way, through each cache; float32."""
    import numpy as np
    from tensor_driver import Driver

    from labkit.kv import make_kv_cache
    from labkit.serving.llama import Llama, plain_generate, random_weights
    from labkit.serving.llama_config import LlamaConfig
    from labkit.serving.tensor_executor import TensorExecutor
    from labkit.serving.tensor_memory import TensorMemory
    from labkit.units import MIB

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=256,
        max_model_len=256,
    )
    caches: dict[str, tuple[str, dict[str, Any]]] = {
        "reserve-max": ("reserve-max", {"max_model_len": 128}),
        "grow-compact": ("grow-compact", {"grow_tokens": 8}),
        **{f"paged, blocks of {b}": ("paged", {"block_size": b}) for b in (8, 16, 32, 128)},
        "paged, hash prefixes": ("paged", {"block_size": 16, "prefix": "hash"}),
        "paged, radix prefixes": ("paged", {"block_size": 8, "prefix": "radix"}),
    }
    weights = random_weights(config, np.random.default_rng(0))
    plain = Llama(config, weights)
    rng = np.random.default_rng(1)
    start = rng.integers(0, 256, 40).tolist()
    prompts = [start[: int(n)] + rng.integers(0, 256, 5).tolist() for n in (5, 16, 33, 40)]
    wanted = [plain_generate(plain, prompt, 16) for prompt in prompts]
    margin = min(float(w[1]) for w in wanted)
    differing = []
    for label, (name, options) in caches.items():
        bytes_per_token = TensorExecutor.kv_spec(config).bytes_per_token
        kv = make_kv_cache(name, capacity_tokens=1024, bytes_per_token=bytes_per_token, **options)
        executor = TensorExecutor(config, kv, TensorMemory(64 * MIB, device=device), weights=weights)
        requests = [(f"r{i}", prompt, 16) for i, prompt in enumerate(prompts)]
        Driver(executor, kv, requests, seed=3, fork_rate=0.0, preempt_rate=0.1).run()
        if [executor.outputs(f"r{i}") for i in range(len(prompts))] != [w[0] for w in wanted]:
            differing.append(label)
    print(
        f"  {len(caches)} caches, {len(prompts)} requests of 16 tokens, smallest margin {margin:.1e}; differing: {differing}"
    )
    return {"held": not differing, "caches": list(caches), "differing": differing, "margin": margin}


def check_allocator() -> dict[str, Any]:
    """A handful of recordings, each in a child process on the real allocator."""
    from labkit.experiments.verify import verify_live

    folder = ROOT / "tests" / "golden" / "torch_allocator"
    differences = {}
    for name in ("01_small", "04_mixed_lifetimes", "07_max_split", "11_expandable"):
        comparison = verify_live(folder / f"{name}.json.gz").comparison
        differences[name] = comparison.num_differences
        print(f"  {name}: {comparison.num_ops} operations, {comparison.num_differences} differences")
    return {"held": not any(differences.values()), "differences": differences}


def run_bench() -> dict[str, Any]:
    from labkit.kernels.bench import compare_block_sizes
    from labkit.kernels.bench import run_bench as bench
    from labkit.kernels.report import bench_report

    result = bench(quick=True)
    print(bench_report(result))
    ratios = compare_block_sizes(result["rows"])
    for shape, row in ratios.items():
        print(
            f"  {shape}: paged / contiguous "
            + ", ".join(f"{blocks} {ratio:.2f}" for blocks, ratio in row.items())
        )
    return {"held": True, "paged_over_contiguous": ratios, **result}


if __name__ == "__main__":
    raise SystemExit(main())
