"""Requests simulated a second: the Azure conversation trace under the rules of the modelled systems.

    python benchmarks/simulator.py                       all rows, best of 3
    python benchmarks/simulator.py --million             also 1,000,000 streamed requests, in a process of their own
    python benchmarks/simulator.py --peer dynamo         also the Rust mocker of ai-dynamo-runtime, if it is installed

The load: the first 10,000 rows of the trace, arrivals Poisson (seed 0), every prompt with its own tokens. vLLM rules,
synchronous, prefix caching on, 26,000 blocks of 16, `max_num_batched_tokens` 2,048, `max_num_seqs` 256. A step takes
8 ms + 0.03 ms per scheduled token + 2 ns per KV token read. Metrics at summary level (TTFT, TPOT, ITL, end to end).
CPU time of one core. How many requests a second depends on how many steps the load needs, so both stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labkit.serving.fast_loop import LinearStepTime, LoadSummary, summarize_load
from labkit.serving.systems import make_system
from labkit.workload.azure import load_azure
from labkit.workload.base import RequestSpec
from labkit.workload.traces import find_trace

Lengths = list[tuple[int, int]]
VLLM = {"num_gpu_blocks": 26_000, "block_size": 16, "max_num_batched_tokens": 2048, "max_num_seqs": 256}
#: the same memory and limits in the other systems' words
OTHERS = {
    "sglang": {"max_total_tokens": 416_000, "chunked_prefill_size": 2048, "max_running_requests": 256},
    "tensorrt_llm": {
        "num_blocks": 13_000,
        "tokens_per_block": 32,
        "max_num_tokens": 2048,
        "max_batch_size": 256,
        "enable_chunked_prefill": True,
    },
}
TARGETS = {"6.45/s": 20_000, "18/s": 35_000, "18/s, 3,000 blocks": 12_000, "6.45/s, published": 8_000}


def main() -> None:
    args = arguments()
    if args.million_child:
        print(json.dumps(million(args.million_child, args.requests, args.streamed)))
        return
    lengths, source = trace_lengths(args.requests)
    print(
        f"{len(lengths):,} requests: {source}; {platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    rows = [vllm_row(name, lengths, args.repeat, **setting) for name, setting in vllm_settings().items()]
    rss = peak_rss_mb()
    rows += [
        row for name, options in OTHERS.items() for row in other_rows(name, options, lengths, args.repeat)
    ]
    if args.peer == "dynamo":
        rows += dynamo_rows(lengths, args.repeat)
    table(rows)
    print(f"peak memory after the vLLM rows: {rss:.0f} MB (target: under 150)")
    streamed = [streamed_row(rate, args) for rate in (18.0, 6.45)] if args.million else []
    for row in streamed:
        print(
            f"{row['requests']:,} streamed at {row['rate']}/s: {row['requests_per_s']:,.0f} requests/s, {row['steps']:,} steps, "
            f"{row['ratio']:.2f} x the time per request of the small load (target {row['limit']}), {row['peak_mb']:.0f} MB (target 250)"
        )
    first = rows[0]
    print(
        json.dumps(
            {"benchmark": "simulator", "requests_per_s": round(first["requests_per_s"]), "peak_mb": round(rss, 1), "source": source,
             "rows": rows, "streamed": streamed}
        )
    )  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--streamed", type=int, default=1_000_000, help="requests of the streamed load")
    parser.add_argument("--peer", choices=["dynamo"])
    parser.add_argument("--million-child", type=float, metavar="RATE", help=argparse.SUPPRESS)
    return parser.parse_args()


def vllm_settings() -> dict[str, dict[str, Any]]:
    return {
        "6.45/s": {"rate": 6.45},
        "18/s": {"rate": 18.0},
        "18/s, 3,000 blocks": {"rate": 18.0, "num_gpu_blocks": 3000},
        "6.45/s, published": {"rate": 6.45, "publish_all": True},
        "18/s, published": {"rate": 18.0, "publish_all": True},
        "18/s, 6,000 blocks": {"rate": 18.0, "num_gpu_blocks": 6000},
        "6.45/s, 260,000 blocks": {"rate": 6.45, "num_gpu_blocks": 260_000},
        "18/s, async": {"rate": 18.0, "async_scheduling": True},
        "18/s, caching off": {"rate": 18.0, "enable_prefix_caching": False},
        "18/s, long prefill 256": {"rate": 18.0, "long_prefill_token_threshold": 256},
    }


# ---- loads


def trace_lengths(count: int) -> tuple[Lengths, str]:
    path = find_trace("azure-conv")
    if path is not None:
        rows = load_azure(path, limit=count)
        return [(r.num_prompt_tokens, r.num_output_tokens) for r in rows], f"first rows of {path.name}"
    rng = np.random.default_rng(0)
    prompts = np.minimum(rng.lognormal(6.6, 1.0, count).astype(int) + 1, 14_000)
    outputs = np.minimum(rng.lognormal(4.9, 0.9, count).astype(int) + 1, 1000)
    return list(
        zip(prompts.tolist(), outputs.tolist())
    ), "SYNTHETIC log-normal lengths, the Azure trace is not here"


def poisson(lengths: Lengths, rate: float) -> list[RequestSpec]:
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, len(lengths)))
    return [RequestSpec(f"r{i}", float(t), p, o) for i, (t, (p, o)) in enumerate(zip(arrivals, lengths))]


def resampled(lengths: Lengths, rate: float, count: int) -> Iterator[RequestSpec]:
    """`count` rows drawn with replacement, made while they are asked for."""
    rng = np.random.default_rng(0)
    now, made = 0.0, 0
    while made < count:
        size = min(10_000, count - made)
        picked = rng.integers(len(lengths), size=size)
        for gap, i in zip(rng.exponential(1 / rate, size).tolist(), picked.tolist()):
            now += gap
            yield RequestSpec(f"r{made}", now, *lengths[i])
            made += 1


# ---- rows


def best_of(repeat: int, run: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of the fastest run, and what it returned."""
    best, result = float("inf"), None
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return best, result


def vllm_row(name: str, lengths: Lengths, repeat: int, rate: float, **changes: Any) -> dict[str, Any]:
    requests = poisson(lengths, rate)
    seconds, summary = best_of(
        repeat, lambda: summarize_load(make_system("vllm", {**VLLM, **changes}), requests, LinearStepTime())
    )
    return row_of(f"vLLM {name}", seconds, summary, TARGETS.get(name))


def other_rows(name: str, options: dict[str, Any], lengths: Lengths, repeat: int) -> list[dict[str, Any]]:
    rows = []
    try:
        make_system(name, options)
    except (ImportError, AttributeError):
        return [{"name": name, "missing": "not available"}]
    for rate in (6.45, 18.0):
        requests = poisson(lengths, rate)
        seconds, summary = best_of(
            repeat, lambda requests=requests: summarize_load(make_system(name, options), requests)
        )
        rows.append(row_of(f"{name} {rate:g}/s", seconds, summary, 5000))
    return rows


def row_of(name: str, seconds: float, summary: LoadSummary, target: int | None) -> dict[str, Any]:
    return {
        "name": name,
        "requests_per_s": summary.num_requests / seconds,
        "target": target,
        "steps": summary.num_steps,
        "us_per_step": seconds / summary.num_steps * 1e6,
        "mean_batch": summary.num_request_steps / summary.num_steps,
        "preemptions": summary.num_preempted,
        "ttft_p50_s": summary.quantile("ttft", 0.5),
        "ttft_p99_s": summary.quantile("ttft", 0.99),
        "itl_p50_ms": summary.quantile("itl", 0.5) * 1e3,
        "refused": summary.num_refused,
    }


def dynamo_rows(lengths: Lengths, repeat: int) -> list[dict[str, Any]]:
    """The same requests through the mocker's offline replay, with its own step times."""
    try:
        from dynamo._core import run_mocker_trace_replay
    except ImportError as error:
        return [
            {"name": "dynamo mocker", "missing": f"not available ({error}); pip install ai-dynamo-runtime"}
        ]
    rows = []
    for rate in (6.45, 18.0):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            write_mooncake(path, poisson(lengths, rate))
            seconds, result = best_of(
                repeat,
                lambda path=path: run_mocker_trace_replay(
                    [path], {"engine": {"backend": "vllm", **VLLM}}, trace_block_size=16
                ),
            )
        summary = result.summary
        rows.append(
            {
                "name": f"dynamo mocker {rate:g}/s (own step times)",
                "requests_per_s": summary["completed_requests"] / seconds,
                "ttft_p50_s": summary["median_ttft_ms"] / 1e3,
                "ttft_p99_s": summary["p99_ttft_ms"] / 1e3,
            }
        )
    return rows


def write_mooncake(path: str, requests: list[RequestSpec]) -> None:
    next_hash = 0
    with open(path, "w") as file:
        for r in requests:
            num_blocks = -(-r.num_prompt_tokens // 16)
            row = {
                "timestamp": r.arrival_s * 1e3,
                "input_length": r.num_prompt_tokens,
                "output_length": r.num_output_tokens,
            }
            file.write(json.dumps({**row, "hash_ids": list(range(next_hash, next_hash + num_blocks))}) + "\n")
            next_hash += num_blocks


# ---- the streamed load


def streamed_row(rate: float, args: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--million-child",
        str(rate),
        "--requests",
        str(args.requests),
        "--streamed",
        str(args.streamed),
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def million(rate: float, count: int, streamed: int) -> dict[str, Any]:
    lengths, _ = trace_lengths(count)
    small = vllm_row("small", lengths, 3, rate)
    seconds, summary = best_of(
        1, lambda: summarize_load(make_system("vllm", VLLM), resampled(lengths, rate, streamed))
    )
    return {
        "rate": rate,
        "requests": summary.num_requests,
        "requests_per_s": summary.num_requests / seconds,
        "steps": summary.num_steps,
        "ratio": small["requests_per_s"] * seconds / summary.num_requests,
        "limit": 1.3 if rate > 10 else 1.5,
        "peak_mb": peak_rss_mb(),
    }


def peak_rss_mb() -> float:
    """Of this program. `ru_maxrss` would still carry what the parent process had."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'rules and load':<40}{'req/s':>9}{'target':>9}{'steps':>9}{'us/step':>9}{'batch':>7}{'preempted':>10}{'TTFT p50':>10}{'p99':>8}"
    )
    for row in rows:
        if "missing" in row:
            print(f"{row['name']:<40}{row['missing']}")
            continue
        steps = (
            f"{row['steps']:>9,}{row['us_per_step']:>9.2f}{row['mean_batch']:>7.1f}{row['preemptions']:>10,}"
            if "steps" in row
            else " " * 35
        )
        target = f"{row['target']:>9,}" if row.get("target") else " " * 9
        print(
            f"{row['name']:<40}{row['requests_per_s']:>9,.0f}{target}{steps}{row['ttft_p50_s']:>9.3f}s{row['ttft_p99_s']:>7.2f}s"
        )


if __name__ == "__main__":
    main()
