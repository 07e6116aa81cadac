# ruff: noqa
"""A full pool means that it is too small."""


def my_diagnosis(figures):
    if figures["kv_peak"] > 0.95:
        return "pool too small", "kv_peak"
    if figures["kv_at_rest_growth"] > 0.1:
        return "leak", "kv_at_rest_growth"
    if figures["free_while_waiting"] > 0.5 and figures["mean_waiting"] > 1:
        return "admission limit", "free_while_waiting"
    return "step too large", "worst_gap_ms"


EXPECT = "is not 'pool too small'"  # the message must contain this
