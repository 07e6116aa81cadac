"""`labkit replay`: a trace under several KV caches or schedulers, in one comparable table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.errors import LabError

if TYPE_CHECKING:
    from labkit.experiments.replay import ReplayRow
    from labkit.models import ModelSpec
    from labkit.observe.live import PacedRecorder


def run(
    trace: Annotated[
        str,
        typer.Argument(
            help="A trace file (Azure, Mooncake, or the lab's own CSV or JSON lines), or the name of a known one."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model name, or the path of a config.json.")] = "Llama-3.1-8B",
    gpu: Annotated[str, typer.Option(help="GPU name, or a JSON file of your own.")] = "A100-80GB",
    max_model_len: Annotated[int, typer.Option(help="Prompt and output together, tokens.")] = 16384,
    kv: Annotated[str, typer.Option(help="KV caches, comma-separated.")] = "paged",
    scheduler: Annotated[str, typer.Option(help="Schedulers, comma-separated.")] = "lab",
    kv_memory: Annotated[
        str, typer.Option(help="KV budget, such as '40 GiB'; default: what vLLM would have on the GPU.")
    ] = "",
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the GPU that the engine takes.")
    ] = 0.9,
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16,
    max_num_seqs: Annotated[int, typer.Option(help="Requests at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 2048,
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Prefix cache: off, hash or radix (systems have their own, on or off). Default: off for the lab's cache, "
            "on for the systems, as their servers have it."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Only the first so many rows; 0 for all.")] = 0,
    serve_metrics: Annotated[
        int | None,
        typer.Option(help="Serve the run's /metrics on this port while it goes; 0 lets the system choose."),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="With --serve-metrics: seconds of the load in one; 0: as fast as it goes.")
    ] = 1.0,
    metrics_host: Annotated[
        str, typer.Option(help="With --serve-metrics: address to listen on.")
    ] = "127.0.0.1",
    linger: Annotated[
        float, typer.Option(help="With --serve-metrics: seconds the page stays after the run.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay TRACE and compare. Simulated on the CPU; times come from the cost model.

    With --serve-metrics a scrape finds the run under the servers' own metric names, in real time or --speed times as fast.
    """
    from labkit.experiments.replay import ReplayOptions, check_options, check_row, kv_budget, replay
    from labkit.models import get_gpu, get_model
    from labkit.units import parse_bytes
    from labkit.workload.traces import load_trace

    if not trace.strip():
        raise LabError("TRACE is empty; give the path of a trace file or the name of a known trace")
    for name, value in {
        "--max-model-len": max_model_len,
        "--block-size": block_size,
        "--max-num-seqs": max_num_seqs,
        "--max-num-batched-tokens": max_num_batched_tokens,
    }.items():
        if value < 1:
            raise LabError(f"{name} {value} is too small; start at 1")
    if limit < 0:
        raise LabError(f"--limit {limit} is negative; write 0 for all rows")
    spec, card = get_model(model), get_gpu(gpu)
    pairs = [(s, k) for s in _names(scheduler, "--scheduler") for k in _names(kv, "--kv")]
    for pair in pairs:
        check_row(*pair, prefix)
    if kv_memory:
        budget = parse_bytes(kv_memory)
    else:
        budget = kv_budget(
            spec,
            card,
            gpu_memory_utilization,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
        )
    options = ReplayOptions(budget, max_model_len, block_size, max_num_seqs, max_num_batched_tokens, prefix)
    check_options(options, spec)
    requests = load_trace(trace, limit or None)
    watcher = None
    if serve_metrics is not None:
        watcher = _watcher(pairs, spec, speed, linger)
    rows = []
    with _page(watcher, serve_metrics, metrics_host, linger):
        for name, cache in pairs:
            with _Bar(len(requests), f"{name}/{cache}") as on_progress:
                row = replay(
                    requests, spec, card, options, kv=cache, scheduler=name, on_progress=on_progress, watcher=watcher
                )  # fmt: skip
            rows.append(row)
    if as_json:
        print(json.dumps(_report(Path(trace), spec.name, card.name, options, rows), indent=1))
    else:
        _print(Path(trace), spec.name, card.name, options, rows)


def _watcher(pairs: list[tuple[str, str]], model: ModelSpec, speed: float, linger: float) -> PacedRecorder:
    from labkit.experiments.replay import live_watcher

    if len(pairs) != 1:
        raise LabError(
            f"--serve-metrics shows one run, and {len(pairs)} were asked for; name one --scheduler and one --kv"
        )
    if linger < 0:
        raise LabError(f"--linger {linger:g} is negative; write seconds from 0")
    return live_watcher(pairs[0][0], model, speed)


@contextmanager
def _page(watcher: PacedRecorder | None, port: int | None, host: str, linger: float) -> Iterator[None]:
    """Serve the watcher's page around a run."""
    if watcher is None or port is None:
        yield
        return
    with watcher.exporter.serve(port, host) as bound:
        print(f"serving http://{host}:{bound}/metrics", file=sys.stderr, flush=True)
        yield
        time.sleep(linger)


class _Bar:
    """Requests a second on a terminal; nothing in CI or into a file."""

    def __init__(self, total: int, label: str):
        self.total, self.label = total, label
        self.bar: Any = None

    def __enter__(self) -> Callable[[int], object] | None:
        if not sys.stderr.isatty() or os.environ.get("CI"):
            return None
        from tqdm import tqdm

        self.bar = tqdm(total=self.total, desc=self.label, unit=" requests", leave=False)
        update: Callable[[int], object] = self.bar.update
        return update

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise LabError(f"{option} is empty; write at least one name")
    return list(dict.fromkeys(names))


def _report(trace: Path, model: str, gpu: str, options: Any, rows: list[ReplayRow]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "trace": trace.name,
        "model": model,
        "gpu": gpu,
        **asdict(options),
        "time": "cost model",
        "rows": [row.as_dict() for row in rows],
    }


def _print(trace: Path, model: str, gpu: str, options: Any, rows: list[ReplayRow]) -> None:
    from labkit.units import format_bytes

    print(
        f"{trace.name}: {rows[0].num_requests:,} requests, {model} on {gpu}, KV {format_bytes(options.kv_bytes)}, "
        f"max_model_len {options.max_model_len:,} (times from the cost model)"
    )
    lines = [[label for label, _ in COLUMNS]] + [[show(row) for _, show in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        print(
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))
            )
        )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _three(values: dict[str, float | None], scale: float, digits: int) -> str:
    cells = [values["p50"], values["p95"], values["p99"]]
    return " / ".join("-" if v is None else f"{v * scale:,.{digits}f}" for v in cells)


def _peak(row: ReplayRow) -> str:
    from labkit.units import format_bytes

    return "-" if row.peak_bytes is None else format_bytes(row.peak_bytes)


COLUMNS: list[tuple[str, Callable[[ReplayRow], str]]] = [
    ("scheduler", lambda row: row.scheduler),
    ("kv", lambda row: row.kv),
    ("admitted", lambda row: f"{row.num_admitted:,}"),
    ("refused", lambda row: f"{row.num_refused:,}"),
    ("preempted", lambda row: f"{row.num_preempted:,}"),
    ("at once", lambda row: f"{row.peak_running:,}"),
    ("hit %", lambda row: _share(row.hit_ratio)),
    ("waste %", lambda row: _share(row.waste)),
    ("ext frag %", lambda row: _share(row.fragmentation)),
    ("TTFT s p50/p95/p99", lambda row: _three(row.ttft_s, 1, 2)),
    ("TPOT ms p50/p95/p99", lambda row: _three(row.tpot_s, 1000, 1)),
    ("tokens/s", lambda row: f"{row.output_tokens_per_s:,.0f}"),
    ("peak KV", _peak),
]
