# ruff: noqa
"""-1 in place of None when there is no room."""


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
        return -1

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


EXPECT = "must return None; it returned -1"  # the message must contain this
