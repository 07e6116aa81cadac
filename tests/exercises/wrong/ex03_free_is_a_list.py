# ruff: noqa
"""The attribute for the free spans is called like the method."""


class MyFirstFit:
    def __init__(self, capacity):
        self.free = [(0, capacity)]
        self.size_of = {}

    def malloc(self, size):
        for index, (offset, length) in enumerate(self.free):
            if length >= size:
                rest = (offset + size, length - size)
                self.free[index : index + 1] = [rest] if length > size else []
                self.size_of[offset] = size
                return offset
        return None

    def free(self, offset):
        start, end = offset, offset + self.size_of.pop(offset)
        kept = []
        for at, length in self.free:
            if at == end:  # the right neighbour is free
                end = at + length
            elif at + length == start:  # the left neighbour is free
                start = at
            else:
                kept.append((at, length))
        self.free = sorted([*kept, (start, end - start)])

    def free_spans(self):
        return list(self.free)


EXPECT = "an attribute self.free hides the method free; rename the attribute"  # the message must contain this
PICTURE = False  # said, not drawn
