"""Put this folder in front of PYTHONPATH and Triton cannot be imported: how the lab is tested without it."""

raise ImportError("triton is blocked on purpose (tests/blocked)")
