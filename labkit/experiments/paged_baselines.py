"""How much of a KV pool holds token states? The experiment behind figure 2 of the PagedAttention paper (Kwon et al.,
SOSP'23): three static baselines on a buddy allocator, as the authors built Orca's, and blocks.

The pool is OPT-13B's on an A100-40GB: 15,700 slots of 819,200 bytes. The load has ShareGPT's published mean lengths (161
tokens in, 338 out); only the means are published, so that the shapes are an assumption: log-normal with sigma 1, cut so
that prompt and output stay within 2,048. The queue is never empty; one step gives every running request one token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.kv import KVCacheManager, NoSpace, make_kv_cache

CAPACITY_TOKENS, BYTES_PER_TOKEN, MAX_MODEL_LEN = 15_700, 819_200, 2_048
MEAN_PROMPT, MEAN_OUTPUT = 161, 338
#: share of KV memory in per cent that holds token states, as the paper prints it
PUBLISHED = {"Orca (Max)": 20.4, "Orca (Pow2)": 26.8, "Orca (Oracle)": 38.2, "vLLM": 96.3}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Orca (Max)": ("reserve-max", {"allocator": "buddy", "max_model_len": MAX_MODEL_LEN}),
    "Orca (Pow2)": ("reserve-pow2", {"allocator": "buddy"}),
    "Orca (Oracle)": ("reserve-oracle", {"allocator": "buddy"}),
    "vLLM": ("paged", {"block_size": 16}),
}


@dataclass(frozen=True)
class Shares:
    """Per cent of the pool, averaged over steps.

    tokens     holds token states
    reserved   will hold tokens of the request that keeps it
    internal   kept by a request that will never use it
    external   kept by nobody, and the allocator's rounding
    """

    system: str
    tokens: float
    reserved: float
    internal: float
    external: float
    num_running: float
    num_preempted: int
    published_tokens: float


def lengths(num_requests: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens, `[num_requests]` each, with the published means to within half a token."""
    return (
        _lognormal(MEAN_PROMPT, MAX_MODEL_LEN // 2, num_requests, rng),
        _lognormal(MEAN_OUTPUT, MAX_MODEL_LEN // 2, num_requests, rng),
    )


def max_batch(capacity_tokens: int = CAPACITY_TOKENS, max_model_len: int = MAX_MODEL_LEN) -> int:
    """Requests that run at once when each reserves the model's maximum (the paper's 7)."""
    kv = make_kv_cache(
        "reserve-max",
        capacity_tokens=capacity_tokens,
        bytes_per_token=BYTES_PER_TOKEN,
        max_model_len=max_model_len,
    )
    count = 0
    while kv.admit(str(count), 1, max_tokens=max_model_len).admitted:
        count += 1
    return count


def token_shares(rng: np.random.Generator, *, num_steps: int = 10_000, warm_up: int = 1_000) -> list[Shares]:
    """One row for each system, on the same requests."""
    prompts, outputs = lengths(20_000, rng)
    return [_run(system, prompts, outputs, num_steps, warm_up) for system in SYSTEMS]


def _run(system: str, prompts: np.ndarray, outputs: np.ndarray, num_steps: int, warm_up: int) -> Shares:
    name, options = SYSTEMS[system]
    kv = make_kv_cache(name, capacity_tokens=CAPACITY_TOKENS, bytes_per_token=BYTES_PER_TOKEN, **options)
    finals = (prompts + outputs).tolist()
    known = prompts.tolist()  # prompt, and outputs kept through a preemption
    waiting, running = deque(range(len(finals))), list[int]()
    sums, num_running, num_preempted = np.zeros(4), 0, 0
    for step in range(num_steps):
        for request in list(running):
            if request in running and not _grow(kv, request, running, waiting, known):
                num_preempted += 1
        while waiting and _admit(kv, waiting[0], known, finals):
            running.append(waiting.popleft())
        if step >= warm_up:
            sums += _account(kv, running, known, finals)
            num_running += len(running)
        for request in [r for r in running if known[r] == finals[r]]:
            kv.free(str(request))
            running.remove(request)
    steps = num_steps - warm_up
    tokens, reserved, internal, external = 100 * sums / steps / CAPACITY_TOKENS
    return Shares(
        system,
        float(tokens),
        float(reserved),
        float(internal),
        float(external),
        num_running / steps,
        num_preempted,
        PUBLISHED[system],
    )


def _admit(kv: KVCacheManager, request: int, known: list[int], finals: list[int]) -> bool:
    answer = kv.admit(str(request), known[request], max_tokens=finals[request], final_tokens=finals[request])
    return answer.admitted


def _grow(
    kv: KVCacheManager, request: int, running: list[int], waiting: deque[int], known: list[int]
) -> bool:
    """One more token; False when somebody (the last admitted) had to be preempted for it."""
    untouched = True
    while request in running:
        try:
            kv.append(str(request))
            known[request] += 1
            break
        except NoSpace:
            victim = running.pop()
            kv.free(str(victim))
            waiting.appendleft(victim)
            untouched = False
    return untouched


def _account(kv: KVCacheManager, running: list[int], known: list[int], finals: list[int]) -> np.ndarray:
    """Slots: (tokens, reserved, internal, external), which add up to the capacity."""
    tokens = reserved = internal = 0
    for request in running:
        placed, final = known[request], finals[request]
        kept = placed + kv.room(str(request))
        tokens += placed
        reserved += min(kept, final) - placed
        internal += max(0, kept - final)
    return np.array([tokens, reserved, internal, CAPACITY_TOKENS - tokens - reserved - internal], float)


def _lognormal(mean: float, limit: int, num: int, rng: np.random.Generator) -> np.ndarray:
    """Log-normal with sigma 1, cut at `limit`; the scale is found by bisection so that the drawn mean is `mean`."""
    drawn = rng.lognormal(0.0, 1.0, num)
    low, high = 1.0, 10.0 * mean
    for _ in range(60):
        scale = (low + high) / 2
        if np.clip(np.rint(drawn * scale), 1, limit).mean() < mean:
            low = scale
        else:
            high = scale
    return np.clip(np.rint(drawn * high), 1, limit).astype(np.int64)
