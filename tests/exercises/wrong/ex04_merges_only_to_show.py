# ruff: noqa
"""Merges in free_blocks() only."""

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
        offset = min(self.lists[block])
        self.lists[block].remove(offset)
        while block > wanted:
            block //= 2
            self.lists.setdefault(block, []).append(offset + block)
        self.size_of[offset] = wanted
        return offset

    def free(self, offset):
        size = self.size_of.pop(offset)
        self.lists.setdefault(size, []).append(offset)

    def free_blocks(self):
        merged, size = {}, self.min_block
        while size <= self.capacity:
            mine = set(self.lists.get(size, [])) | set(merged.get(size, []))
            for offset in sorted(mine):
                if offset in mine and offset ^ size in mine and size < self.capacity:
                    mine -= {offset, offset ^ size}
                    merged.setdefault(size * 2, []).append(min(offset, offset ^ size))
            merged[size] = sorted(mine)
            size *= 2
        return {size: offsets for size, offsets in merged.items() if offsets}
        return {size: sorted(offsets) for size, offsets in self.lists.items() if offsets}


EXPECT = "`free` itself must merge. A merge in free_blocks() comes too late"  # the message must contain this
