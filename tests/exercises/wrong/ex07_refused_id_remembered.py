# ruff: noqa
"""A refused allocate leaves its id behind, and the id cannot come again."""

class MyBlockTable:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.tables = {}
        self.num_tokens = {}

    def allocate(self, request_id, num_tokens):
        needed = -(-num_tokens // self.block_size)
        if request_id in self.num_tokens:
            return False
        self.num_tokens[request_id] = num_tokens
        if needed > len(self.free_blocks):
            return False
        self.tables[request_id] = [self.free_blocks.pop() for _ in range(needed)]
        self.num_tokens[request_id] = num_tokens
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
        return list(self.tables[request_id])

    def slot(self, request_id, position):
        block = self.tables[request_id][position // self.block_size]
        return block * self.block_size + position % self.block_size

    @property
    def num_free_blocks(self):
        return len(self.free_blocks)


EXPECT = "allocate('b', 8) returned False and must return True: after the refusal 2 blocks are still free"  # the message must contain this
