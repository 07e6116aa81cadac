# ruff: noqa
"""Whatever is held at rest is called a leak."""


def my_diagnosis(figures):
    if figures["kv_at_rest_first"] > 0.1:
        return "leak", "kv_at_rest_growth"
    if figures["largest_free_while_waiting"] < 0.85:
        return "fragmentation", "largest_free_while_waiting"
    if figures["mean_waiting"] > 1 and figures["free_while_waiting"] > 0.5:
        return "admission limit", "free_while_waiting"
    if figures["num_preemptions"] == 0 and figures["worst_gap_ms"] > 300:
        return "step too large", "worst_gap_ms"
    return "pool too small", "kv_peak"


EXPECT = "a leak grows from rest to rest"  # the message must contain this
