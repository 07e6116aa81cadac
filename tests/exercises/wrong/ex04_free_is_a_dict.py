# ruff: noqa
"""The dict of free blocks is called like the method."""

class MyBuddy:
    def __init__(self, capacity, min_block):
        self.capacity, self.min_block = capacity, min_block
        self.free_blocks = {capacity: [0]}
        self.size_of = {}

    def malloc(self, size):
        wanted = 1 << (max(size, self.min_block) - 1).bit_length()
        block = wanted
        while not self.free_blocks.get(block):
            block *= 2
            if block > self.capacity:
                return None
        offset = min(self.free_blocks[block])
        self.free_blocks[block].remove(offset)
        while block > wanted:
            block //= 2
            self.free_blocks.setdefault(block, []).append(offset + block)
        self.size_of[offset] = wanted
        return offset

    def free(self, offset):
        size = self.size_of.pop(offset)
        while size < self.capacity:
            buddy = offset ^ size
            if buddy not in self.free_blocks.get(size, []):
                break
            self.free_blocks[size].remove(buddy)
            offset = min(offset, buddy)
            size *= 2
        self.free_blocks.setdefault(size, []).append(offset)

    def free_blocks(self):
        return {size: sorted(offsets) for size, offsets in self.free_blocks.items() if offsets}


EXPECT = "an attribute self.free_blocks hides the method free_blocks; rename the attribute"  # the message must contain this
PICTURE = False  # said, not drawn
