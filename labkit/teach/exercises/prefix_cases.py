"""Exercise 09's small cases, each aimed at one classic mistake in a prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from labkit.teach.exercises.base import Mistake, that
from labkit.teach.exercises.strip import counted
from labkit.teach.exercises.watch import because

Make = Callable[..., Any]
SIZE = 4


def directed(cls: Make) -> None:
    finding = (_finding, _keys, _demand, _counts, _after_free)
    evicting = (_free_first, _own_hits, _eviction_order, _only_keyed_idle, _refusals)
    for case in (*finding, *evicting):
        case(cls)


def _hits(
    cache: Any, name: str, tokens: Sequence[int], expected: int, why: Callable[[Any], str] | str
) -> None:
    """`why` is the sentence behind the figures, or makes it from what came back."""
    text = why if isinstance(why, str) else ""
    with because(text):
        got = cache.admit(name, list(tokens))
    if got == expected:
        return
    text = text or why(got)  # type: ignore[operator]
    raise Mistake(f"admit({name!r}, {list(tokens)}) returned {got!r} and should return {expected}: {text}")


def _refuses(cache: Any, name: str, tokens: Sequence[int], why: str) -> None:
    with because(why):
        got = cache.admit(name, list(tokens))
    that(got is None, f"admit({name!r}, {list(tokens)}) returned {got!r} and should return None: {why}")


def _finding(cls: Make) -> None:
    cache = cls(16, SIZE)
    prompt = list(range(1, 10))  # two full blocks and one token
    _hits(cache, "a", prompt, 0, "the first request finds nothing.")

    def why(got: Any) -> str:
        if got == 9:
            return "only full blocks are findable, and at least one token must be left to compute."
        if got == 0:
            return (
                "a full block is findable as soon as its request is admitted, while that request still runs."
            )
        return "an equal prompt of 9 tokens finds its two full blocks, 8 tokens."

    _hits(cache, "b", prompt, 8, why)
    shared = [list(cache.block_table(name))[:2] for name in "ab"]
    that(
        shared[0] == shared[1],
        f"a hit shares the block: the tables of a and b begin with {shared[0]} and {shared[1]}.",
    )
    cache = cls(16, SIZE)
    cache.admit("a", prompt[:8])
    _hits(
        cache, "b", prompt[:8], 4,
        "of an equal prompt of exactly two blocks one block is looked up: the last token must always be computed, so look up at "
        "most (len - 1) // block_size blocks.",
    )  # fmt: skip
    cache = cls(16, SIZE)
    cache.admit("a", prompt[:8])
    _hits(
        cache, "b", prompt, 8,
        "a has two full blocks, and both get keys. Only the lookup stops before the last token, at (len - 1) // block_size; keys "
        "are given to all len // block_size full blocks.",
    )  # fmt: skip
    cache = cls(16, SIZE)
    cache.admit("a", [1, 2, 3, 4, 5, 6])
    _hits(
        cache, "b", prompt, 4,
        "the second block of a is only partly filled (tokens 5, 6) and must not be findable.",
    )  # fmt: skip


def _keys(cls: Make) -> None:
    cache = cls(16, SIZE)
    cache.admit("a", [1, 1, 1, 1, 2, 2, 2, 2, 9])
    _hits(
        cache, "b", [2, 2, 2, 2, 1, 1, 1, 1, 9], 0,
        "b begins with tokens that a has in its SECOND block; behind another past they have other keys and values. The key of a "
        "block must contain the key of its parent, not only its own tokens.",
    )  # fmt: skip
    _hits(
        cache, "c", [1, 1, 1, 1, 3, 3, 3, 3, 2, 2, 2, 2, 9], 4,
        "c shares only its first block with a. Stop at the first block that is not found.",
    )  # fmt: skip
    cache = cls(16, SIZE)
    cache.admit("a", [1, 2, 3, 4, 9])
    for tokens, what in (
        ([4, 3, 2, 1, 9], "the same tokens in another order"),
        ([5, 5, 0, 0, 9], "the same sum"),
    ):
        _hits(
            cache, f"b{tokens[0]}", tokens, 0,
            f"its first block has {what} as that of a, and is another text. The key must contain the tokens themselves, in order: "
            "tuple(tokens), not their sum or a set.",
        )  # fmt: skip


def _demand(cls: Make) -> None:
    cache = cls(4, SIZE)
    cache.admit("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    _hits(
        cache, "b", [1, 2, 3, 4, 5, 6, 7, 8, 7], 8,
        "b shares two blocks with a and needs only one new block, and one is free. Blocks needed = blocks of the prompt less its "
        "hits.",
    )  # fmt: skip
    cache = cls(3, SIZE)
    why = "13 tokens take 4 blocks and there are 3: admit must return None"
    with because(f"{why}, before it takes any block."):
        got = cache.admit("a", [1] * 13)
    that(got is None, f"{why}; it returned {got!r}.")


def _counts(cls: Make) -> None:
    cache = cls(4, SIZE)

    def free(expected: int, why: str) -> None:
        got = cache.num_free_blocks
        that(got == expected, f"num_free_blocks is {got} and should be {expected} of 4: {why}")

    cache.admit("a", [1, 2, 3, 4, 5])
    free(2, "5 tokens take 2 blocks.")
    cache.admit("b", [1, 2, 3, 4, 6])
    free(1, "b shares one block with a and takes one.")
    cache.free("a")
    kept = "free('a') gives back its own last block only; b still holds the first (a block is idle at count zero)."
    lost = "free('a') gives its last block back, which nobody else holds."
    free(2, kept if cache.num_free_blocks > 2 else lost)
    _refuses(cache, "c", [7] * 9, "c needs 3 blocks and 2 are free; a block that b holds cannot be evicted.")
    cache.free("b")
    free(4, "an idle block with a key counts too, since it can be evicted.")
    cache.admit("a", [1, 2, 3, 4, 5])
    _refuses(
        cache, "c", [7] * 9,
        "a was admitted onto an idle block, which is held again and may not be evicted: c needs 3 blocks and 2 are free. Take a "
        "hit out of the idle order.",
    )  # fmt: skip


def _after_free(cls: Make) -> None:
    cache = cls(8, SIZE)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    cache.admit("a", prompt)
    cache.free("a")
    _hits(
        cache, "b", prompt, 8,
        "a has ended and nothing was evicted (8 blocks, 3 used): a block with a key stays findable when its request ends.",
    )  # fmt: skip


def _own_hits(cls: Make) -> None:
    cache = cls(3, SIZE)
    cache.admit("a", [1] * 4 + [2] * 4 + [3])
    cache.free("a")
    _refuses(
        cache, "b", [1] * 4 + [2] * 4 + [3] * 5,
        "b hits two idle blocks and needs two more; of 3 blocks only one is left. Its own hits cannot be evicted for it, so do not "
        "count idle hits among the blocks that can be taken.",
    )  # fmt: skip
    cache = cls(3, SIZE)
    for name, token in (("x", 1), ("y", 2)):
        cache.admit(name, [token] * 4)
        cache.free(name)
    _hits(
        cache, "b", [1] * 4 + [5] * 8, 4, "b begins like x, and needs two new blocks: one is free, one idle."
    )
    table = list(cache.block_table("b"))
    double = [block for block in table if table.count(block) > 1]
    that(
        not double,
        f"block {double[0] if double else ''} is twice in the table of b, {table}: a hit was evicted for the request itself. Take "
        "the hits out of the idle order before you take new blocks.",
    )


def _eviction_order(cls: Make) -> None:
    x, y, filler = [1] * 5, [2] * 5, [3] * 12
    cache = cls(4, SIZE)
    for name, prompt in (("x", x), ("y", y)):
        cache.admit(name, prompt)
        cache.free(name)
    cache.admit("filler", filler)  # 2 free blocks and one of the two idle ones
    cache.free("filler")
    _hits(
        cache, "y", y, 4,
        "one idle block was evicted for the filler. x was released before y, so it is that of x: the one released LONGEST ago "
        "goes first (LRU).",
    )  # fmt: skip
    cache = cls(4, SIZE)
    for name, prompt in (("x", x), ("y", y), ("x", x)):
        cache.admit(name, prompt)
        cache.free(name)
    cache.admit("filler", filler)
    cache.free("filler")
    _hits(
        cache, "x", x, 4,
        "x was cached first but used last, so the block of y goes: order by last use, not by when the block was cached (that "
        "would be FIFO).",
    )  # fmt: skip
    cache = cls(5, SIZE)
    long = [1] * 4 + [2] * 4 + [3] * 4 + [4]
    cache.admit("long", long)
    cache.free("long")
    cache.admit("filler", [9] * 12)  # 2 free blocks and one of the three idle ones
    cache.free("filler")

    def why(got: Any) -> str:
        if got == 12:
            return "one of its three blocks was evicted and is still found: forget the key of a block when you evict it."
        return (
            "one block of a chain of three was evicted, and it should be its END. Release a table from its last block to its "
            "first, so that the beginning, which more requests share, counts as used last."
        )

    _hits(cache, "long", long, 8, why)
    cache = cls(3, SIZE)
    p = [1, 2, 3, 4, 5, 6, 7, 8]
    cache.admit("a", p)
    cache.free("a")
    cache.admit("x", [9])
    _hits(cache, "b", p, 4, "one block is looked up, since the last token must be computed.")
    cache.free("x")
    cache.free("b")
    _hits(
        cache, "c", [*p, 9], 8,
        "b computed its second block anew, and the old block with that key was evicted to make room for it. So the new block gets "
        "the key: look whether a key is taken AFTER new blocks were taken, not before.",
    )  # fmt: skip


def _free_first(cls: Make) -> None:
    x, y = [1] * 5, [2] * 12
    cache = cls(4, SIZE)
    cache.admit("x", x)
    cache.free("x")
    cache.admit("y", y)
    cache.free("y")
    _hits(
        cache, "x", x, 4,
        "when y came 3 blocks were free and it needed 3, so nothing had to be evicted: take free blocks before idle ones.",
    )  # fmt: skip


def _only_keyed_idle(cls: Make) -> None:
    x = [1] * 5
    cache = cls(3, SIZE)
    cache.admit("x", [1] * 4)
    cache.free("x")
    cache.admit("y", [2])
    cache.free("y")
    cache.admit("z", [3] * 8)
    cache.free("z")
    _hits(
        cache, "x", x, 4,
        "the block of y was only partly filled, so it has no key and is free at once when y ends: with it 2 blocks were free for "
        "z, and the idle block of x stays. Only blocks with a key belong in the idle order.",
    )  # fmt: skip
    cache = cls(4, SIZE)
    cache.admit("x", [1] * 4)
    cache.admit("u", [2] * 4)
    cache.admit("v", [2] * 4)  # computes u's block anew: the key is there already, so this block has none
    for name in "xvu":
        cache.free(name)
    cache.admit("z", [3] * 8)
    cache.free("z")
    _hits(
        cache, "x", x, 4,
        "v's block has the same tokens as that of u, which keeps the key; a block that gets no key is free at once when it is "
        "released. So 2 blocks were free for z, and the idle block of x stays.",
    )  # fmt: skip


def _refusals(cls: Make) -> None:
    x, y = [1] * 5, [2] * 5
    cache = cls(4, SIZE)
    for name, prompt in (("x", x), ("y", y)):
        cache.admit(name, prompt)
        cache.free(name)
    _refuses(cache, "r", [1] * 4 + [5] * 16, "it hits one block, and needs four more of the three others.")
    got = cache.num_free_blocks
    that(got == 4, f"a refused admit changed num_free_blocks to {got}, {counted(4, 'blocks')} can be taken.")
    cache.admit("filler", [3] * 12)
    cache.free("filler")
    _hits(
        cache, "y", y, 4,
        "a refused admit must change nothing, not even the order of eviction: x was released before y and is evicted first, though "
        "a request that was refused looked its block up.",
    )  # fmt: skip
