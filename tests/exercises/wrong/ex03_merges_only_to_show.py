# ruff: noqa
"""Merges in free_spans() only: malloc sees the spans unmerged."""


class MyFirstFit:
    def __init__(self, capacity):
        self.spans = [(0, capacity)]
        self.size_of = {}

    def malloc(self, size):
        for index, (offset, length) in enumerate(self.spans):
            if length >= size:
                rest = (offset + size, length - size)
                self.spans[index : index + 1] = [rest] if length > size else []
                self.size_of[offset] = size
                return offset
        return None

    def free(self, offset):
        self.spans = sorted([*self.spans, (offset, self.size_of.pop(offset))])

    def free_spans(self):
        merged = []
        for at, length in sorted(self.spans):
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((at, length))
        return merged


EXPECT = "`free` itself must merge. A merge in free_spans() comes too late"  # the message must contain this
