# ruff: noqa
"""Gives keys only to the blocks that a lookup would look at."""

from collections import OrderedDict


class MyPrefixCache:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.refs = [0] * num_blocks
        self.block_of = {}  # key -> block
        self.key_of = {}  # block -> key
        self.idle = OrderedDict()  # blocks with a key that no table names, oldest first
        self.tables = {}

    def admit(self, request_id, token_ids):
        size = self.block_size
        keys, parent = [], None
        for start in range(0, len(token_ids) - size + 1, size):
            parent = hash((parent, tuple(token_ids[start : start + size])))
            keys.append(parent)
        hits = []
        for key in keys[: (len(token_ids) - 1) // size]:
            if key not in self.block_of:
                break
            hits.append(self.block_of[key])
        needed = -(-len(token_ids) // size) - len(hits)
        idle_hits = sum(1 for block in hits if self.refs[block] == 0)
        if needed > len(self.free_blocks) + len(self.idle) - idle_hits:
            return None
        for block in hits:
            self.idle.pop(block, None)
            self.refs[block] += 1
        table = list(hits)
        for _ in range(needed):
            if self.free_blocks:
                block = self.free_blocks.pop()
            else:
                block, _ = self.idle.popitem(last=False)
                del self.block_of[self.key_of.pop(block)]
            self.refs[block] = 1
            table.append(block)
        for key, block in list(zip(keys, table))[len(hits) : (len(token_ids) - 1) // size]:
            if key not in self.block_of:
                self.block_of[key] = block
                self.key_of[block] = key
        self.tables[request_id] = table
        return len(hits) * size

    def free(self, request_id):
        for block in reversed(self.tables.pop(request_id)):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                if block in self.key_of:
                    self.idle[block] = True
                else:
                    self.free_blocks.append(block)

    def block_table(self, request_id):
        return list(self.tables[request_id])

    @property
    def num_free_blocks(self):
        return len(self.free_blocks) + len(self.idle)


EXPECT = "keys are given to all len // block_size full blocks"  # the message must contain this
