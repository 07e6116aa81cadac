"""How many requests fit. Start at `planner.make_plan`; `ledger`, `whatif`, `on_trace`, `lifetime` and `check` build on it."""
