"""Exercise 13: a Triton kernel that writes keys and values by slot mapping. Checked under Triton's interpreter against the
lab's `kv_write_reference`, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.kernel_watch import Accesses, mask_slip, nearest, prints_of, watched
from labkit.teach.exercises.kv_write_words import GUARD, Case, Shape, make_case, why
from labkit.teach.exercises.strip import Piece, counted

CASES = {
    "one token in slot 0": Shape(1, 2, 16, 4, 3),
    "five tokens in scattered slots": Shape(5, 2, 16, 4, 4),
    "padding: some slots are -1": Shape(6, 2, 16, 4, 4, 3),
    "rows of key and value are slices of one qkv tensor": Shape(5, 2, 16, 4, 4, 0, 4, 4),
    "key and value are slices of tensors of different width": Shape(5, 2, 16, 4, 4, 0, 3, 5),
    "3 heads of 16: a row of 48 elements, not a power of two": Shape(5, 3, 16, 4, 4, 0),
    "the same with padding and strides": Shape(5, 3, 16, 4, 4, 1, 4, 2),
    "blocks of one token": Shape(7, 1, 32, 1, 12, 2),
    "many tokens": Shape(40, 2, 16, 16, 5, 4, 4, 4),
}


def run(my_kv_write: Callable[..., None]) -> str:
    for seed, (title, shape) in enumerate(CASES.items()):
        with prints_of(title):
            _check(my_kv_write, seed, title, shape)
    return (
        f"{len(CASES)} writes leave exactly the bytes that the lab's reference leaves, touch no other slot, and read nothing behind "
        "the end of a tensor."
    )


def _check(my_kv_write: Callable[..., None], seed: int, title: str, shape: Shape) -> None:
    import torch

    case = make_case(seed, shape)
    with watched(case.tensors) as accesses:
        my_kv_write(
            case.rows["key"],
            case.rows["value"],
            case.caches["k_cache"],
            case.caches["v_cache"],
            case.slots,
        )
    shown = case.slots[:8].tolist()
    input_ = (
        f"({counted(shape.num_tokens, 'tokens')}, {counted(shape.num_heads, 'heads')} of {shape.head_dim}, {shape.num_blocks} "
        f"blocks of {shape.block_size}, slot_mapping {str(shown)[:-1]}{', ...' if shape.num_tokens > 8 else ''}])"
    )
    for name in ("k_cache", "v_cache"):
        flat = case.caches[name].view(shape.num_slots, shape.row)
        right = case.expected[name].view(shape.num_slots, shape.row)
        same = ((flat == right) | (flat.isnan() & right.isnan())).all(1)
        around = case.whole[name]
        guards = torch.cat([around[:GUARD], around[GUARD + shape.num_slots :]]).isnan().all(1)
        if bool(same.all()) and bool(guards.all()):
            continue
        text = why(name, case, flat, right, same, guards, accesses)
        raise Mistake(
            f"{name} is wrong for '{title}': {text}.{mask_slip(my_kv_write)} {input_}",
            _picture(around, right, name, case.slots),
        )
    _outside(case, title, accesses, input_)


def _outside(case: Case, title: str, accesses: Accesses, input_: str) -> None:
    """The bytes are right, and something was read or written that belongs to no tensor."""
    for what, program, address in accesses.outside:
        name, element = nearest(case.tensors, address)
        size = case.tensors[name].numel()
        if what == "store":
            text = "write only to the slot of the token"
        elif case.shape.row & (case.shape.row - 1):
            text = (
                "the row has no power of two elements, and tl.arange goes on behind it: give the load the mask as well. On a GPU that "
                "memory may belong to nobody, and the kernel dies of it"
            )
        else:
            text = "token i begins at i * stride_key (i * stride_value), and its slot at slot_mapping + i"
        does = "the load reads" if what == "load" else "the store writes"
        raise Mistake(
            f"the result is right for '{title}', but {does} behind the end of {name}: program {program[0]} asks for element "
            f"{element:,} of {size:,}; {text}. {input_}",
            _row_picture(case, name),
        )


def _picture(around: Any, right: Any, name: str, slots: Any) -> Picture:
    """The slots under their numbers, each with the token that belongs there, with one before and one behind the cache."""
    import torch

    edge = torch.full((1, right.shape[1]), float("nan"))
    rows, want = around[GUARD - 1 : GUARD + len(right) + 1], torch.cat([edge, right, edge])
    pieces = []
    for at, (row, expected) in enumerate(zip(rows, want), start=-1):
        same = bool(((row == expected) | (row.isnan() & expected.isnan())).all())
        asked, got = not bool(expected.isnan().all()), not bool(row.isnan().all())
        if same:
            label = "right row" if asked else "rightly untouched"
        else:
            label = "should not be written" if not asked else "wrong row" if got else "not written"
        token = (slots == at).nonzero() if at >= 0 else slots[:0]
        pieces.append(Piece(at, 1, label, f"t{int(token[0])}" if len(token) else ""))
    title = f"slots of {name}, with the token that belongs there; -1 lies in front of the cache, {len(right)} behind it"
    return Picture("strip", title, pieces, {"unit": "slots"})


def _row_picture(case: Case, name: str) -> Picture:
    """The last token's row at the end of its tensor, and what the arange reaches."""
    row = case.shape.row
    width = 1 << (row - 1).bit_length()
    pieces = [Piece(0, row, "the row of the last token", f"{row} elements")]
    if width > row:
        pieces.append(Piece(row, width - row, f"behind the end of {name}", "not yours"))
    return Picture(
        "strip",
        f"{name}: what tl.arange(0, {width}) reaches from the start of the last row",
        pieces,
        {"unit": "elements"},
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
