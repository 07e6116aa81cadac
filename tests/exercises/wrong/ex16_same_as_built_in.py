# ruff: noqa
"""First come, first served again."""

from labkit.serving.order import QueueOrder


class MyPolicy(QueueOrder):
    def key(self, request, space):
        return request.arrival


EXPECT = "win at least"  # the message must contain this
