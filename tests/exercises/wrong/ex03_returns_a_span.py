# ruff: noqa
"""malloc returns the span, not its offset."""


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
                return (offset, size)
        return None

    def free(self, offset):
        start, end = offset, offset + self.size_of.pop(offset)
        kept = []
        for at, length in self.spans:
            if at == end:  # the right neighbour is free
                end = at + length
            elif at + length == start:  # the left neighbour is free
                start = at
            else:
                kept.append((at, length))
        self.spans = sorted([*kept, (start, end - start)])

    def free_spans(self):
        return list(self.spans)


EXPECT = "malloc(300) returned (0, 300): it must be an int, the offset, or None"  # the message must contain this
