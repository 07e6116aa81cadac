# ruff: noqa
"""Throws dice."""

from labkit.serving.order import QueueOrder


class MyPolicy(QueueOrder):
    def key(self, request, space):
        return __import__("random").random()


EXPECT = "is not deterministic"  # the message must contain this
