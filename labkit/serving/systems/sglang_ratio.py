"""How much of what running requests may still generate is held back for them
(`scheduler_components/new_token_ratio_tracker.py`)."""

from __future__ import annotations

from labkit.serving.systems.sglang_memory import RETRACT_DECODE_STEPS

INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
DECAY_STEPS = 600


class NewTokenRatio:
    """Starts high, sinks a little with each decode step that needed no retraction, and jumps up after one."""

    def __init__(self, schedule_conservativeness: float):
        self.initial = min(INIT_NEW_TOKEN_RATIO * schedule_conservativeness, 1.0)
        self.least = min(self.initial * MIN_NEW_TOKEN_RATIO_FACTOR, 1.0)
        self.decay = (self.initial - self.least) / DECAY_STEPS
        self.current = self.initial

    def decay_step(self) -> None:
        """One step of decoding without trouble."""
        self.current = max(self.current - self.decay, self.least)

    def reset(self) -> None:
        """Back to the initial ratio."""
        self.current = self.initial

    def after_retraction(self, num_outputs: int, num_max_new_tokens: int, num_kept: int) -> None:
        """The share that the kept requests have generated, and room for some steps more."""
        expected = (num_outputs + RETRACT_DECODE_STEPS * num_kept) / (num_max_new_tokens + 1)
        self.current = min(1.0, expected)
