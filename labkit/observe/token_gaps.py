"""Inter-token gaps of a whole run, without a list of tokens.

A decoding request gets one token in every step that decodes, so its gaps are differences between ends of such steps.
Keeping "from decode step a to decode step b" for each uninterrupted stretch is enough: counting how many stretches cover
a step gives how often that step's gap occurs.
"""

from __future__ import annotations

import numpy as np


class TokenGaps:
    """ITL of all requests pooled: every gap between two neighbouring tokens of one request counts once.

    A stretch that has fewer tokens than decode steps (a request that stalled while others decoded) is placed at its
    end, and the rest of the time counts as one gap.
    """

    def __init__(self) -> None:
        #: ends of the steps that advance decoding requests, in order
        self.ends: list[float] = []
        self._open: dict[
            str, tuple[float, int, int]
        ] = {}  # id -> last token's time, decode steps then, tokens then
        self._from: list[int] = []
        self._to: list[int] = []
        self._single: list[float] = []

    def decode_step(self, end_s: float) -> None:
        """A step that advances decoding requests ended."""
        self.ends.append(end_s)

    def first_token(self, request_id: str, end_s: float) -> None:
        """The request's first token came at `end_s`, in the step that ends now."""
        self._open[request_id] = (end_s, len(self.ends), 1)

    def interrupted(self, request_id: str, num_tokens: int) -> None:
        """Preempted before the current step decoded, with `num_tokens` tokens so far."""
        self._close(request_id, num_tokens, keep=True)

    def finished(self, request_id: str, num_tokens: int) -> None:
        """The request ended after `num_tokens` tokens."""
        self._close(request_id, num_tokens, keep=False)

    def _close(self, request_id: str, num_tokens: int, keep: bool) -> None:
        state = self._open.pop(request_id, None)
        if state is None:
            return
        last_s, since, had = state
        num_new, stop = num_tokens - had, len(self.ends)
        if num_new > 0 and stop:
            start = max(stop - num_new, since, 0)
            self._single.append(self.ends[start] - last_s)
            if stop - start > 1:
                self._from.append(start + 1)
                self._to.append(stop)
            last_s = self.ends[stop - 1]
        if keep:
            self._open[request_id] = (last_s, stop, max(had, num_tokens))

    def weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """`(gaps_s, counts)`, one entry a step and one for each first gap of a stretch."""
        ends = np.asarray(self.ends)
        covered = np.zeros(len(ends) + 1, dtype=np.int64)
        np.add.at(covered, self._from, 1)
        np.add.at(covered, self._to, -1)
        counts = np.cumsum(covered)[:-1]
        gaps = np.diff(ends, prepend=ends[:1])
        single = np.asarray(self._single)
        return np.concatenate([gaps, single]), np.concatenate([counts, np.ones(len(single), dtype=np.int64)])
