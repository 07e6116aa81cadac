# ruff: noqa
"""Looks at how long the answer will be."""

from labkit.serving.order import QueueOrder


class MyPolicy(QueueOrder):
    def key(self, request, space):
        return request.spec.num_prompt_tokens + 6 * request.spec.num_output_tokens


EXPECT = "reads the future"  # the message must contain this
