"""One palette for every picture of the lab: colour says how long the bytes live.

The hues are those of Okabe and Ito (2008), told apart with the common forms of colour blindness. What nobody owns is
grey or white, so a reader sees occupied against free before seeing who occupies.
"""

from __future__ import annotations

import zlib

from labkit.memory.base import Span

#: lifetime class -> (colour, what lives in it), ordered from the longest life to the shortest
LIFETIMES: dict[str, tuple[str, str]] = {
    "weights": ("#0072B2", "static weights"),
    "prefix": ("#009E73", "shared prefix"),
    "session": ("#D55E00", "long session"),
    "request": ("#56B4E9", "private request KV"),
    "activation": ("#E69F00", "activations"),
    "workspace": ("#F0E442", "workspace of a kernel"),
    "communication": ("#CC79A7", "communication buffers"),
    "graph": ("#6A14DC", "CUDA graph pool"),
    "other": ("#7F7F7F", "no lifetime given"),
}
FREE, PENDING, UNMAPPED, CACHED, WASTE = "#E4E4E4", "#4D4D4D", "#FFFFFF", "#94CDB2", "#C4A78E"

#: states that are not an owner: label -> colour
STATES: dict[str, str] = {
    "free": FREE,
    "pending free": PENDING,
    "not mapped": UNMAPPED,
    "cached, reclaimable": CACHED,
    "rounding waste": WASTE,
}

#: hues of lifetimes that are not in the table (Paul Tol's muted set): none of them is a known class
OTHER_HUES = ("#882255", "#44AA99", "#999933", "#332288", "#AA4499")

#: other spellings of the same class that allocators and caches use
ALIASES: dict[str, str] = {
    "static": "weights",
    "weight": "weights",
    "shared": "prefix",
    "long": "session",
    "decode": "request",
    "short": "request",
    "kv": "request",
    "private": "request",
    "activations": "activation",
    "temp": "activation",
    "temporary": "activation",
    "nccl": "communication",
    "comm": "communication",
}

#: events on a time axis: kind -> (colour, matplotlib marker)
EVENTS: dict[str, tuple[str, str]] = {
    "oom": ("#B00020", "X"),
    "move": ("#0072B2", ">"),
    "eviction": ("#E69F00", "v"),
    "preemption": ("#CC79A7", "s"),
    "restart": ("#000000", "d"),
    "other": ("#555555", "o"),
}


def lifetime_class(span: Span) -> str:
    """The class a span is coloured by: its state when nobody owns it, else its lifetime, else its tag if that is a class."""
    if span.state == "free":
        return "free"
    if span.state == "pending":
        return "pending free"
    if span.state == "unmapped":
        return "not mapped"
    if span.lifetime == "cached":
        return "cached, reclaimable"
    for label in (span.lifetime, span.tag):
        label = ALIASES.get(label, label)
        if label in LIFETIMES:
            return label
    return span.lifetime or "other"


def color_of(label: str) -> str:
    """Colour of a class, by any of its spellings. A lifetime that is not in the table gets a hue of `OTHER_HUES`, always the
    same one."""
    label = ALIASES.get(label, label)
    if label in LIFETIMES:
        return LIFETIMES[label][0]
    if label in STATES:
        return STATES[label]
    return OTHER_HUES[zlib.crc32(label.encode()) % len(OTHER_HUES)]


def describe(label: str) -> str:
    """Text of a class in a legend."""
    label = ALIASES.get(label, label)
    return LIFETIMES[label][1] if label in LIFETIMES else label
