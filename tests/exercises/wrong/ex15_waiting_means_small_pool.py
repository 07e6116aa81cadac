# ruff: noqa
"""Whoever waits waits for memory."""


def my_diagnosis(figures):
    if figures["kv_at_rest_growth"] > 0.1:
        return "leak", "kv_at_rest_growth"
    if figures["kv_at_rest_first"] > 0.1:
        return "pinned prefixes", "kv_at_rest_first"
    if figures["largest_free_while_waiting"] < 0.85:
        return "fragmentation", "largest_free_while_waiting"
    if figures["mean_waiting"] > 1:
        return "pool too small", "kv_peak"
    return "step too large", "worst_gap_ms"


EXPECT = "a full pool does not look like that"  # the message must contain this
