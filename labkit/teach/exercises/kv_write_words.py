"""Exercise 13's cases, and what a wrong cache says about the kernel that wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.teach.exercises.kernel_watch import Accesses
from labkit.teach.exercises.strip import counted

GUARD = 32  # slots before and after the cache that nobody may touch


@dataclass(frozen=True)
class Shape:
    """`key_rows`, `value_rows`: how many rows long a token of key and of value is in memory (1: contiguous)."""

    num_tokens: int
    num_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    num_padding: int = 0
    key_rows: int = 1
    value_rows: int = 1

    @property
    def row(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size


@dataclass
class Case:
    """The arguments of one call, the memory around the caches, and what should be there afterwards."""

    shape: Shape
    rows: dict[str, Any]
    slots: Any
    whole: dict[str, Any]
    caches: dict[str, Any]
    expected: dict[str, Any]

    @property
    def tensors(self) -> dict[str, Any]:
        return {**self.rows, "slot_mapping": self.slots, **self.caches}


def make_case(seed: int, shape: Shape) -> Case:
    import torch

    from labkit.kernels.kv_write import kv_write_reference

    generator = torch.Generator().manual_seed(seed)
    row, num_slots = shape.row, shape.num_slots
    rows = {}
    for name, width in (("key", shape.key_rows), ("value", shape.value_rows)):
        begin = row if width > 1 else 0
        memory = torch.randn(shape.num_tokens, width * row, generator=generator)
        rows[name] = memory[:, begin : begin + row].view(shape.num_tokens, shape.num_heads, shape.head_dim)
    slots = torch.randperm(num_slots, generator=generator)[: shape.num_tokens]
    if shape.num_tokens == 1:
        slots[:] = 0
    slots[torch.randperm(shape.num_tokens, generator=generator)[: shape.num_padding]] = -1
    slots = slots.clone()  # a storage of its own: what lies behind its last element is nobody's
    whole = {name: torch.full((num_slots + 2 * GUARD, row), float("nan")) for name in ("k_cache", "v_cache")}
    form = (shape.num_blocks, shape.block_size, shape.num_heads, shape.head_dim)
    caches = {name: w[GUARD : GUARD + num_slots].view(form) for name, w in whole.items()}
    expected = {name: cache.clone() for name, cache in caches.items()}
    kv_write_reference(rows["key"], rows["value"], expected["k_cache"], expected["v_cache"], slots)
    return Case(shape, rows, slots, whole, caches, expected)


def why(name: str, case: Case, flat: Any, right: Any, same: Any, guards: Any, accesses: Accesses) -> str:
    shape, slots = case.shape, case.slots
    rows = case.rows["key" if name == "k_cache" else "value"].reshape(shape.num_tokens, -1)
    other = case.rows["value" if name == "k_cache" else "key"].reshape(shape.num_tokens, -1)
    written, asked = written_slots(flat), written_slots(right)
    stray = written & ~asked
    if _all_the_same(accesses, case, name):
        return (
            "all programs wrote the same row, and each should write that of its own token: token = tl.program_id(0), its slot is at "
            "slot_mapping + token"
        )
    if not bool(written.any()) and bool(guards.all()):
        zero = (
            " (slot 0 is a slot like any other, only those below 0 are padding)"
            if shape.num_tokens == 1
            else ""
        )
        return f"nothing was written{zero}"
    if bool((slots < 0).any()) and _only_padding(flat, right, rows, slots, guards):
        num = int((slots < 0).sum())
        verb = "has" if num == 1 else "have"
        return f"{counted(num, 'tokens')} {verb} slot -1 (padding) and must not be written at all, and something was: mask the store"
    num = len(rows)
    in_order = flat[:num] if num <= len(flat) else flat
    if bool((in_order == rows[: len(in_order)]).all()):
        return "token i was written to slot i: load the slot of the token from slot_mapping"
    wrong = (~same).nonzero().flatten()
    first = int(wrong[0]) if len(wrong) else -1
    owner = int((slots == first).nonzero()[0]) if first >= 0 and bool((slots == first).any()) else -1
    if owner >= 0 and bool((flat[first] == other[owner]).all()):
        return f"slot {first} has the {'value' if name == 'k_cache' else 'key'} of its token: keys go to k_cache, values to v_cache"
    if not bool(guards.all()) or bool(stray.any()):
        return _stray(name, case, accesses)
    if owner >= 0:
        return _wrong_row(name, case, flat, right, first, owner)
    return f"slot {first} was changed and belongs to no token"


def _wrong_row(name: str, case: Case, flat: Any, right: Any, first: int, owner: int) -> str:
    """Slot `first` belongs to token `owner` and has something else."""
    import torch

    mine, stride = ("key", "stride_key") if name == "k_cache" else ("value", "stride_value")
    tensor, row = case.rows[mine], case.shape.row
    memory = torch.tensor([], dtype=torch.float32).set_(tensor.untyped_storage())
    strides = {
        "the row size": row,
        "stride_value": case.rows["value"].stride(0),
        "stride_key": case.rows["key"].stride(0),
    }
    for what, step in strides.items():
        at = tensor.storage_offset() + owner * step
        if step != tensor.stride(0) and bool((flat[first] == memory[at : at + row]).all()):
            return (
                f"slot {first} has what lies {owner} x {what} behind the first row of {mine}: tokens of {mine} are {stride} elements "
                "apart, since key and value may be slices of wider tensors"
            )
    part = int((flat[first] == right[first]).sum())
    if part:
        return (
            f"slot {first} has {part} of its {row} elements: a program must write the whole row of its token"
        )
    return f"slot {first} belongs to token {owner} and does not have its row"


def _stray(name: str, case: Case, accesses: Accesses) -> str:
    """Slots that nobody asked for were written: which ones, by whom."""
    row, num_slots = case.shape.row, case.shape.num_slots
    power = not row & (row - 1)
    base, size = case.caches[name].data_ptr(), case.caches[name].element_size()
    low, high = base - GUARD * row * size, base + (num_slots + GUARD) * row * size
    found: dict[int, list[int]] = {}
    for program, addresses in accesses.stores.items():
        places = [(a - base) // size for a in addresses if low <= a < high]
        if places:
            found[program[0]] = sorted({place // row for place in places})
            slot = int(case.slots[program[0]]) if program[0] < case.shape.num_tokens else -1
            begins = min(places) == slot * row
            if begins and not power and max(places) >= (slot + 1) * row:
                return (
                    f"token {program[0]} (slot {slot}) wrote {max(places) - slot * row + 1} elements, and its row has {row}: the rest "
                    "went into the next slot. Mask the elements behind the end of the row"
                )
    said = [
        f"token {token} (slot {int(case.slots[token])}) wrote into {'slot' if len(at) == 1 else 'slots'} "
        f"{', '.join(map(str, at[:4]))}"
        for token, at in found.items()
        if token < case.shape.num_tokens and at != [int(case.slots[token])]
    ]
    if not said:
        return "slots that no token asked for were written: slot s begins at element s * ROW"
    return f"{'; '.join(said[:3])}. Slot s begins at element s * ROW"


def _all_the_same(accesses: Accesses, case: Case, name: str) -> bool:
    """Several tokens are to be written, and every program stored to the same addresses."""
    stores = [sorted(addresses) for addresses in accesses.stores.values() if addresses]
    wanted = int((case.slots >= 0).sum())
    return wanted > 1 and len(stores) > 1 and all(store == stores[0] for store in stores)


def _only_padding(flat: Any, right: Any, rows: Any, slots: Any, guards: Any) -> bool:
    """All that is wrong is rows of padding tokens: in front of the cache, or in its last slot."""
    asked = written_slots(right)
    if not bool(((flat == right) | ~asked[:, None]).all()):
        return False
    stray = flat[written_slots(flat) & ~asked]
    padding = rows[slots < 0]
    in_cache = all(bool((padding == row).all(1).any()) for row in stray)
    return in_cache and (len(stray) > 0 or not bool(guards[GUARD - 1]))


def written_slots(flat: Any) -> Any:
    return ~flat.isnan().all(1)
