"""Fragmentation: free in total against free in one piece, and who makes the difference."""

from __future__ import annotations

import numpy as np

from labkit.experiments.churn import holdings_of
from labkit.experiments.dynamics import mean_demand, smoothed, sum_against_run
from labkit.experiments.five_causes import Causes, fragmentation_of, load_with, prefix_residency
from labkit.experiments.four_questions import four_costs
from labkit.experiments.hotel import adjoining_evening, scattered_evening
from labkit.experiments.lifetimes import run_pools, same_lifetime, two_lifetimes
from labkit.experiments.proofs import Proof
from labkit.memory import OutOfMemory, make_allocator
from labkit.units import MIB
from labkit.workload.base import RequestSpec
from labkit.workload.traces import load_or_synthetic

#: Llama-3.1-8B in 16 bits
BYTES_PER_TOKEN = 131_072


def requests_of(rng: np.random.Generator, num_requests: int) -> list[RequestSpec]:
    """The beginning of the Azure conversation trace, or its stand-in."""
    return load_or_synthetic("azure-conv", num_requests, rng)[0]


def hotel(rng: np.random.Generator, scattered: bool) -> Proof:
    """Twenty of a hundred rooms are free. Is a party of eight turned away?"""
    seen = scattered_evening(rng) if scattered else adjoining_evening()
    return Proof(
        seen.refused_with_room_to_spare,
        {"free": seen.num_free, "longest_run": seen.largest_run, "asked": seen.party_size},
    )


def four_questions_cost(aged: bool) -> Proof:
    """Does each of the four questions of an allocation cost bytes?"""
    costs = four_costs(aged=aged)
    return Proof(all(costs.values()), dict(costs))


def refused_for_shape(hole_mib: int, num_holes: int = 4, asked_mib: int = 8) -> Proof:
    """Is the refusal of kind "fragmentation" (enough bytes free, no span long enough)?"""
    memory = make_allocator("first-fit", (num_holes * hole_mib + num_holes + 1) * MIB)
    memory.malloc(MIB)
    holes = []
    for _ in range(num_holes):
        holes.append(memory.malloc(hole_mib * MIB))
        memory.malloc(MIB)
    for hole in holes:
        memory.free(hole)
    try:
        memory.malloc(asked_mib * MIB)
    except OutOfMemory as refusal:
        return Proof(refusal.kind == "fragmentation", {"kind": refusal.kind, "free_mib": refusal.free // MIB})
    return Proof(False, {"kind": "served"})


def serving_fragments(rng: np.random.Generator, num_causes: int, num_requests: int = 600) -> Proof:
    """Is more than a tenth of the free memory outside the largest span, averaged over time? `num_causes` of the five
    properties of serving are on; with none it is ordinary inference."""
    load = load_with(
        Causes.first(num_causes), requests_of(rng, num_requests), rng, bytes_per_token=BYTES_PER_TOKEN
    )
    found = fragmentation_of(load)
    return Proof(
        found.mean_loss > 0.10, {"mean_contiguity_loss": found.mean_loss, "failures": found.num_failures}
    )


def prefix_outlives_request(rng: np.random.Generator, shared: bool) -> Proof:
    """Does a prefix stay at least twice as long as the request that brought it?"""
    found = prefix_residency(requests_of(rng, 1000), rng, shared=shared)
    return Proof(found.outlives(), {"prefix_s": found.prefix_s, "request_s": found.request_s})


def mean_hides_the_peak(rng: np.random.Generator, dynamic: bool) -> Proof:
    """Memory is half as large again as the mean demand. Is anybody refused?"""
    holdings = holdings_of(requests_of(rng, 1500), bytes_per_token=BYTES_PER_TOKEN, seconds_per_token=0.03)
    capacity = int(1.5 * mean_demand(holdings))
    found = sum_against_run(holdings if dynamic else smoothed(holdings), capacity)
    return Proof(found.sum_fits_and_run_does_not(), {"refused": found.num_refused, "asked": found.num_asked})


def pools_keep_lifetimes_apart(rng: np.random.Generator, lifetimes_differ: bool) -> Proof:
    """Objects of one size, two lifetimes. Does a pool for the long ones cut the bytes that lie free in partly used
    64 MiB granules by at least a third?"""
    load = two_lifetimes(rng, num_waves=4)
    if not lifetimes_differ:
        load = same_lifetime(load)
    together, apart = run_pools(load, [], num_looks=40), run_pools(load, ["session"], num_looks=40)
    return Proof(
        apart.lost_share < 2 / 3 * together.lost_share,
        {"lost_share_together": together.lost_share, "lost_share_apart": apart.lost_share},
    )


def long_ones_spoil(rng: np.random.Generator, long_share: float) -> Proof:
    """A share of equal objects stays a hundred times as long as the rest. Half of them may be gone: is the largest free
    span less than half of what is free?"""
    memory = make_allocator("first-fit", 400 * MIB)
    objects = [memory.malloc(MIB) for _ in range(400)]
    for item in objects:
        if rng.random() >= long_share:
            memory.free(item)
    stats = memory.stats()
    return Proof(
        stats.largest_free_bytes < 0.5 * stats.free_bytes,
        {"free_mib": stats.free_bytes // MIB, "largest_mib": stats.largest_free_bytes // MIB},
    )
