"""TensorRT-LLM's own option names (`llmapi/llm_args.py`: `TorchLlmArgs`, `SchedulerConfig`, `KvCacheConfig`; the last four
rows are arguments of the schedulers and of the executor), their ranges and contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from labkit.errors import LabError

CAPACITY_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
CHUNKING_POLICIES = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")


@dataclass(frozen=True, slots=True)
class TensorRtLlmOptions:
    """The pool: `num_blocks`; or `max_tokens`; or `free_gpu_memory_fraction` of `free_gpu_memory_bytes` (what is free after
    the model is loaded), at `kv_bytes_per_token`. With several, the smallest counts.

    `kv_cache_manager=False` is an engine without KV cache: only `max_num_requests` limits it (MaxRequests policy).
    `chunk_unit_size` defaults to a block, `max_num_requests` to `max_batch_size`.
    """

    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str = "FIRST_COME_FIRST_SERVED"
    tokens_per_block: int = 32
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float = 0.9
    free_gpu_memory_bytes: int | None = None
    kv_bytes_per_token: int | None = None
    num_blocks: int | None = None
    chunk_unit_size: int | None = None
    max_num_requests: int | None = None
    max_num_active_requests: int | None = None
    two_step_lookahead: bool = False
    enable_prefix_aware_scheduling: bool = True
    kv_cache_manager: bool = True

    @staticmethod
    def parse(options: Mapping[str, Any]) -> TensorRtLlmOptions:
        """Raises `LabError`, one sentence, for an unknown name, a value out of range, or what does not go together."""
        names = [f.name for f in fields(TensorRtLlmOptions)]
        for name, value in options.items():
            if name not in names:
                raise LabError(
                    f"TensorRT-LLM option {name!r} is not known; choose from: {', '.join(sorted(names))}"
                )
            _check(name, value)
        parsed = TensorRtLlmOptions(**options)
        if parsed.kv_cache_manager and parsed.pool_blocks < 1:
            raise LabError(
                "the KV pool has no whole block; give num_blocks, max_tokens or free_gpu_memory_bytes that hold one"
            )
        if parsed.enable_chunked_prefill and parsed.max_num_tokens < parsed.unit:
            raise LabError(
                f"max_num_tokens={parsed.max_num_tokens} is smaller than one chunk unit of {parsed.unit} tokens; "
                "no long prompt could ever be cut"
            )
        return parsed

    @property
    def unit(self) -> int:
        """Context chunks are multiples of this many tokens."""
        return self.chunk_unit_size or self.tokens_per_block

    @property
    def request_limit(self) -> int:
        return self.max_num_requests or self.max_batch_size

    @property
    def pool_blocks(self) -> int:
        """The smallest of the limits that are given, in blocks; raises `LabError` where none is."""
        limits = []
        if self.num_blocks is not None:
            limits.append(self.num_blocks)
        if self.max_tokens is not None:
            limits.append(self.max_tokens // self.tokens_per_block)
        if self.free_gpu_memory_bytes is not None:
            if self.kv_bytes_per_token is None:
                raise LabError("free_gpu_memory_bytes needs kv_bytes_per_token to become a number of blocks")
            usable = self.free_gpu_memory_bytes * self.free_gpu_memory_fraction
            limits.append(int(usable // (self.kv_bytes_per_token * self.tokens_per_block)))
        if not limits:
            raise LabError("the KV pool has no size; give num_blocks, max_tokens, or free_gpu_memory_bytes")
        return min(limits)


_FLAGS = (
    "enable_chunked_prefill", "enable_block_reuse", "two_step_lookahead", "enable_prefix_aware_scheduling", "kv_cache_manager",
)  # fmt: skip
_REQUIRED_NUMBERS = ("max_batch_size", "max_num_tokens", "tokens_per_block")


def _check(name: str, value: Any) -> None:
    if name == "capacity_scheduler_policy":
        accepted, good = f"one of {', '.join(CAPACITY_POLICIES)}", value in CAPACITY_POLICIES
    elif name == "context_chunking_policy":
        accepted, good = f"one of {', '.join(CHUNKING_POLICIES)}", value in CHUNKING_POLICIES
    elif name == "free_gpu_memory_fraction":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        accepted, good = "a number above 0 and at most 1", number and 0 < value <= 1
    elif name in _FLAGS:
        accepted, good = "True or False", isinstance(value, bool)
    else:
        may_be_none = name not in _REQUIRED_NUMBERS
        whole = isinstance(value, int) and not isinstance(value, bool)
        accepted = "a whole number, at least 1" + (", or None" if may_be_none else "")
        good = (whole and value >= 1) or (may_be_none and value is None)
    if not good:
        raise LabError(f"TensorRT-LLM option {name}={value!r} is not usable; it must be {accepted}")
