# ruff: noqa
"""Refuses when there is a free block."""

from labkit.kv import NoSpace


class MySharedBlocks:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.tables = {}
        self.num_tokens = {}

    def allocate(self, request_id, num_tokens):
        needed = -(-num_tokens // self.block_size)
        if needed > len(self.free_blocks):
            return False
        blocks = [self.free_blocks.pop() for _ in range(needed)]
        for block in blocks:
            self.refs[block] = 1
        self.tables[request_id] = blocks
        self.num_tokens[request_id] = num_tokens
        return True

    def fork(self, parent_id, child_id):
        self.tables[child_id] = list(self.tables[parent_id])
        self.num_tokens[child_id] = self.num_tokens[parent_id]
        for block in self.tables[child_id]:
            self.refs[block] += 1

    def append(self, request_id):
        table = self.tables[request_id]
        is_full = self.num_tokens[request_id] % self.block_size == 0
        must_copy = not is_full and self.refs[table[-1]] > 1
        copies = []
        if is_full or must_copy:
            if self.free_blocks:
                raise NoSpace(f"{request_id} needs a block and none is free")
            new = self.free_blocks.pop()
            self.refs[new] = 1
            if must_copy:
                shared = table.pop()
                self.refs[shared] -= 1
                copies.append((shared, new))
            table.append(new)
        self.num_tokens[request_id] += 1
        return copies

    def free(self, request_id):
        for block in self.tables.pop(request_id):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free_blocks.append(block)
        del self.num_tokens[request_id]

    def block_table(self, request_id):
        return list(self.tables[request_id])

    def ref_count(self, block):
        return self.refs[block]

    @property
    def num_free_blocks(self):
        return len(self.free_blocks)


EXPECT = "raised NoSpace (b needs a block and none is free) and 6 of 8 blocks are free"  # the message must contain this
