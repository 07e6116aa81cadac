"""`labkit snapshot FILE`: what a PyTorch memory snapshot says."""

from __future__ import annotations

import dataclasses
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from labkit.memory.snapshot import Snapshot
    from labkit.memory.snapshot_report import SnapshotReport
    from labkit.memory.snapshot_whatif import Outcome


def run(
    file: Annotated[Path, typer.Argument(help="A pickle written by torch.cuda.memory._dump_snapshot.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    to_html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the report and the player.")
    ] = None,
    device: Annotated[
        int | None, typer.Option(help="Device number; default: the first that holds memory.")
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="What PyTorch may have, e.g. 79.1GiB, if no out-of-memory tells it.")
    ] = None,
) -> None:
    """Segments, who pins the holes, the largest request that would succeed, why it failed, and what settings would change."""
    from labkit.errors import LabError
    from labkit.memory.snapshot import read_snapshot
    from labkit.memory.snapshot_report import report
    from labkit.memory.snapshot_whatif import what_if
    from labkit.units import parse_bytes

    snapshot = read_snapshot(file)
    limit = None if capacity is None else parse_bytes(capacity)
    if limit == 0:
        raise LabError(f"--capacity is {capacity}; write what PyTorch may have, such as 79.1GiB")
    found = report(snapshot, device, capacity=limit)
    replays: list[Outcome] = []
    if snapshot.trace(found.device):
        try:
            replays = what_if(snapshot, found.device, capacity=limit)
        except LabError as error:  # the blocks alone still say a lot
            snapshot = dataclasses.replace(
                snapshot, traces=(), notes=(*snapshot.notes, f"nothing was replayed: {error}")
            )
    if to_html is not None:
        _write_page(to_html, snapshot, found, replays)
    if as_json:
        print(json.dumps(as_dict(snapshot, found, replays)))
    else:
        print("\n".join(text(snapshot, found, replays)))
        if to_html is not None:
            print(f"page: {to_html}")


def as_dict(snapshot: Snapshot, found: SnapshotReport, replays: list[Outcome]) -> dict[str, Any]:
    """What `--json` prints: the report, the segments, and the replays."""
    segments = [
        {
            "address": s.address, "size": s.size, "stream": s.stream, "pool": "small" if s.is_small else "large",
            "pool_id": list(s.pool_id), "is_expandable": s.is_expandable, "num_blocks": len(s.blocks),
            "free": sum(b.size for b in s.blocks if b.state == "free"),
        }
        for s in snapshot.of_device(found.device)
    ]  # fmt: skip
    return {
        "file": snapshot.name, **found.as_dict(), "num_events": len(snapshot.trace(found.device)),
        "segments": segments, "what_if": [vars(outcome) for outcome in replays], "notes": list(snapshot.notes),
    }  # fmt: skip


def text(snapshot: Snapshot, found: SnapshotReport, replays: list[Outcome]) -> list[str]:
    """The report as lines for people."""
    from labkit.units import format_bytes as size

    sums, fragmentation = found.sums, found.fragmentation
    lines = [
        f"{found.verdict}: {found.sentence}",
        *(f"  do: {advice}" for advice in found.advice),
        *(
            [f"state: {found.state}: {found.state_sentence}"]
            if found.state_sentence != found.sentence
            else []
        ),
        "",
        f"device {found.device}: {len(snapshot.of_device(found.device))} segments, {len(snapshot.trace(found.device))} trace events",
        f"  reserved   {size(sums['reserved_bytes.all.current']):>12}   of {size(found.capacity) if found.capacity else 'unknown capacity'}",
        f"  active     {size(sums['active_bytes.all.current']):>12}   {size(found.pending_bytes)} of it freed and waiting for a stream",
        f"  allocated  {size(sums['allocated_bytes.all.current']):>12}   in {sums['allocation.all.current']} blocks",
        f"  requested  {size(sums['requested_bytes.all.current']):>12}   internal fragmentation {100 * fragmentation.internal:.1f} %",
        f"  free       {size(fragmentation.free_bytes):>12}   in {fragmentation.num_free_spans} blocks: holes {size(found.hole_bytes)}, whole segments {size(found.cached_bytes)}, private pools {size(found.private_free_bytes)}",
        f"  contiguity loss 1 - largest/free: {fragmentation.contiguity_loss:.2f}; reserved/active: {fragmentation.reserved_to_active:.3f}",
        f"  largest free block {size(found.largest_free_block)}; largest request that would succeed (stream {found.stream}): {size(found.largest_request)}"
        + (
            ""
            if found.device_free is not None
            else " at least (the trace does not tell what the device has left)"
        ),
        "",
        "who pins the holes (live blocks with free bytes beside them):",
    ]
    for pinner in found.pinners[:8]:
        where = " < ".join(pinner.frames) or "no frames recorded"
        lines.append(
            f"  {size(pinner.hole_bytes):>12} in {_count(pinner.num_holes, 'hole')}, beside {_count(pinner.num_blocks, 'block')} of {size(pinner.block_bytes)}: {where}"
        )
    if not found.pinners:
        lines.append("  nobody: no free block has a live neighbour")
    lines += ["", *_replay_lines(replays)]
    return lines + [f"note: {note}" for note in snapshot.notes]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _replay_lines(replays: list[Outcome]) -> list[str]:
    from labkit.units import format_bytes as size

    if not replays:
        return []
    lines = [
        "the trace replayed with other settings:",
        f"  {'setting':<28}{'peak':>12}{'reserved':>12}{'unused':>12}{'largest':>12}  failed requests served",
    ]
    for o in replays:
        largest = size(o.largest_request) if o.largest_request is not None else "unknown"
        served = f"{o.served} of {o.failed}" + (f", {o.new_ooms} new failures" if o.new_ooms else "")
        lines.append(
            f"  {o.name:<28}{size(o.peak_reserved):>12}{size(o.reserved):>12}{size(o.unallocated):>12}{largest:>12}  {served}"
        )
    first = replays[0]
    lines.append(
        f"  empty_cache() at the end would return {size(first.reserved - first.after_empty_cache)} to the device; "
        "it cannot serve a request that failed, since PyTorch has emptied its cache before it gives up"
    )
    return lines


def _write_page(path: Path, snapshot: Snapshot, found: SnapshotReport, replays: list[Outcome]) -> None:
    from labkit.viz.figure import png_bytes
    from labkit.viz.memory_map import draw_layout
    from labkit.viz.player import embed_image, player, write_page
    from labkit.viz.snapshot_run import snapshot_run

    body = [
        f'<pre style="white-space:pre-wrap">{html.escape(chr(10).join(text(snapshot, found, replays)))}</pre>'
    ]
    if snapshot.trace(found.device):
        shown = player(snapshot_run(snapshot, found.device, title=f"Trace of {Path(snapshot.name).name}"))
        body.insert(0, shown.fragment())
    else:
        figure = draw_layout(snapshot.spans(found.device), title="Blocks at the time of the snapshot")
        body.insert(0, embed_image(png_bytes(figure), "memory map"))
    write_page(path, "\n".join(body), title=Path(snapshot.name).name)
