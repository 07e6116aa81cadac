"""Which kind of out of memory was it? Five answers, from the numbers in PyTorch's own message.

    exceeds_card           asked for more than the card has: a shape, not an allocator, is wrong
    other_process          somebody else holds what is missing
    private_pools          enough is free, and it belongs to private pools (CUDA graphs) that nobody else may use
    memory_fraction        the process's own limit refuses, not the card
    fits_if_defragmented   free on the card + free inside segments is enough, in pieces
    truly_full             it is not enough, whatever the allocator does

Words: `free` is what the card says, `unallocated` what PyTorch has reserved and handed to nobody (private pools included).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.doctor.oom_message import OomMessage, parse_oom
from labkit.units import GIB, format_bytes

#: A CUDA context and libraries hold this much outside of PyTorch (measured 0.3 to 0.8 GiB on data-centre cards); only what is
#: unexplained beyond it counts as somebody else's.
CONTEXT_BYTES = 1.0 * GIB


@dataclass(frozen=True)
class OomVerdict:
    """`kind`, one sentence, what to do, and every number in bytes. `margin_bytes` > 0: that much would have been left over."""

    kind: str
    sentence: str
    advice: list[str]
    numbers: dict[str, float]
    generation: str
    margin_bytes: float
    #: the printed numbers are too coarse to be sure
    borderline: bool = False
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__}


def explain_oom(text: str) -> OomVerdict:
    """Parse `text` and say which kind of failure it reports. Raises `LabError` when it holds no such message."""
    return judge(parse_oom(text))


def judge(message: OomMessage) -> OomVerdict:
    """The verdict on a parsed message."""
    tried, free, total = message.tried.num_bytes, message.free.num_bytes, message.total.num_bytes
    unallocated, allocated = message.reserved_unallocated.num_bytes, message.allocated.num_bytes
    private = message.private_pools.num_bytes if message.private_pools else 0.0
    ours, others = _who_holds(message)
    mine = allocated + unallocated
    reach = free + unallocated - min(private, unallocated)
    numbers = {
        "tried": tried, "total": total, "free": free, "allocated": allocated, "unallocated": unallocated,
        "private_pools": private, "this_process": ours, "others": others, "reachable_if_defragmented": reach,
    }  # fmt: skip
    slack = message.tried.slack + message.free.slack + message.reserved_unallocated.slack
    notes = _notes(message, total, allocated, free, tried)
    size = {name: format_bytes(round(value)) for name, value in numbers.items()}

    def verdict(kind: str, sentence: str, advice: list[str], margin: float) -> OomVerdict:
        return OomVerdict(
            kind, sentence, advice, numbers, message.generation, margin, abs(margin) <= slack, notes
        )

    if tried > total:
        return verdict(
            "exceeds_card",
            f"It asked for {size['tried']} on a card of {size['total']}: no allocator setting and no restart can give it.",
            [
                "find the tensor that is that large (often attention scores that grow with the square of the length, or a batch that is not split)"
            ],
            total - tried,
        )
    if message.allowed is not None and mine + tried > message.allowed.num_bytes and free >= tried:
        return verdict(
            "memory_fraction",
            f"The process may hold {message.allowed.text} and already reserves {format_bytes(round(mine))}; the card itself has {size['free']} free.",
            ["raise torch.cuda.set_per_process_memory_fraction, or lower the load"],
            free - tried,
        )
    missing = tried - reach
    if others > mine or (missing > 0 and others >= missing):
        return verdict(
            "other_process",
            f"Other processes hold {size['others']} of the card's {size['total']}; this one holds {format_bytes(round(ours))} and asked for {size['tried']}.",
            [
                "find them with nvidia-smi, and stop or move them (a server that did not exit, a second rank on the same card)"
            ],
            reach + others - tried,
        )
    if missing > 0 and private > 0 and free + max(unallocated, private) >= tried:
        return verdict(
            "private_pools",
            f"{size['private_pools']} is free inside private pools (CUDA graphs) that nobody else may use; without them only {size['reachable_if_defragmented']} is left for {size['tried']}.",
            [
                "capture fewer CUDA graph sizes, share one pool between graphs, or run without graphs; expandable segments do not help here"
            ],
            free + max(unallocated, private) - tried,
        )
    if missing <= 0 and allocated <= total:
        return verdict(
            "fits_if_defragmented",
            f"{size['free']} free on the card and {size['unallocated']} free inside segments are enough for {size['tried']}, but in no single piece.",
            [
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow over the pieces",
                "or take a snapshot at the failure and look who pins the holes: labkit snapshot FILE.pickle",
            ],
            -missing,
        )
    return verdict(
        "truly_full",
        f"Free on the card and inside segments together are {size['reachable_if_defragmented']}, less than the {size['tried']} asked: the live tensors ({size['allocated']}) fill it.",
        [
            "hold less: fewer or shorter sequences, a smaller batch or KV pool, quantised weights; allocator settings cannot help"
        ],
        min(-missing, 0.0) if allocated <= total else total - allocated,
    )


def _who_holds(message: OomMessage) -> tuple[float, float]:
    """Bytes of this process and of the others. Without a "this process" line (containers, NVML off) one of the "Process" lines may
    be ours: the smallest that can hold what PyTorch reserves. What no line explains belongs to others we cannot see."""
    reserved = message.allocated.num_bytes + message.reserved_unallocated.num_bytes
    lines = sorted(printed.num_bytes for _, printed in message.processes)
    if message.this_process is not None:
        ours = message.this_process.num_bytes
    else:
        fitting = [value for value in lines if value >= reserved * 0.99]
        ours = fitting[0] if fitting else reserved
        if fitting:
            lines.remove(ours)
    named = sum(lines)
    unseen = message.total.num_bytes - message.free.num_bytes - ours - named
    known_ours = message.this_process is not None or ours > reserved
    allowance = 0.05 * GIB if known_ours else CONTEXT_BYTES
    return ours, named + (unseen if unseen > allowance else 0.0)


def _notes(message: OomMessage, total: float, allocated: float, free: float, tried: float) -> list[str]:
    notes = []
    if allocated > total:
        notes.append(
            "more is allocated than the card has: the driver has spilled into system memory (Windows shared GPU memory), so everything is slow and the next request fails"
        )
    if free >= tried:
        notes.append(
            "the card reports enough free for the request itself; PyTorch asks the card for whole segments (20 MiB for requests of 1 to 10 MiB, multiples of 2 MiB above), and another process may have taken it in between"
        )
    if message.private_pools is not None:
        notes.append(
            '"allocated in private pools" counts the free bytes inside those pools, not live tensors'
        )
    return notes
