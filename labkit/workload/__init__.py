"""Loads: the lab's own format, public traces, synthetic and resampled loads, sessions. Start at `traces.load_trace`."""
