# ruff: noqa
"""The list of free spans is called like the method that returns it."""


class MyFirstFit:
    def __init__(self, capacity):
        self.free_spans = [(0, capacity)]
        self.size_of = {}

    def malloc(self, size):
        for index, (offset, length) in enumerate(self.free_spans):
            if length >= size:
                rest = (offset + size, length - size)
                self.free_spans[index : index + 1] = [rest] if length > size else []
                self.size_of[offset] = size
                return offset
        return None

    def free(self, offset):
        start, end = offset, offset + self.size_of.pop(offset)
        kept = []
        for at, length in self.free_spans:
            if at == end:  # the right neighbour is free
                end = at + length
            elif at + length == start:  # the left neighbour is free
                start = at
            else:
                kept.append((at, length))
        self.free_spans = sorted([*kept, (start, end - start)])

    def free_spans(self):
        return list(self.free_spans)


EXPECT = "`free_spans` is a list on your object: an attribute self.free_spans hides the method"  # the message must contain this
PICTURE = False  # said, not drawn
