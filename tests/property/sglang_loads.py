"""Small random loads and configurations for the SGLang model: tiny pools, every option, several kinds of sharing."""

from __future__ import annotations

import random
from typing import Any

POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first")
EVICTION = ("lru", "lru", "lfu", "fifo", "filo", "mru", "slru", "priority")


def random_case(rng: random.Random, *, scarce: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`scarce`: a pool in which little more than one request fits, and a low estimate of what running ones will need."""
    page = rng.choice([1, 1, 1, 4, 16])
    max_prompt, max_output = rng.choice([30, 100, 200]), rng.choice([3, 20, 60, 100])
    room = rng.choice([1.02, 1.3, 1.7, 2.5]) if scarce else rng.choice([1.5, 2.5, 6.0, 50.0])
    pool = int(room * (max_prompt + max_output + 2 * page)) + rng.randint(0, 40)
    config = random_config(rng, page, scarce=scarce)
    config["max_total_tokens"] = pool // page * page
    return config, random_workload(rng, max_prompt, max_output, scarce=scarce)


def random_config(rng: random.Random, page: int, *, scarce: bool) -> dict[str, Any]:
    by_priority, disabled = rng.random() < 0.25, rng.random() < 0.2
    policy = rng.choice(POLICIES)
    if by_priority and policy not in ("fcfs", "lof"):
        policy = "fcfs"
    if disabled and policy == "shortest-prefill-first":
        policy = "lpm"
    chunk = rng.choice([-1, 16, 64, 128, 512])
    config: dict[str, Any] = {
        "cache": "radix" if rng.random() < 0.15 else "unified",
        "page_size": page,
        "max_running_requests": rng.choice([2, 4, 16, 64]),
        "chunked_prefill_size": chunk if chunk < 0 else max(page, chunk // page * page),
        "max_prefill_tokens": rng.choice([16384, 100, 40]),
        "schedule_policy": policy,
        "schedule_conservativeness": rng.choice([0.3, 0.1, 0.01] if scarce else [1.0, 0.1, 1.4]),
        "enable_mixed_chunk": rng.random() < 0.3,
        "disable_radix_cache": disabled,
        "ignore_eos": rng.random() < 0.25,
        "radix_eviction_policy": rng.choice(EVICTION),
        "enable_priority": by_priority,
        "retraction_policy": "priority" if by_priority and rng.random() < 0.5 else "length",
    }
    if rng.random() < 0.15:
        config["prefill_max_requests"] = rng.randint(1, 3)
    if rng.random() < 0.15:
        config["prefill_decode_interval"] = rng.randint(1, 4)
        config["prefill_decode_interval_min_bs"] = rng.randint(0, 3)
    if by_priority and rng.random() < 0.3:
        config["disable_priority_preemption"] = True
    return config


def random_workload(
    rng: random.Random, max_prompt: int, max_output: int, *, scarce: bool
) -> list[dict[str, Any]]:
    """Private prompts, a few common prefixes, copies, or next turns of a conversation."""
    kind = rng.choice(["private", "shared", "copies", "turns"])
    prefixes = [[rng.randrange(50) for _ in range(rng.randint(5, max_prompt))] for _ in range(3)]
    rows: list[dict[str, Any]] = []
    step = 0
    for i in range(rng.randint(10, 35) if scarce else rng.randint(5, 25)):
        step += rng.choice([0, 0, 1, 2, 5, rng.randint(0, 30)])
        prompt = [rng.randrange(50) for _ in range(rng.randint(1, max_prompt))]
        if kind == "private":
            prompt = [100 + 1000 * i + j for j in range(len(prompt))]
        elif kind == "shared":
            prefix = rng.choice(prefixes)
            prompt = prefix[: rng.randint(1, len(prefix))] + prompt[: rng.randint(0, 20)]
        elif rows and rng.random() < 0.6:
            j = rng.randrange(len(rows))
            earlier = rows[j]["prompt_token_ids"]
            answer = [1_000_000 + 10_000 * j + k for k in range(rows[j]["output_len"])]
            prompt = list(earlier) if kind == "copies" else earlier + answer + prompt[: rng.randint(0, 8)]
        rows.append(
            {
                "id": f"r{i}",
                "arrival_step": step,
                "prompt_token_ids": prompt[:max_prompt],
                "output_len": rng.randint(1, max_output),
                "priority": rng.randint(0, 4),
            }
        )
    return rows
