"""Entries for the leaderboards: honest ones, cheats, and ones that break."""

import os
import random
import sys

from labkit.kv.eviction import EvictionQueue
from labkit.memory.base import Allocation
from labkit.memory.best_fit import BestFitAllocator
from labkit.memory.first_fit import FirstFitAllocator
from labkit.serving.admission import BlockAdmission
from labkit.serving.lab import LabScheduler
from labkit.serving.order import QueueOrder

# --- allocators -------------------------------------------------------------------------------------------------------


class HonestFit(BestFitAllocator):
    name = "honest"


class Overlaps(FirstFitAllocator):
    """Hands the same bytes out twice."""

    name = "overlaps"

    def malloc(self, size, *, tag="", lifetime=""):
        return Allocation(0, size, size, tag, lifetime)

    def try_grow(self, allocation, size):
        return False

    def free(self, allocation):
        pass


class TooShort(FirstFitAllocator):
    name = "too short"

    def malloc(self, size, *, tag="", lifetime=""):
        got = super().malloc(size)
        got.size //= 2
        return got

    def free(self, allocation):
        allocation.size *= 2
        super().free(allocation)


class BeyondTheEnd(FirstFitAllocator):
    name = "beyond"

    def __init__(self, capacity_bytes):
        super().__init__(2 * capacity_bytes)


class SeesWhatComes(FirstFitAllocator):
    """Looks into its caller's frames for the ops and takes the high end for what lives long."""

    name = "sees"

    def choose(self, size):
        frame = sys._getframe()
        while frame is not None and "trace" not in frame.f_locals:
            frame = frame.f_back
        ops, at = frame.f_locals["trace"].ops, frame.f_locals["index"]
        number = frame.f_locals["number"]
        lives = next((i for i in range(at, len(ops)) if ops[i][:2] == ("free", number)), len(ops)) - at
        fits = [o for o, s in self.free_spans.size_at.items() if s >= size]
        return max(fits) if lives > 20 else min(fits)


class Coin(FirstFitAllocator):
    name = "coin"

    def choose(self, size):
        return random.choice([o for o, s in self.free_spans.size_at.items() if s >= size])


class NoAllocator:
    pass


# --- schedulers -------------------------------------------------------------------------------------------------------


class ShortFirst(QueueOrder):
    def key(self, request, space):
        return request.spec.num_prompt_tokens + 2 * request.arrival_step


class TenPercent(BlockAdmission):
    def __init__(self):
        super().__init__(headroom=0.1)


class Whole(LabScheduler):
    def __init__(self, kv):
        super().__init__(kv, max_num_seqs=32)


class KnowsTheAnswer(QueueOrder):
    def key(self, request, space):
        return request.spec.num_prompt_tokens + 6 * request.spec.num_output_tokens


class ShortensTheTrace(QueueOrder):
    def key(self, request, space):
        request.spec.num_output_tokens = request.target_output_tokens = 1
        return request.arrival


class StealsBlocks(QueueOrder):
    def key(self, request, space):
        pool = space.kv.pool
        for block, count in enumerate(pool.refs):
            if count:
                pool.refs[block] = 0
                pool._free.append(block)
                break
        return request.arrival


class InventsTokens(QueueOrder):
    """Says that everything was computed already."""

    def key(self, request, space):
        request.num_output_tokens = request.target_output_tokens - 1
        return request.arrival


class Dice(QueueOrder):
    def key(self, request, space):
        return random.random()


class Loops(QueueOrder):
    def key(self, request, space):
        while True:
            pass


class Exits(QueueOrder):
    def key(self, request, space):
        os._exit(3)


class Eats(QueueOrder):
    def key(self, request, space):
        self.much = bytearray(10 << 30)
        return 0


class Breaks(QueueOrder):
    def key(self, request, space):
        return request.nothing


class NoKey(QueueOrder):
    pass


class ForgetsSuper(QueueOrder):
    def __init__(self):
        self.weight = 2

    def key(self, request, space):
        return self.weight * request.arrival


class ReturnsNothing(QueueOrder):
    def key(self, request, space):
        request.arrival + 1


class ReturnsTuple(QueueOrder):
    def key(self, request, space):
        return (request.arrival,)


class OtherArguments(QueueOrder):
    def key(self, request):
        return request.arrival


class AsksForMore(ShortFirst):
    def __init__(self, weight):
        super().__init__()


class NoneLater(QueueOrder):
    def key(self, request, space):
        return request.arrival if request.arrival < 10 else None


# --- eviction ---------------------------------------------------------------------------------------------------------


class NewestFirst(EvictionQueue):
    name = "newest first"

    def key(self, entry):
        return (-entry.last_used,)


class WrongBlock(EvictionQueue):
    """Gives away a block, and the same one again."""

    name = "wrong block"

    def key(self, entry):
        return (entry.last_used,)

    def pop(self, now_s):
        entry = super().pop(now_s)
        if entry is not None:
            self.add(entry)
        return entry


class EvictsNothing(EvictionQueue):
    def key(self, entry):
        entry.last_used + 1


class NoEvictionKey(EvictionQueue):
    pass
