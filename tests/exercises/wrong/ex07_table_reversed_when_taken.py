# ruff: noqa
"""Blocks taken at once stand in the wrong order in the table."""

class MyBlockTable:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.tables = {}
        self.first = {}
        self.num_tokens = {}

    def allocate(self, request_id, num_tokens):
        needed = -(-num_tokens // self.block_size)
        if needed > len(self.free_blocks):
            return False
        self.tables[request_id] = [self.free_blocks.pop() for _ in range(needed)]
        self.num_tokens[request_id] = num_tokens
        self.first[request_id] = needed
        return True

    def append(self, request_id):
        if self.num_tokens[request_id] % self.block_size == 0:  # every block is full
            if not self.free_blocks:
                return False
            self.tables[request_id].append(self.free_blocks.pop())
        self.num_tokens[request_id] += 1
        return True

    def free(self, request_id):
        self.free_blocks.extend(self.tables.pop(request_id))
        del self.num_tokens[request_id]

    def block_table(self, request_id):
        first, table = self.first[request_id], self.tables[request_id]
        return table[:first][::-1] + table[first:]

    def slot(self, request_id, position):
        block = self.tables[request_id][position // self.block_size]
        return block * self.block_size + position % self.block_size

    @property
    def num_free_blocks(self):
        return len(self.free_blocks)


EXPECT = "the same blocks in another order"  # the message must contain this
