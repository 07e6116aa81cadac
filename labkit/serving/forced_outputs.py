"""Output tokens from the load, for executors that have no model: then a prefix cache sees the same content as it does
behind a `TensorExecutor` that was told to follow the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.errors import LabError
from labkit.serving.base import Executor, StepPlan, StepResult


class ForcedOutputs(Executor):
    """Wraps `inner`: every chunk that samples gets the next token of `outputs[request_id]`.

    Needs `plan.chunks` (a scheduler built with `record_chunks=True`); raises `LabError` without them.
    """

    def __init__(self, inner: Executor, outputs: Mapping[str, Sequence[int]]):
        self.inner, self.outputs = inner, outputs
        self._num_given: dict[str, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.chunks is None:
            raise LabError("ForcedOutputs needs plan.chunks: build the scheduler with record_chunks=True")
        result = self.inner.execute(plan)
        tokens: dict[str, int] = {}
        for chunk in plan.chunks:
            if chunk.samples:
                index = self._num_given.get(chunk.request_id, 0)
                tokens[chunk.request_id] = self.outputs[chunk.request_id][index]
                self._num_given[chunk.request_id] = index + 1
        return StepResult(result.duration_s, tokens)
