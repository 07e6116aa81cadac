# ruff: noqa
"""Makes every answer one token long."""

from labkit.serving.order import QueueOrder


class MyPolicy(QueueOrder):
    def key(self, request, space):
        request.spec.num_output_tokens = request.target_output_tokens = 1
        return request.arrival


EXPECT = "mutates the trace"  # the message must contain this
