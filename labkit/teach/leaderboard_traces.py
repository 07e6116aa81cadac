"""The loads of the leaderboards: three public traces, or synthetic stand-ins with their statistics.

Clients allow a round maximum of 1,024 tokens and the trace knows what really came; entries may look at the first only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from labkit.experiments.scheduling import faster, with_client_limit
from labkit.workload.base import RequestSpec
from labkit.workload.traces import load_or_synthetic

#: Llama-3.1-8B in 16 bits
BYTES_PER_TOKEN = 131_072
BLOCK = 16
#: tokens of one block of shared content in the eviction loads
SHARED_BLOCK = 512


@dataclass(frozen=True)
class BoardLoad:
    """`pool_tokens` is the KV pool it meets; a request is good when its first token comes within `ttft_s` and the others
    within 60 ms each."""

    name: str
    requests: list[RequestSpec]
    pool_tokens: int
    ttft_s: float
    origin: str


#: name -> (longest request, speed-up, pool in tokens, first token within): a pool that is somewhat too small for the load
SERVING = {
    "azure-conv": (6000, 1.5, 20_000, 2.0),
    "azure-code": (6000, 1.0, 20_000, 2.0),
    "mooncake-conversation": (8000, 0.45, 40_000, 5.0),
}


def serving_loads(num_requests: int = 200, seed: int = 0) -> list[BoardLoad]:
    """What the scheduler entries serve."""
    loads = []
    for name, (longest, speed, pool, ttft_s) in SERVING.items():
        requests, origin = _of_trace(name, num_requests, longest, seed)
        requests = [dataclasses.replace(r, prefix_hashes=None, prefix_block_size=0) for r in requests]
        loads.append(BoardLoad(name, with_client_limit(faster(requests, speed)), pool, ttft_s, origin))
    return loads


def shared_loads(num_requests: int = 300, seed: int = 0) -> list[BoardLoad]:
    """What the eviction entries serve: the Mooncake trace with its own shared blocks, and Azure's lengths in sessions."""
    loads = []
    for name, pool in (("azure-conv", 60_000), ("azure-code", 60_000), ("mooncake-conversation", 120_000)):
        longest = 16_000 if name.startswith("mooncake") else 6000
        requests, origin = _of_trace(name, num_requests, longest, seed)
        if not requests[0].prefix_hashes:
            requests = in_sessions(requests, np.random.default_rng([seed, 1]))
            origin += " Sessions are drawn."
        loads.append(BoardLoad(name, with_client_limit(requests), pool, 5.0, origin))
    return loads


def in_sessions(
    requests: list[RequestSpec], rng: np.random.Generator, *, num_open: int = 40, share: float = 0.75
) -> list[RequestSpec]:
    """Three requests in four continue one of the last `num_open` sessions, the popular ones more often: their prompt begins
    with all of the session's earlier blocks that fit."""
    sessions: list[list[int]] = []
    result, fresh = [], 0
    for r in requests:
        num_blocks = r.num_prompt_tokens // SHARED_BLOCK
        if sessions and rng.random() < share:
            index = max(0, len(sessions) - 1 - int(rng.geometric(3 / num_open)))
            said = sessions[index]
        else:
            said = []
            sessions.append(said)
        new = range(fresh, fresh + max(0, num_blocks - len(said)))
        fresh += len(new)
        said.extend(new)
        result.append(
            dataclasses.replace(r, prefix_hashes=tuple(said[:num_blocks]), prefix_block_size=SHARED_BLOCK)
        )
    return result


def _of_trace(name: str, num_requests: int, longest: int, seed: int) -> tuple[list[RequestSpec], str]:
    requests, origin = load_or_synthetic(name, 4 * num_requests, np.random.default_rng([seed, 0]))
    short = [r for r in requests if r.num_prompt_tokens + r.num_output_tokens <= longest][:num_requests]
    first = short[0].arrival_s
    origin += f" Used are the first {len(short):,} with at most {longest:,} tokens."
    return [dataclasses.replace(r, arrival_s=r.arrival_s - first) for r in short], origin
