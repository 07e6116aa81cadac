# ruff: noqa
"""The causes are right, and kv_peak is the evidence for all."""


def my_diagnosis(figures):
    if figures["kv_at_rest_growth"] > 0.1:
        return "leak", "kv_peak"
    if figures["kv_at_rest_first"] > 0.1:
        return "pinned prefixes", "kv_peak"
    if figures["largest_free_while_waiting"] < 0.85:
        return "fragmentation", "kv_peak"
    if figures["mean_waiting"] > 1 and figures["free_while_waiting"] > 0.5:
        return "admission limit", "kv_peak"
    if figures["num_preemptions"] == 0 and figures["worst_gap_ms"] > 300:
        return "step too large", "kv_peak"
    return "pool too small", "kv_peak"


EXPECT = "is not what tells it from the others"  # the message must contain this
