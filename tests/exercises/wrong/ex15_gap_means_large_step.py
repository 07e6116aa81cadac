# ruff: noqa
"""Every long gap is put down to the size of a step."""


def my_diagnosis(figures):
    if figures["kv_at_rest_growth"] > 0.1:
        return "leak", "kv_at_rest_growth"
    if figures["kv_at_rest_first"] > 0.1:
        return "pinned prefixes", "kv_at_rest_first"
    if figures["worst_gap_ms"] > 300:
        return "step too large", "worst_gap_ms"
    if figures["largest_free_while_waiting"] < 0.85:
        return "fragmentation", "largest_free_while_waiting"
    return "admission limit", "free_while_waiting"


EXPECT = "preemptions explain the long gap"  # the message must contain this
