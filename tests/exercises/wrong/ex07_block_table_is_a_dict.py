# ruff: noqa
"""The dict of tables is called like the method."""

class MyBlockTable:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.block_table = {}
        self.num_tokens = {}

    def allocate(self, request_id, num_tokens):
        needed = -(-num_tokens // self.block_size)
        if needed > len(self.free_blocks):
            return False
        self.block_table[request_id] = [self.free_blocks.pop() for _ in range(needed)]
        self.num_tokens[request_id] = num_tokens
        return True

    def append(self, request_id):
        if self.num_tokens[request_id] % self.block_size == 0:  # every block is full
            if not self.free_blocks:
                return False
            self.block_table[request_id].append(self.free_blocks.pop())
        self.num_tokens[request_id] += 1
        return True

    def free(self, request_id):
        self.free_blocks.extend(self.block_table.pop(request_id))
        del self.num_tokens[request_id]

    def block_table(self, request_id):
        return list(self.block_table[request_id])

    def slot(self, request_id, position):
        block = self.block_table[request_id][position // self.block_size]
        return block * self.block_size + position % self.block_size

    @property
    def num_free_blocks(self):
        return len(self.free_blocks)


EXPECT = "`block_table` is a dict on your object: an attribute self.block_table hides the method block_table; rename the attribute"  # the message must contain this
PICTURE = False  # said, not drawn
