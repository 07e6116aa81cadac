"""The situations of docs/systems.md: a small load each, and what the three models do with it."""

from __future__ import annotations

from typing import Any

from labkit.experiments.three_systems_small import (
    Situation,
    each,
    private,
    prompt,
    sentence,
    small,
    step,
    steps,
)


def identical_prompts() -> Situation:
    """Two equal prompts of 256 tokens arrive together."""

    def answer(name: str) -> tuple[str, Any]:
        server = small(name)
        server.add(prompt("a", range(256), 4))
        server.add(prompt("b", range(256), 4))
        plans = [step(server)[0] for _ in range(3)]
        admitted = [{row.request_id: row.num_hit_tokens for row in plan.admitted} for plan in plans]
        at = next(i for i, rows in enumerate(admitted) if "b" in rows)
        hit, computed = admitted[at]["b"], sum(plan.num_prefill_tokens for plan in plans)
        when = "in the same step" if at == 0 else f"{at} step{'s' * (at > 1)} later"
        return f"b joins {when} and finds {hit} tokens; {computed} of 512 prompt tokens are computed", (
            at,
            hit,
            computed,
        )

    answers, figures = each(answer)
    return Situation(
        "identical prompts", "Two equal prompts of 256 tokens arrive in one step.", answers, figures
    )


def pool_exhausted() -> Situation:
    """Six requests (100 + 100 tokens) in a pool of 800: they fit when they start and not when they have grown."""
    return _under_pressure(
        "pool exhausted",
        "Six requests, each 100 tokens of prompt and 100 of output, in a pool of 800 tokens.",
        {},
    )


def pool_exhausted_optimistic() -> Situation:
    """The same, with each system's own switch towards more requests at once."""
    return _under_pressure(
        "pool exhausted, tuned for speed",
        "The same with a switch towards more at once: `schedule_conservativeness=0.01` (SGLang), `MAX_UTILIZATION` "
        "(TensorRT-LLM); vLLM's defaults (no watermark) are at that end already.",
        {
            "sglang": {"schedule_conservativeness": 0.01},
            "tensorrt_llm": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        },
    )


def _under_pressure(name: str, question: str, own: dict[str, dict[str, Any]]) -> Situation:
    def answer(system: str) -> tuple[str, Any]:
        server = small(system, **own.get(system, {}))
        for i in range(6):
            server.add(private(f"r{i}", 100, 100))
        plans = steps(server)
        peak = max(plan.num_running for plan in plans)
        victims = [row.request_id for plan in plans for row in plan.preempted]
        back = [row.request_id for plan in plans for row in plan.admitted if row.resumed]
        lost = sum(row.num_computed_tokens for plan in plans for row in plan.preempted)
        text = f"at most {peak} run at once; "
        if victims:
            text += f"memory is taken from {', '.join(victims)}, {lost} tokens of work are repeated"
            if len(back) > 1:
                text += f", they return in the order {', '.join(back)}"
        else:
            text += "nobody loses memory"
        return f"{text}; {len(plans)} steps", (peak, victims, len(plans))

    answers, figures = each(answer)
    return Situation(name, question, answers, figures)


def long_prompt() -> Situation:
    """One request decodes; a prompt of 1,200 tokens arrives; a step has 512."""

    def answer(name: str) -> tuple[str, Any]:
        server = small(name, num_tokens=3200)
        server.add(private("decoder", 64, 60))
        step(server)
        step(server)
        server.add(private("long", 1200, 4))
        plans = [step(server)[0] for _ in range(5)]
        prefills = [plan for plan in plans if plan.num_prefill_tokens]
        sizes = [plan.num_prefill_tokens for plan in prefills]
        beside = sum(plan.num_decode_requests > 0 for plan in prefills)
        other = (
            "decodes beside every chunk" if beside == len(prefills) else f"decodes beside {beside} of them"
        )
        return f"chunks of {', '.join(map(str, sizes))}; the other {other}", (sizes, beside)

    answers, figures = each(answer)
    return Situation(
        "a prompt longer than the budget", "One request decodes, a prompt of 1,200 tokens arrives, a step has 512.",
        answers, figures,
    )  # fmt: skip


def without_chunking() -> Situation:
    """The same prompt with chunking switched off."""

    def answer(name: str) -> tuple[str, Any]:
        off: dict[str, dict[str, Any]] = {
            "vllm": {"enable_chunked_prefill": False, "max_model_len": 512},
            "sglang": {"chunked_prefill_size": -1},
            "tensorrt_llm": {"enable_chunked_prefill": False},
        }
        server = small(name, num_tokens=3200, **off[name])
        refused = server.add(private("long", 1200, 4))
        if refused:
            return f"refused: {sentence(refused)}", "refused"
        size = step(server)[0].num_prefill_tokens
        return f"computed in one step of {size} tokens", size

    answers, figures = each(answer)
    return Situation(
        "the same without chunked prefill", "A prompt of 1,200 tokens, a step of 512, chunking off.", answers, figures
    )  # fmt: skip


def never_fits() -> Situation:
    """A request larger than the whole pool."""

    def answer(name: str) -> tuple[str, Any]:
        own = {"vllm": {"max_model_len": 2048}}.get(name, {})
        refused = small(name, **own).add(private("huge", 700, 400))
        return (f"refused on arrival: {sentence(refused)}" if refused else "queued"), refused is not None

    answers, figures = each(answer)
    return Situation(
        "a request that can never fit",
        "700 tokens of prompt and 400 of output, a pool of 800 (vLLM with `max_model_len=2048`; without it, it takes what the pool "
        "holds as the longest sequence). The lab refuses; the real vLLM would spin, SGLang cut the maximum to what fits, and "
        "TensorRT-LLM never schedule it.",
        answers,
        figures,
    )


def shared_prefix_freed() -> Situation:
    """Two requests share 320 tokens. The first ends, then the second."""

    def answer(name: str) -> tuple[str, Any]:
        from labkit.experiments.system_memory import kv_memory

        server = small(name, num_tokens=1600)
        server.add(prompt("a", [*range(320), *range(1000, 1040)], 6))
        step(server)
        step(server)
        server.add(prompt("b", [*range(320), *range(2000, 2040)], 30))
        rows = []
        while server.has_work():
            _, outcome = step(server)
            stats = kv_memory(server, 1)
            assert stats is not None
            if outcome.finished:
                rows.append((outcome.finished[0], stats.reserved_bytes, stats.cached_bytes))
        (_, live_a, cached_a), (_, live_b, cached_b) = rows
        return (
            f"when a ends {live_a} tokens stay held and {cached_a} cached; when b ends {live_b} held and {cached_b} cached"
        ), rows

    answers, figures = each(answer)
    return Situation(
        "a shared prefix is freed",
        "a and b share 320 tokens, each has 40 of its own; a ends first, then b.",
        answers,
        figures,
    )


def set_aside() -> Situation:
    """Requests that say they may generate much and do not."""

    def answer(name: str) -> tuple[str, Any]:
        server = small(name, num_tokens=3200)
        for i in range(16):
            server.add(private(f"r{i}", 64, 40, 512))
        plans = [step(server)[0] for _ in range(8)]
        running = max(plan.num_running for plan in plans)
        return f"{running} of 16 run at once", running

    answers, figures = each(answer)
    return Situation(
        "what is set aside for outputs",
        "16 requests of 64 tokens that may generate 512 (and stop at 40), a pool of 3,200 tokens.",
        answers,
        figures,
    )


def full_hit() -> Situation:
    """The very same prompt again, after the first has ended."""

    def answer(name: str) -> tuple[str, Any]:
        server = small(name)
        server.add(prompt("a", range(128), 2))
        steps(server)
        server.add(prompt("b", range(128), 2))
        row = step(server)[0].admitted[0]
        return (
            f"{row.num_hit_tokens} of 128 tokens found, {128 - row.num_hit_tokens} computed",
            row.num_hit_tokens,
        )

    answers, figures = each(answer)
    return Situation(
        "the whole prompt is cached", "A prompt of 128 tokens comes a second time.", answers, figures
    )


def small_behind_big() -> Situation:
    """A big request waits at the head, a small one behind it would fit."""

    def answer(name: str) -> tuple[str, Any]:
        server = small(name)
        server.add(private("resident", 400, 100))
        step(server)
        step(server)
        server.add(private("big", 500, 20))
        server.add(private("small", 20, 20))
        plans = [step(server)[0] for _ in range(4)]
        joined = [row.request_id for plan in plans for row in plan.admitted]
        reason = server.why_waiting("small")
        text = f"{', '.join(joined)} overtakes" if joined else "both wait"
        return f"{text}; small: limit `{reason.limit}`", (joined, reason.limit)

    answers, figures = each(answer)
    return Situation(
        "a small one behind a big one",
        "400 tokens are resident of 800; 500 tokens wait at the head, 20 behind them.",
        answers,
        figures,
    )


def starved_budget() -> Situation:
    """A step of one chunk unit while somebody decodes."""

    def answer(name: str) -> tuple[str, Any]:
        own = {"tensorrt_llm": {"tokens_per_block": 64, "num_blocks": 50}}.get(name, {})
        server = small(name, num_tokens=3200, budget=64, **own)
        server.add(private("decoder", 32, 60))
        step(server)
        step(server)
        server.add(private("prompt", 256, 4))
        plans = [step(server)[0] for _ in range(20)]
        prefilled = sum(plan.num_prefill_tokens for plan in plans)
        decoded = sum(plan.num_decode_requests for plan in plans)
        num_steps = sum(plan.num_prefill_tokens > 0 for plan in plans)
        return f"{prefilled} prompt tokens in {num_steps} steps of 20, {decoded} tokens decoded", (
            prefilled,
            decoded,
        )

    answers, figures = each(answer)
    return Situation(
        "a budget of one chunk unit",
        "A step has 64 tokens (for TensorRT-LLM also the block and chunk unit), one request decodes, a prompt of 256 arrives.",
        answers,
        figures,
    )
