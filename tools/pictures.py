"""Make the pictures of the README and the docs from the real thing: `python tools/pictures.py`.

Each picture is one idea. The loads are synthetic (fixed seed), so that the pictures are the same on every machine.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from labkit.experiments.churn import AllocatorMemory, BlockMemory, holdings_of
from labkit.experiments.contiguous_kv import reservation_curve, with_fixed_lengths
from labkit.experiments.five_causes import CAUSES, Causes, load_with, room_needed, room_needed_in_blocks
from labkit.experiments.harms import with_long_sessions
from labkit.experiments.tour import layouts_of, take_tour
from labkit.memory import make_allocator
from labkit.units import GIB, format_bytes
from labkit.viz import Event, Series, draw_layout, draw_timeline
from labkit.viz.charts import draw_bars, draw_tradeoff
from labkit.viz.figure import png_bytes
from labkit.viz.player import draw_runs
from labkit.viz.player_builder import RunBuilder
from labkit.workload.synthetic import synthetic_load

TARGET = Path(__file__).parent.parent / "docs" / "images"
BYTES_PER_TOKEN = 131_072  # Llama-3.1-8B, 16 bits
CAPACITY = 20 * GIB
LONG_REQUEST = 49_152 * BYTES_PER_TOKEN
COLOURS = 64  # enough for flat colours and text


def picture(figure) -> Image.Image:
    return Image.open(io.BytesIO(png_bytes(figure))).convert("RGB")


def save(name: str, *parts: Image.Image) -> None:
    """Pictures below each other, as one small PNG."""
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    at = 0
    for part in parts:
        whole.paste(part, (0, at))
        at += part.height
    whole.quantize(COLOURS).save(TARGET / name, optimize=True)
    print(f"{name}: {(TARGET / name).stat().st_size / 1024:.0f} KiB")


def tour(holdings) -> None:
    """Why the request is refused, and what a restart and blocks change."""
    found = take_tour(
        holdings, capacity=CAPACITY, long_request_bytes=LONG_REQUEST, block_bytes=16 * BYTES_PER_TOKEN
    )
    run, aged = found.run, found.aged
    curve = draw_timeline(
        [
            Series("free in total", run.times_s, run.free),
            Series("largest free span", run.times_s, run.largest_free),
            Series(
                "the long request",
                [run.times_s[0], run.times_s[-1]],
                [LONG_REQUEST] * 2,
                dashed=True,
                color="#000000",
            ),
        ],
        events=[Event(aged.time_s, "oom", "refused")],
        title="the dashboard shows the upper curve, the allocator lives by the lower one",
    )
    stuck = draw_layout(
        aged.layout,
        capacity=CAPACITY,
        rows=3,
        title=f"{format_bytes(aged.free)} free, longest span {format_bytes(aged.largest_free)}: "
        f"a request of {format_bytes(aged.asked)} is refused",
    )
    healed = draw_layout(
        found.restarted.layout,
        capacity=CAPACITY,
        rows=3,
        title="the same live requests after a restart: it is served (dark)",
    )
    save("tour.png", picture(curve), picture(stuck), picture(healed))


def player(holdings, num_frames: int = 24) -> None:
    """The player's picture over time: contiguous above, blocks below."""
    runs = []
    for title, memory in {
        "contiguous (first fit)": AllocatorMemory(make_allocator("first-fit", CAPACITY)),
        "blocks": BlockMemory(CAPACITY, 256 * BYTES_PER_TOKEN),
    }.items():
        builder = RunBuilder(total=CAPACITY, title=title, interchangeable=title == "blocks")
        for time_s, layout in layouts_of(memory, holdings[:1500], 48):
            builder.add(time_s, layout)
        runs.append(builder.finish())
    times = runs[0].times[:: len(runs[0].times) // num_frames]
    frames = [
        picture(draw_runs(runs, float(t), title="the same chat traffic, two memories")).quantize(COLOURS)
        for t in times
    ]
    frames[0].save(
        TARGET / "player.gif", save_all=True, append_images=frames[1:], duration=350, loop=0, optimize=True
    )
    print(f"player.gif: {(TARGET / 'player.gif').stat().st_size / 1024:.0f} KiB")


def contradiction(requests) -> None:
    """Section 5: no reservation is good at both waste and copying."""
    steps = [64, 128, 256, 512, 1024, 2048, 4096]
    options = {"capacity_tokens": 120_000, "bytes_per_token": BYTES_PER_TOKEN}
    load = [r for r in requests[:1000] if r.num_prompt_tokens + r.num_output_tokens <= 8192]
    curves = {
        "lengths of a chat load": reservation_curve(load, steps, **options),
        "all of one length (control)": reservation_curve(
            with_fixed_lengths(load, 896, 128), steps, **options
        ),
    }
    save(
        "contradiction.png",
        picture(
            draw_tradeoff(
                {
                    name: [(100 * p.waste, p.moved_per_token, str(p.reserved_tokens)) for p in points]
                    for name, points in curves.items()
                },
                xlabel="reserved and empty (% of what requests hold)",
                ylabel="copied or recomputed (tokens per token)",
                title="contiguous KV: tokens reserved at a time",
                good=(10, 0.1),
                linthresh_y=0.1,
            )
        ),
    )


def causes(requests) -> None:
    """Section 4: what makes LLM serving fragment."""
    rng = np.random.default_rng
    loads = [
        load_with(Causes.first(n), requests[:1500], rng(2), bytes_per_token=BYTES_PER_TOKEN)
        for n in range(len(CAUSES) + 1)
    ]
    names = ["none", *(f"+ {name}" for name in CAUSES)]
    save(
        "causes.png",
        picture(
            draw_bars(
                {
                    name: {
                        "first fit": 100 * (room_needed(load) - 1),
                        "blocks of 16 tokens": 100 * (room_needed_in_blocks(load, 16 * BYTES_PER_TOKEN) - 1),
                    }
                    for name, load in zip(names, loads)
                },
                ylabel="memory beyond peak use (%)",
                title="memory needed to refuse nobody, causes added from left to right",
            )
        ),
    )


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    requests = synthetic_load("azure-conv", 6000, np.random.default_rng(1))
    holdings = with_long_sessions(
        holdings_of(requests, bytes_per_token=BYTES_PER_TOKEN, seconds_per_token=0.03),
        np.random.default_rng(2),
    )
    tour(holdings)
    player(holdings)
    contradiction(requests)
    causes(requests)
    total = sum(path.stat().st_size for path in TARGET.iterdir())
    print(f"{total / 2**20:.2f} MiB in all")
    return 0 if total < 3 * 2**20 else 1


if __name__ == "__main__":
    sys.exit(main())
