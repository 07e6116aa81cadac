# ruff: noqa
"""Serves the longest prompts first."""

from labkit.serving.order import QueueOrder


class MyPolicy(QueueOrder):
    def key(self, request, space):
        return -request.spec.num_prompt_tokens


EXPECT = "win at least"  # the message must contain this
