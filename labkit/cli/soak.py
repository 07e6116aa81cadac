"""`labkit soak`: a simulated day with a restart in the middle, and what had aged by then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.errors import LabError


def run(
    hours: Annotated[float, typer.Option(help="Simulated hours.")] = 24.0,
    policy: Annotated[
        str,
        typer.Option(
            help="vllm, vllm-no-cache, sglang, tensorrt_llm, or a KV cache of the lab (paged, reserve-pow2, grow, ...)."
        ),
    ] = "vllm",
    load: Annotated[str, typer.Option(help="Trace name, or PROMPT/OUTPUT in tokens.")] = "azure-conv",
    share: Annotated[float, typer.Option(help="Load, as a share of the measured saturation.")] = 0.8,
    rate: Annotated[float, typer.Option(help="Requests a second instead; 0 measures saturation first.")] = 0,
    requests: Annotated[
        int, typer.Option(help="So many requests; sets the hours from the rate. 0: --hours.")
    ] = 0,
    capacity_tokens: Annotated[int, typer.Option(help="Size of the KV pool, tokens.")] = 416_000,
    max_model_len: Annotated[int, typer.Option(help="Longer requests are left out, tokens.")] = 16_384,
    max_num_seqs: Annotated[int, typer.Option(help="Requests at once.")] = 256,
    window_minutes: Annotated[
        float, typer.Option(help="The server drains this often; 0: a 48th of the run.")
    ] = 0,
    restart: Annotated[bool, typer.Option("--restart/--no-restart", help="Restart in the middle.")] = True,
    fault: Annotated[
        str, typer.Option(help="Plant one in a cache of the lab: leak or sessions; empty: none.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the one-page HTML report here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Soak a simulated server and say what aged. Times come from a straight-line step cost."""
    from dataclasses import replace

    from labkit.experiments.soak import soak
    from labkit.experiments.soak_load import measure_saturation, soak_lengths
    from labkit.experiments.soak_result import SoakOptions, Window

    if requests < 0 or seed < 0 or window_minutes < 0 or rate < 0:
        raise LabError("--requests, --seed, --window-minutes and --rate count from 0")
    if out is not None and not out.absolute().parent.is_dir():
        raise LabError(f"--out {out}: the folder {out.absolute().parent} does not exist")
    options = SoakOptions(
        hours=hours,
        policy=policy,
        load=load,
        share=share,
        rate=rate or None,
        capacity_tokens=capacity_tokens,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        window_s=window_minutes * 60 or None,
        restart=restart,
        fault=fault or None,
        seed=seed,
    )
    options.check()
    if requests:
        import numpy as np

        prompts, outputs, _ = soak_lengths(load, max_model_len, np.random.default_rng(seed))
        wanted = rate or share * measure_saturation(options, prompts, outputs)
        options = replace(options, hours=requests / wanted / 3600)

    def on_window(window: Window) -> None:
        if sys.stderr.isatty():
            print(
                f"\r{window.end_h:6.2f} h, life {window.life + 1}, TTFT P95 {window.ttft_p95_s:.2f} s", end="", file=sys.stderr
            )  # fmt: skip

    result = soak(options, on_window)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if out is not None:
        from labkit.viz.soak_report import save_soak_report

        save_soak_report(result, out)
    if as_json:
        print(json.dumps(result.as_dict(), indent=1))
        return
    from labkit.units import format_bytes

    first, last = result.windows[0].rss_bytes >> 20, result.windows[-1].rss_bytes >> 20
    print(f"{result.verdict}: {result.sentence}")
    print(
        f"{result.num_requests:,} requests in {options.hours:.2f} simulated hours at {result.rate:.2f} requests/s; "
        f"{result.cpu_s:.0f} s of CPU; this program held {first} MiB after the first window and {last} MiB after the last"
    )
    for name, pair in result.before_and_after().items():
        before, after = (
            format_bytes(int(v))
            if name.endswith("_bytes")
            else f"{v:.3f}{' s' if name.endswith('_s') else ''}"
            for v in pair
        )
        print(f"  {name:<16} before the restart {before:>12}   after {after:>12}")
    if out is not None:
        print(f"report: {out}")
