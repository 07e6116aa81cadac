# ruff: noqa
"""Divides by zero when nothing is allocated."""


def my_measures(layout, request_bytes):
    allocated = sum(s.size for s in layout if s.state == "allocated")
    requested = sum(s.requested for s in layout if s.state == "allocated")
    pending = sum(s.size for s in layout if s.state == "pending")
    sizes = [s.size for s in layout if s.state == "free"]
    free = sum(sizes)
    reserved = allocated + pending + free
    usable = sum(size // request_bytes * request_bytes for size in sizes)
    return {
        "internal": (allocated - requested) / allocated,
        "external": free / reserved if reserved else 0.0,
        "contiguity_loss": 1 - max(sizes) / free if free else 0.0,
        "unusable": 1 - usable / free if free else 1.0,
    }


EXPECT = "division by zero"  # the message must contain this
