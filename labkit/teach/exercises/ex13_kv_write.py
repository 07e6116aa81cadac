"""Exercise 13: a Triton kernel that writes keys and values by slot mapping. Checked under Triton's interpreter against the
lab's `kv_write_reference`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.memory.base import Span
from labkit.teach.exercises.base import Exercise, Mistake, Picture

GUARD = 32  # slots before and after the cache that nobody may touch


def run(my_kv_write: Callable[..., None]) -> str:
    #        tokens, heads, head_dim, block_size, blocks, padding, strided
    cases = [
        ("one token in slot 0", 1, 2, 16, 4, 3, 0, False),
        ("five tokens in scattered slots", 5, 2, 16, 4, 4, 0, False),
        ("padding: some slots are -1", 6, 2, 16, 4, 4, 3, False),
        ("rows of key and value are slices of one qkv tensor", 5, 2, 16, 4, 4, 0, True),
        ("3 heads of 16: a row of 48 elements, not a power of two", 5, 3, 16, 4, 4, 1, True),
        ("blocks of one token", 7, 1, 32, 1, 12, 2, False),
        ("many tokens", 40, 2, 16, 16, 5, 4, True),
    ]
    for seed, case in enumerate(cases):
        _check(my_kv_write, seed, *case)
    return f"{len(cases)} writes leave exactly the bytes that the lab's reference leaves, and touch no other slot."


def _check(
    my_kv_write: Callable[..., None],
    seed: int,
    title: str,
    num_tokens: int,
    num_heads: int,
    head_dim: int,
    block_size: int,
    num_blocks: int,
    num_padding: int,
    strided: bool,
) -> None:
    import torch

    from labkit.kernels.kv_write import kv_write_reference

    generator = torch.Generator().manual_seed(seed)
    row, num_slots = num_heads * head_dim, num_blocks * block_size
    width = 4 * row if strided else row
    key, value = (
        torch.randn(num_tokens, width, generator=generator)[:, part * row if strided else 0 :][:, :row].view(
            num_tokens, num_heads, head_dim
        )
        for part in (1, 2)
    )
    slots = torch.randperm(num_slots, generator=generator)[:num_tokens]
    if num_tokens == 1:
        slots[:] = 0
    slots[torch.randperm(num_tokens, generator=generator)[:num_padding]] = -1
    shape = (num_blocks, block_size, num_heads, head_dim)
    whole = [torch.full((num_slots + 2 * GUARD, row), float("nan")) for _ in range(2)]
    caches = [w[GUARD : GUARD + num_slots].view(shape) for w in whole]
    expected = [cache.clone() for cache in caches]
    kv_write_reference(key, value, expected[0], expected[1], slots)
    my_kv_write(key, value, caches[0], caches[1], slots)
    for name, got, want, around in zip(("k_cache", "v_cache"), caches, expected, whole):
        flat, right = got.view(num_slots, row), want.view(num_slots, row)
        same = ((flat == right) | (flat.isnan() & right.isnan())).all(1)
        guards = torch.cat([around[:GUARD], around[GUARD + num_slots :]]).isnan().all(1)
        if bool(same.all()) and bool(guards.all()):
            continue
        why = _why(name, key, value, flat, right, slots, same, guards)
        raise Mistake(
            f"{name} is wrong for '{title}': {why}. ({num_tokens} tokens, {num_heads} heads of {head_dim}, {num_blocks} blocks "
            f"of {block_size}, slot_mapping {slots[:8].tolist()}{'…' if num_tokens > 8 else ''})",
            _picture(around, right, name),
        )


def _why(name: str, key: Any, value: Any, flat: Any, right: Any, slots: Any, same: Any, guards: Any) -> str:
    import torch

    rows = (key if name == "k_cache" else value).reshape(len(key), -1)
    other = (value if name == "k_cache" else key).reshape(len(key), -1)
    written, asked = _written(flat), _written(right)
    wrong = (~same).nonzero().flatten()
    if bool((slots < 0).any()) and (not bool(guards[:GUARD].all()) or bool((written & ~asked).any())):
        stray = int((slots < 0).sum())
        if _only_padding(flat, right, rows, slots, guards):
            return f"{stray} tokens have slot -1 (padding) and must not be written at all; they were (mask the store)"
    if not bool(written.any()) and bool(guards.all()):
        return "nothing was written"
    num = len(rows)
    in_order = flat[:num] if num <= len(flat) else flat
    if bool((in_order == rows[: len(in_order)]).all()):
        return "token i was written to slot i: load the slot of the token from slot_mapping"
    first = int(wrong[0]) if len(wrong) else -1
    owner = int((slots == first).nonzero()[0]) if first >= 0 and bool((slots == first).any()) else -1
    if owner >= 0 and bool((flat[first] == other[owner]).all()):
        return f"slot {first} has the {'value' if name == 'k_cache' else 'key'} of its token: keys go to k_cache, values to v_cache"
    if not bool(guards.all()) or bool((written & ~asked).any()):
        return "slots that no token asked for were written: where the row is not a power of two, mask the elements behind its end"
    if owner >= 0:
        start = (key if name == "k_cache" else value).storage_offset()
        base = torch.as_strided(key if name == "k_cache" else value, (1,), (1,), start)
        storage = base.untyped_storage()
        flat_storage = torch.tensor([], dtype=torch.float32).set_(storage)
        at = start + owner * rows.shape[1]
        if not key.is_contiguous() and bool((flat[first] == flat_storage[at : at + rows.shape[1]]).all()):
            return (
                f"slot {first} has what lies {owner} x row size behind the first row: tokens are stride_key (stride_value) "
                "elements apart, since key and value may be slices of a wider tensor"
            )
        part = int((flat[first] == right[first]).sum())
        if part:
            return f"slot {first} has {part} of its {rows.shape[1]} elements: a program must write the whole row of its token"
        return f"slot {first} belongs to token {owner} and does not have its row"
    return f"slot {first} was changed and belongs to no token"


def _only_padding(flat: Any, right: Any, rows: Any, slots: Any, guards: Any) -> bool:
    """All that is wrong is rows of padding tokens: in front of the cache, or in its last slot."""
    asked = _written(right)
    if not bool(((flat == right) | ~asked[:, None]).all()):
        return False
    stray = flat[_written(flat) & ~asked]
    padding = rows[slots < 0]
    in_cache = all(bool((padding == row).all(1).any()) for row in stray)
    return in_cache and (len(stray) > 0 or not bool(guards[GUARD - 1]))


def _written(flat: Any) -> Any:
    return ~flat.isnan().all(1)


def _picture(around: Any, right: Any, name: str) -> Picture:
    """The slots, with one before and one behind the cache: right ones, wrong ones, never written."""
    import torch

    edge = torch.full((1, right.shape[1]), float("nan"))
    rows, want = around[GUARD - 1 : GUARD + len(right) + 1], torch.cat([edge, right, edge])
    spans = []
    for at, (row, expected) in enumerate(zip(rows, want)):
        same = bool(((row == expected) | (row.isnan() & expected.isnan())).all())
        asked, got = not bool(expected.isnan().all()), not bool(row.isnan().all())
        if same and not asked:
            spans.append(Span(at, 1, "free"))
        else:
            wrong = "should not be written" if not asked else "wrong row" if got else "not written"
            spans.append(Span(at, 1, "allocated", 1, "", "request" if same else wrong))
    return Picture(
        "layout",
        f"slots of {name}; the first is slot -1, the last is behind the cache",
        spans,
        {"unit": "slots"},
    )


EXERCISE = Exercise(
    "13",
    "kv_write",
    "Triton: write keys and values by slot mapping",
    ("my_kv_write",),
    (
        "One program a token: token = tl.program_id(0). Load its slot; a slot below 0 is padding.",
        "Elements of a row: offs = tl.arange(0, WIDTH), with mask = offs < ROW, because tl.arange needs a power of two.",
        "Read key + token * stride_key + offs; write k_cache + slot * ROW + offs (a slot is block * block_size + offset, and "
        "the cache is contiguous, so slots lie ROW elements apart).",
        "Both stores need mask=(offs < ROW) & (slot >= 0).",
    ),
    run,
    time_s=10.0,
    worker=True,
)
