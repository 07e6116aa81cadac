# ruff: noqa
"""Lets a request stretch over two spans."""


def my_measures(layout, request_bytes):
    allocated = sum(s.size for s in layout if s.state == "allocated")
    requested = sum(s.requested for s in layout if s.state == "allocated")
    pending = sum(s.size for s in layout if s.state == "pending")
    sizes = [s.size for s in layout if s.state == "free"]
    free = sum(sizes)
    reserved = allocated + pending + free
    usable = free // request_bytes * request_bytes
    return {
        "internal": (allocated - requested) / allocated if allocated else 0.0,
        "external": free / reserved if reserved else 0.0,
        "contiguity_loss": 1 - max(sizes) / free if free else 0.0,
        "unusable": 1 - usable / free if free else 1.0,
    }


EXPECT = "divide each span"  # the message must contain this
