"""What a run has to say. Start at `recorder.make_recorder`; metrics by name in `metrics` and `measure`."""
