"""The largest request that would succeed now, from a snapshot alone.

Three ways to serve a large request of the default pool, tried by PyTorch in this order (docs/allocators.md):
a free block that is long enough; with plain segments a new one, in the end after every wholly free segment went back to the
device; with expandable segments a row of free and unmapped addresses, in the end after every whole page inside a free block went back.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.memory.snapshot import Snapshot, SnapshotBlock, SnapshotSegment
from labkit.memory.snapshot_trace import MAPS, settings_of
from labkit.units import MIB

SMALL_PAGE = 2 * MIB
MIN_LARGE_SEGMENT = 10 * MIB


@dataclass(frozen=True)
class Largest:
    """Bytes. `request` counts the device only if `device_free` was known; a multiple of 2 MiB unless it is the block."""

    block: int
    request: int


def largest_request(snapshot: Snapshot, device: int, stream: int, device_free: int | None) -> Largest:
    """For the default pool and `stream`; `device_free` is what the device has left, None where nobody knows."""
    settings = settings_of(snapshot)
    everything = [s for s in snapshot.of_device(device) if s.pool_id == (0, 0)]
    mine = [s for s in everything if s.stream == stream and not s.is_small]
    block = max((b.size for s in mine for b in s.blocks if b.state == "free"), default=0)
    if device_free is None:
        return Largest(block, block)
    page = settings.large_segment_size
    given_back = sum(_releasable(s, page) for s in everything)
    if not settings.expandable_segments:
        segment = (device_free + given_back) // SMALL_PAGE * SMALL_PAGE
        return Largest(block, max(block, segment if segment >= MIN_LARGE_SEGMENT else 0))
    pages = (device_free + given_back) // page
    total = device_free + sum(s.size for s in snapshot.of_device(device))
    length = -(-(total + total // 8) // page) * page
    expandable = [s for s in mine if s.is_expandable]
    mapped = {
        event.addr
        for event in snapshot.trace(device)
        if event.action in MAPS
        and event.pool_id == (0, 0)
        and event.stream == stream
        and event.size % page == 0
    } | {s.address for s in expandable}
    top = max((s.address + s.size for s in expandable), default=0)
    base = min((address for address in mapped if top - length <= address < top), default=0)
    return Largest(block, max(block, _longest_row(_rows(expandable, base, length), page, pages)))


def _longest_row(rows: list[tuple[int, int]], page: int, pages: int) -> int:
    """PyTorch takes the *first* row (lowest address) that is long enough and fails if it cannot map it, so a later row serves only
    requests longer than all rows before it; a fresh reservation, those longer than every row."""
    longest, tried = 0, 0
    for start, end in rows:
        first_page = -(-start // page) * page
        inside = max(end // page * page - first_page, 0)
        reach = end - start if inside <= pages * page else first_page - start + pages * page
        if reach > tried:
            longest = max(longest, reach)
        tried = max(tried, end - start)
    return max(longest, pages * page) if pages * page > tried else longest


def _rows(segments: list[SnapshotSegment], base: int, length: int) -> list[tuple[int, int]]:
    """Free and unmapped addresses between live blocks, relative to `base`, where a reservation of `length` bytes begins."""
    if not segments:
        return []
    live = sorted(
        (b.address - base, b.address + b.size - base) for s in segments for b in s.blocks if b.state != "free"
    )
    rows, at = [], 0
    for start, end in [*live, (length, length)]:
        if start > at:
            rows.append((at, start))
        at = end
    return rows


def _releasable(segment: SnapshotSegment, page: int) -> int:
    """What a release of cached memory gives back: a wholly free segment; of an expandable one the whole pages inside free blocks."""
    if not segment.is_expandable:
        return segment.size if all(block.state == "free" for block in segment.blocks) else 0
    page = SMALL_PAGE if segment.is_small else page
    return sum(_whole_pages(segment, block, page) for block in segment.blocks if block.state == "free")


def _whole_pages(segment: SnapshotSegment, block: SnapshotBlock, page: int) -> int:
    first = -(-(block.address - segment.address) // page)
    last = (block.address + block.size - segment.address) // page
    return max(last - first, 0) * page
