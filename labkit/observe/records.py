"""What is noted about one request. Instants first, latencies as differences (docs/metrics.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """Instants in seconds on the load's clock; None when the instant has not come.

        arrival      the load sends the request
        admission    first time that a step includes it (this step's start)
        first_token  end of the step that samples its first token
        finish       end of the step that samples its last token

    Prefill starts at admission. `num_output_tokens` is what was really produced.
    """

    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    kind: str = ""
    session_id: str | None = None
    admission_s: float | None = None
    first_token_s: float | None = None
    finish_s: float | None = None
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    refused: str | None = None
    dropped: str | None = None

    @property
    def queue_s(self) -> float | None:
        """Admission minus arrival."""
        return None if self.admission_s is None else self.admission_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: first token minus arrival."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first, a mean over one request: (finish - first token) / (outputs - 1).
        None for a single token."""
        if self.finish_s is None or self.first_token_s is None or self.num_output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Finish minus arrival."""
        return None if self.finish_s is None else self.finish_s - self.arrival_s
