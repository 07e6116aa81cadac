# ruff: noqa
"""Takes the lowest of all free blocks that are large enough, not of the smallest such size."""

class MyBuddy:
    def __init__(self, capacity, min_block):
        self.capacity, self.min_block = capacity, min_block
        self.lists = {capacity: [0]}
        self.size_of = {}

    def malloc(self, size):
        wanted = 1 << (max(size, self.min_block) - 1).bit_length()
        block = wanted
        while not self.lists.get(block):
            block *= 2
            if block > self.capacity:
                return None
        block, offset = min(((b, o) for b, os in self.lists.items() if b >= wanted for o in os), key=lambda x: x[1])
        self.lists[block].remove(offset)
        while block > wanted:
            block //= 2
            self.lists.setdefault(block, []).append(offset + block)
        self.size_of[offset] = wanted
        return offset

    def free(self, offset):
        size = self.size_of.pop(offset)
        while size < self.capacity:
            buddy = offset ^ size
            if buddy not in self.lists.get(size, []):
                break
            self.lists[size].remove(buddy)
            offset = min(offset, buddy)
            size *= 2
        self.lists.setdefault(size, []).append(offset)

    def free_blocks(self):
        return {size: sorted(offsets) for size, offsets in self.lists.items() if offsets}


EXPECT = "Calls that show it"  # the message must contain this
