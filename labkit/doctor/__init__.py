"""From evidence to a ranked diagnosis. Start at `diagnose.diagnose_paths`; rules are rows of `rules`, numbers of `signals`."""
