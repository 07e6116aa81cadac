"""The hotel: free rooms in total, and no adjoining ones.

A hotel is an allocator whose unit is a room. Parties take adjoining rooms; nobody who has a room is moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.errors import LabError
from labkit.memory import Allocation, Allocator, OutOfMemory, Span, make_allocator


@dataclass(frozen=True)
class HotelEvening:
    """What the desk sees when the party arrives. Rooms."""

    num_rooms: int
    num_free: int
    largest_run: int
    party_size: int
    refused: bool
    kind: str
    layout: list[Span]

    @property
    def refused_with_room_to_spare(self) -> bool:
        """More rooms are free than the party needs, and it is turned away."""
        return self.refused and self.num_free >= self.party_size


def scattered_evening(
    rng: np.random.Generator,
    *,
    num_rooms: int = 100,
    num_free: int = 20,
    party_size: int = 8,
    longest_run: int = 4,
) -> HotelEvening:
    """Single guests fill the hotel; `num_free` of them, drawn at random, leave, no run longer than `longest_run`."""
    return evening(
        _scattered(rng, num_rooms, num_free, longest_run), num_rooms=num_rooms, party_size=party_size
    )


def adjoining_evening(*, num_rooms: int = 100, num_free: int = 20, party_size: int = 8) -> HotelEvening:
    """The control: the same number of rooms is free, all in a row."""
    return evening(set(range(num_rooms - num_free, num_rooms)), num_rooms=num_rooms, party_size=party_size)


def evening(free_rooms: set[int], *, num_rooms: int, party_size: int) -> HotelEvening:
    """One guest a room except in `free_rooms`; then a party asks the desk for `party_size` adjoining rooms."""
    if not 0 < party_size <= num_rooms:
        raise LabError(f"party_size is {party_size}; it must be from 1 to {num_rooms}")
    hotel = make_allocator("first-fit", num_rooms)
    guests = [hotel.malloc(1, tag=f"room {room}", lifetime="guest") for room in range(num_rooms)]
    for guest in guests:
        if guest.offset in free_rooms:
            hotel.free(guest)
    before = hotel.stats()
    party, kind = _check_in(hotel, party_size)
    return HotelEvening(
        num_rooms=num_rooms,
        num_free=before.free_bytes,
        largest_run=before.largest_free_bytes,
        party_size=party_size,
        refused=party is None,
        kind=kind,
        layout=hotel.layout(),
    )


def _check_in(hotel: Allocator, party_size: int) -> tuple[Allocation | None, str]:
    try:
        return hotel.malloc(party_size, tag="party", lifetime="party"), ""
    except OutOfMemory as refusal:
        return None, refusal.kind


def _scattered(rng: np.random.Generator, num_rooms: int, num_free: int, longest_run: int) -> set[int]:
    """Distinct random rooms without a run longer than `longest_run`, taken one by one."""
    free: set[int] = set()
    for room in rng.permutation(num_rooms).tolist():
        if len(free) == num_free:
            break
        left = next(n for n in range(num_rooms + 1) if room - n - 1 not in free)
        right = next(n for n in range(num_rooms + 1) if room + n + 1 not in free)
        if left + 1 + right <= longest_run:
            free.add(room)
    if len(free) < num_free:
        raise LabError(f"{num_free} free rooms do not fit without a run of {longest_run + 1}; ask for fewer")
    return free
