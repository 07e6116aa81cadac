"""`/metrics` text as vLLM and SGLang write it, made with prometheus_client and not with the lab's exporter."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

QUEUE_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0)


@dataclass
class State:
    """What one page says. `queued` are the queue times of all requests so far."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    finished: int = 0
    hits: float = 0.0
    preempted: int = 0
    itl_s: float = 0.0
    evicted: float = 0.0
    cached: float = 0.0
    queued: list[float] = field(default_factory=list)


def vllm(state: State, at: float, old: bool = False) -> str:
    registry, names, values = (
        CollectorRegistry(),
        ["model_name", "engine"],
        {"model_name": "m", "engine": "0"},
    )
    gauge = lambda name, v: Gauge(name, "x", names, registry=registry).labels(**values).set(v)  # noqa: E731
    counter = lambda name, v: Counter(name, "x", names, registry=registry).labels(**values).inc(v)  # noqa: E731
    gauge("vllm:num_requests_running", state.running)
    gauge("vllm:num_requests_waiting", state.waiting)
    gauge("vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc", state.usage)
    counter("vllm:prompt_tokens", state.prompt)
    counter("vllm:generation_tokens", state.output)
    counter("vllm:num_preemptions", state.preempted)
    prefix = "vllm:gpu_prefix_cache" if old else "vllm:prefix_cache"
    counter(f"{prefix}_queries", state.prompt)
    counter(f"{prefix}_hits", state.hits)
    done = Counter("vllm:request_success", "x", [*names, "finished_reason"], registry=registry)
    done.labels(**values, finished_reason="stop").inc(state.finished)
    _histograms(registry, "vllm:request_queue_time_seconds", state,
                "vllm:time_per_output_token_seconds" if old else "vllm:inter_token_latency_seconds")  # fmt: skip
    return f"# scraped_at {at}\n" + generate_latest(registry).decode()


def sglang(state: State, at: float, total: int = 30_000) -> str:
    registry = CollectorRegistry()
    for name, value in {
        "num_running_reqs": state.running, "num_queue_reqs": state.waiting, "token_usage": state.usage,
        "kv_used_tokens": state.usage * total, "kv_evictable_tokens": state.cached * total,
        "kv_available_tokens": (1 - state.usage - state.cached) * total, "max_total_num_tokens": total,
    }.items():  # fmt: skip
        Gauge(f"sglang:{name}", "x", registry=registry).set(value)
    for name, value in {
        "prompt_tokens_total": state.prompt, "generation_tokens_total": state.output,
        "num_requests_total": state.finished, "cached_tokens_total": state.hits,
        "evicted_tokens_total": state.evicted,
    }.items():  # fmt: skip
        Counter(f"sglang:{name}", "x", registry=registry).inc(value)
    _histograms(registry, "sglang:queue_time_seconds", state, "sglang:inter_token_latency_seconds")
    return f"# scraped_at {at}\n" + generate_latest(registry).decode()


def _histograms(registry: CollectorRegistry, queue: str, state: State, itl: str) -> None:
    waited = Histogram(queue, "s", registry=registry, buckets=QUEUE_EDGES)
    for seconds in state.queued:
        waited.observe(seconds)
    gaps = Histogram(itl, "s", registry=registry)
    if state.itl_s:
        gaps.observe(state.itl_s)  # only the sum is read


def day(pages: int, change) -> list[State]:
    """`pages` states: ten busy, ten at rest, in turn; `change(state, i, busy)` puts the fault in."""
    states, total = [], State()
    for i in range(pages):
        busy = i % 20 < 10
        if busy:
            total.prompt += 10_000
            total.output += 2_000
            total.finished += 10
            total.itl_s += 8 * 10.0
            total.queued = [*total.queued, *[0.01] * 10]
        state = State(
            **{**vars(total), "running": 8 if busy else 0, "waiting": 0, "usage": 0.3 if busy else 0.0}
        )
        change(state, i, busy)
        total.preempted, total.hits, total.queued = state.preempted, state.hits, state.queued
        total.evicted = state.evicted
        states.append(state)
    return states
