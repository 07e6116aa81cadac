"""Makes recordings with the real vLLM scheduler, in an environment in which `import vllm` works (version 0.33.0; a CPU
and its Python files suffice, there is no model and no GPU):

    python tests/golden/vllm/record.py options.json workload.json OUT.json.gz

`options.json` holds the recording's `config`, `workload.json` its `workload` (README.md). A row may have `max_output_len`
above `output_len`: then the request ends by itself, its last token being a stop token. A fake model answers at once.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

RULE = "token j of request index i = 1000000+10000*i+j"
DEFAULTS = {
    "max_num_scheduled_tokens": None, "max_num_active_seqs": None, "long_prefill_token_threshold_adaptive": False,
    "prefill_schedule_interval": 1,
}  # fmt: skip


class Facts:
    """Configuration of which the scheduler reads a few names; all others are None."""

    def __init__(self, **known: Any):
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def make_scheduler(config: dict[str, Any]) -> Any:
    import torch
    from vllm.config.scheduler import SchedulerConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    c = {**DEFAULTS, **config}
    pool = ("block_size", "num_blocks", "enable_prefix_caching")
    scheduling = SchedulerConfig.default_factory(**{name: c[name] for name in c if name not in pool})
    facts = Facts(
        scheduler_config=scheduling,
        cache_config=Facts(num_gpu_blocks=c["num_blocks"], enable_prefix_caching=c["enable_prefix_caching"]),
        model_config=Facts(max_model_len=c["max_model_len"], runner_type="generate"),
        parallel_config=Facts(
            data_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=1
        ),
        observability_config=Facts(per_request_spec_decode_metrics="none"),
        ec_manager_config=Facts(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Facts(),
        num_speculative_tokens=0, num_lookahead_tokens=0, num_prefill_lookahead_tokens=0, num_hash_lookahead_tokens=0,
    )  # fmt: skip
    attention = FullAttentionSpec(
        block_size=c["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    group = KVCacheGroupSpec(["layer"], attention)
    return (AsyncScheduler if c["async_scheduling"] else Scheduler)(
        vllm_config=facts,
        kv_cache_config=KVCacheConfig(
            num_blocks=c["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[group]
        ),
        structured_output_manager=Facts(accept_tokens=lambda *_: True),
        block_size=c["block_size"],
    )


class Recording:
    def __init__(self, config: dict[str, Any], workload: list[dict[str, Any]]):
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self.config, self.workload, self.size = config, workload, config["block_size"]
        self.scheduler = make_scheduler(config)
        self.kv, self.pool = self.scheduler.kv_cache_manager, self.scheduler.kv_cache_manager.block_pool
        self.hasher = get_request_block_hasher(self.size, sha256) if config["enable_prefix_caching"] else None
        self.index = {row["id"]: i for i, row in enumerate(workload)}
        self.order = sorted(range(len(workload)), key=lambda i: (workload[i]["arrival_step"], i))
        self.requests: dict[str, Any] = {}
        self.num_sampled = dict.fromkeys(self.index, 0)
        self.pending: list[Any] = []
        self.evicted: list[int] = []
        self.preempted: list[dict[str, Any]] = []
        self.finished: list[str] = []
        self._listen()

    def _listen(self) -> None:
        evict, preempt, free = (
            self.pool._maybe_evict_cached_block,
            self.scheduler._preempt_request,
            self.scheduler._free_request,
        )

        def on_evict(block: Any, *rest: Any, **named: Any) -> Any:
            lost = evict(block, *rest, **named)
            if lost:
                self.evicted.append(block.block_id)
            return lost

        def on_preempt(r: Any, *rest: Any, **named: Any) -> Any:
            counts = {"num_computed_tokens": r.num_computed_tokens, "num_tokens": r.num_tokens}
            self.preempted.append({"id": r.request_id, "blocks": len(self.table(r.request_id)), **counts})
            return preempt(r, *rest, **named)

        def on_free(r: Any, *rest: Any, **named: Any) -> Any:
            self.finished.append(r.request_id)
            return free(r, *rest, **named)

        self.pool._maybe_evict_cached_block = on_evict
        self.scheduler._preempt_request, self.scheduler._free_request = on_preempt, on_free

    def table(self, name: str) -> list[int]:
        return list(self.kv.get_block_ids(name)[0])

    def token(self, name: str, j: int) -> int:
        return 1_000_000 + 10_000 * self.index[name] + j

    def has_work(self) -> bool:
        return bool(self.order or self.scheduler.running or self.scheduler.waiting)

    def add(self, row: dict[str, Any]) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        longest = row.get("max_output_len", row["output_len"])
        params = SamplingParams(max_tokens=longest)
        if longest > row["output_len"]:
            params.stop_token_ids = [self.token(row["id"], row["output_len"] - 1)]
        self.requests[row["id"]] = request = Request(
            row["id"], list(row["prompt_token_ids"]), params, None, arrival_time=float(len(self.requests)),
            priority=row.get("priority") or 0, block_hasher=self.hasher,
        )  # fmt: skip
        self.scheduler.add_request(request)

    def step(self, step: int) -> dict[str, Any]:
        from vllm.v1.outputs import ModelRunnerOutput

        self.evicted, self.preempted, self.finished, added = [], [], [], []
        while self.order and self.workload[self.order[0]]["arrival_step"] <= step:
            self.add(row := self.workload[self.order.pop(0)])
            added.append(row["id"])
        before = {r.request_id: len(self.table(r.request_id)) for r in self.scheduler.running}
        output = self.scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        admitted = []
        for name in scheduled:
            if name not in before or name in resumed:
                hit = self.requests[name].num_computed_tokens - scheduled[name]
                before[name] = hit // self.size
                admitted.append(
                    {"id": name, "cached_tokens": hit, "cached_blocks": hit // self.size, "resumed": name in resumed,
                     "table": self.table(name)}
                )  # fmt: skip
        record = {
            "step": step, "added": added, "scheduled": [[name, n] for name, n in scheduled.items()], "admitted": admitted,
            "new_block_ids": {name: self.table(name)[before[name] :] for name in scheduled},
            "preempted": self.preempted, "evicted_block_ids": list(self.evicted),
            "free_blocks_after_schedule": self.pool.get_num_free_blocks(),
        }  # fmt: skip
        results = [(output, {name: not self.requests[name].is_prefill_chunk for name in scheduled})]
        if self.config["async_scheduling"]:
            results, self.pending = self.pending, results
        for of_step, samples in results:
            tokens = []
            for name, sampled in samples.items():
                tokens.append([self.token(name, self.num_sampled[name])] if sampled else [])
                self.num_sampled[name] += sampled
            self.scheduler.update_from_output(
                of_step,
                ModelRunnerOutput(
                    req_ids=list(samples), req_id_to_index={name: i for i, name in enumerate(samples)},
                    sampled_token_ids=tokens, logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
                ),
            )  # fmt: skip
        return record | {
            "finished": self.finished, "free_blocks_end": self.pool.get_num_free_blocks(),
            "running": [r.request_id for r in self.scheduler.running], "waiting": [r.request_id for r in self.scheduler.waiting],
            "cached_blocks_in_map": sum(1 for block in self.pool.blocks if block.block_hash is not None),
        }  # fmt: skip


def record(config: dict[str, Any], workload: list[dict[str, Any]]) -> dict[str, Any]:
    run, steps = Recording(config, workload), []
    while run.has_work():
        steps.append(run.step(len(steps)))
    admitted = [row for step in steps for row in step["admitted"]]
    return {
        "system": "vllm", "version": "0.33.0", "commit": "g4ba787ec9",
        "scheduler": type(run.scheduler).__name__, "output_token_rule": RULE, "config": config, "workload": workload,
        "totals": {
            "steps": len(steps),
            "preemptions": sum(len(step["preempted"]) for step in steps),
            "evicted_blocks": sum(len(step["evicted_block_ids"]) for step in steps),
            "hit_tokens_first_admission": sum(row["cached_tokens"] for row in admitted if not row["resumed"]),
            "hit_tokens_resumed": sum(row["cached_tokens"] for row in admitted if row["resumed"]),
            "scheduled_tokens": sum(n for step in steps for _, n in step["scheduled"]),
            "new_blocks": sum(len(ids) for step in steps for ids in step["new_block_ids"].values()),
            "min_free": min(step["free_blocks_after_schedule"] for step in steps),
        },
        "steps": steps,
    }  # fmt: skip


def write(recording: dict[str, Any], path: str) -> None:
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(json.dumps(recording, separators=(",", ":")).encode())


if __name__ == "__main__":
    with open(sys.argv[1]) as options, open(sys.argv[2]) as rows:
        write(record(json.load(options), json.load(rows)), sys.argv[3])
