"""Random loads and options for comparing the two vLLM schedulers: tiny pools, sharing, priorities, early ends."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Row:
    id: str
    arrival_step: int
    prompt: list[int]
    outputs: list[int]
    max_outputs: int
    priority: int


def random_options(rng: random.Random, *, rare: bool) -> dict[str, Any]:
    """`rare` draws the options under which a running request may starve of budget."""
    block_size = rng.choice([1, 2, 3, 4, 5, 8, 16])
    num_blocks = rng.randint(6, 40) if rng.random() < 0.8 else rng.randint(60, 200)
    max_num_seqs = rng.choice([1, 2, 4, 8, 16])
    budget = max_num_seqs + rng.choice([0, 1, 3, 8, 20, 60, 300])
    pool_tokens = (num_blocks - 1) * block_size
    max_model_len = max(4, rng.choice([pool_tokens, pool_tokens // 2, pool_tokens // 3, 40]))
    options: dict[str, Any] = {
        "num_gpu_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": min(max_model_len, pool_tokens),
        "enable_prefix_caching": rng.random() < 0.8,
        "policy": rng.choice(["fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.1, 0.3]),
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "enable_chunked_prefill": True,
        "async_scheduling": rng.random() < 0.5,
        "long_prefill_token_threshold": rng.choice([0, 0, 1, 3, 7, 12]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.3,
        "max_num_active_seqs": rng.choice([None, None, rng.randint(1, max_num_seqs)]),
    }
    options["long_prefill_token_threshold"] = min(
        options["long_prefill_token_threshold"], options["max_model_len"]
    )
    if rng.random() < 0.1:
        options["enable_chunked_prefill"] = False
        options["max_num_batched_tokens"] = max(budget, options["max_model_len"])
    elif rare:
        options["max_num_batched_tokens"] = budget = max_num_seqs + rng.choice([0, 1, 2, 4, 20])
        options["max_num_scheduled_tokens"] = rng.choice([None, rng.randint(1, budget)])
        options["prefill_schedule_interval"] = rng.choice([1, 2, 3, 5])
    return options


def random_load(rng: random.Random, options: dict[str, Any]) -> list[Row]:
    """Prompts repeat, share prefixes and continue earlier conversations; outputs may end before their maximum."""
    longest = options["max_model_len"]
    block = options["block_size"]
    early = rng.random() < 0.4
    arrival, rows, history = 0, [], []
    single = rng.choice(
        [0.0, 0.0, 0.4]
    )  # share of prompts of one token: a step that holds prefill lets those pass
    longer = rng.random() < 0.6  # outputs that make the pool too small for all who were admitted
    for i in range(rng.randint(2, 20)):
        arrival += rng.choice([0, 0, 0, 0, 1, 2, 5])
        length = min(
            rng.choice([1, block, 2 * block, rng.randint(1, longest), rng.randint(1, 30)]), longest - 1
        )
        how = rng.random()
        if how < single:
            prompt = [rng.randrange(50)]
        elif history and how < 0.5:
            prompt = list(rng.choice(history)) + [rng.randrange(3) for _ in range(rng.choice([0, 1, 4]))]
        elif how < 0.7:
            prompt = [rng.randrange(2) for _ in range(length)]
        else:
            prompt = [1000 * (i + 1) + j for j in range(length)]
        prompt = prompt[: longest - 1]
        wanted = rng.choice([1, 2, block, block + 1, rng.randint(1, 40)])
        if longer:
            wanted = rng.randint(5, 60)
        fits = max(1, (options["num_gpu_blocks"] - 1) * block - len(prompt) + 1)
        maximum = min(wanted, fits)
        num_outputs = rng.randint(1, maximum) if early else maximum
        outputs = [10_000_000 + 1000 * i + j for j in range(num_outputs)]
        rows.append(Row(f"r{i}", arrival, prompt, outputs, maximum, rng.choice([0, 0, 1, 2])))
        history += [prompt, prompt + outputs]
    return rows


def without_sharing(rows: list[Row]) -> list[Row]:
    """The same lengths, every prompt with tokens of its own."""
    return [
        replace(row, prompt=[1000 * (i + 1) + j for j in range(len(row.prompt))])
        for i, row in enumerate(rows)
    ]
