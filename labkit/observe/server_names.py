"""The names under which vLLM and SGLang publish what the lab measures (`labkit/data/metric_names.json`), old ones included.

`READINGS` maps the lab's own names to the servers'; a server that has no such metric has no entry.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

#: the lab's column -> metric name by system. Histograms are read through their _sum and _count.
READINGS: dict[str, dict[str, str]] = {
    "num_running": {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"},
    "num_waiting": {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"},
    "kv_usage": {"vllm": "vllm:kv_cache_usage_perc", "sglang": "sglang:token_usage"},
    "num_preemptions": {"vllm": "vllm:num_preemptions"},
    "num_retracted": {"sglang": "sglang:num_retracted_reqs"},
    "num_prefix_queries": {"vllm": "vllm:prefix_cache_queries"},
    "num_prefix_hits": {"vllm": "vllm:prefix_cache_hits", "sglang": "sglang:cached_tokens_total"},
    "prefix_hit_ratio": {"sglang": "sglang:cache_hit_rate"},
    "num_prompt_tokens": {"vllm": "vllm:prompt_tokens", "sglang": "sglang:prompt_tokens_total"},
    "num_output_tokens": {"vllm": "vllm:generation_tokens", "sglang": "sglang:generation_tokens_total"},
    "num_finished": {"vllm": "vllm:request_success", "sglang": "sglang:num_requests_total"},
    "num_rejected": {"vllm": "vllm:admission_rejections", "sglang": "sglang:num_aborted_requests_total"},
    "num_evicted_tokens": {"sglang": "sglang:evicted_tokens_total"},
    "kv_live_tokens": {"sglang": "sglang:kv_used_tokens"},
    "kv_cached_tokens": {"sglang": "sglang:kv_evictable_tokens"},
    "kv_free_tokens": {"sglang": "sglang:kv_available_tokens"},
    "kv_total_tokens": {"sglang": "sglang:max_total_num_tokens"},
    "weights_gb": {"sglang": "sglang:weight_memory_usage_gb"},
    "kv_gb": {"sglang": "sglang:kv_cache_memory_usage_gb"},
    "graph_gb": {"sglang": "sglang:graph_memory_usage_gb"},
    "ttft": {"vllm": "vllm:time_to_first_token_seconds", "sglang": "sglang:time_to_first_token_seconds"},
    "itl": {"vllm": "vllm:inter_token_latency_seconds", "sglang": "sglang:inter_token_latency_seconds"},
    "e2e": {"vllm": "vllm:e2e_request_latency_seconds", "sglang": "sglang:e2e_request_latency_seconds"},
    "queue": {"vllm": "vllm:request_queue_time_seconds", "sglang": "sglang:queue_time_seconds"},
    "block_lifetime": {"vllm": "vllm:kv_block_lifetime_seconds"},
    "block_idle_before_evict": {"vllm": "vllm:kv_block_idle_before_evict_seconds"},
    "block_reuse_gap": {"vllm": "vllm:kv_block_reuse_gap_seconds"},
}


@cache
def metric_names() -> dict[str, Any]:
    """`{"vllm": {"metrics": {name: kind}}, "vllm_older_names": ..., "sglang": ...}` as shipped."""
    text = resources.files("labkit").joinpath("data/metric_names.json").read_text(encoding="utf-8")
    return json.loads(text)


@cache
def kinds(system: str) -> dict[str, str]:
    """Metric name -> "counter", "gauge" or "histogram" of one system."""
    return dict(metric_names()[system]["metrics"])


@cache
def columns_by_name() -> dict[str, str]:
    """Any server's metric name, without the `_total` that exposition adds, and older names -> the lab's column."""
    found = {name: column for column, systems in READINGS.items() for name in systems.values()}
    for old, new in metric_names()["vllm_older_names"].items():
        if (target := str(new).split(" ")[0]) in found:
            found[old] = found[target]
    for name in list(found):
        found[name.removesuffix("_total")] = found[name]
    return found
