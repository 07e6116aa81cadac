"""vLLM's own option names, their ranges, and what the lab models of them (vLLM 0.33, `config/scheduler.py`, `config/cache.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from labkit.errors import LabError


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Class defaults of vLLM, with two exceptions. `num_gpu_blocks`, which vLLM finds by profiling, must be given.
    `async_scheduling` is off unless asked for; the real server turns it on where its executor can.
    `max_model_len=None` means the longest sequence that the pool can hold (vLLM's "auto").
    """

    num_gpu_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    max_num_seqs: int = 128
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    policy: str = "fcfs"
    async_scheduling: bool = False

    @staticmethod
    def parse(options: Mapping[str, Any], strict: bool = True) -> VllmOptions:
        """Raises `LabError`, one sentence, for an unknown name, a value out of range, or two that contradict. `strict` also
        refuses a token budget below one block, which vLLM takes."""
        names = [f.name for f in fields(VllmOptions)]
        for name in options:
            if name not in names:
                raise LabError(f"vLLM option {name!r} is not known; choose from: {', '.join(sorted(names))}")
        if "num_gpu_blocks" not in options:
            raise LabError("vLLM option num_gpu_blocks is missing; give the number of KV blocks, at least 2")
        for name, value in options.items():
            _check(name, value)
        parsed = VllmOptions(**options)
        parsed._check_together()
        if strict and parsed.budget < parsed.block_size:
            raise LabError(
                f"a step of {parsed.budget} tokens is smaller than one block (block_size={parsed.block_size})"
            )
        return parsed

    @property
    def model_len(self) -> int:
        """`max_model_len`, or the longest that fits the pool (and, without chunked prefill, one step)."""
        if self.max_model_len is not None:
            return self.max_model_len
        longest = (self.num_gpu_blocks - 1) * self.block_size
        return longest if self.enable_chunked_prefill else min(longest, self.max_num_batched_tokens)

    @property
    def watermark_blocks(self) -> int:
        """Of all blocks, the null block included (`kv_cache_manager.py`, `KVCacheManager.__init__`)."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def budget(self) -> int:
        """Tokens that one step may schedule."""
        return min(self.max_num_scheduled_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)

    def _check_together(self) -> None:
        """`config/scheduler.py`, `SchedulerConfig.verify_max_model_len`."""
        tokens, seqs, length = self.max_num_batched_tokens, self.max_num_seqs, self.model_len
        if not self.enable_chunked_prefill and tokens < length:
            raise LabError(
                f"max_num_batched_tokens={tokens} is below max_model_len={length} while enable_chunked_prefill is off; "
                "no step could hold the longest prompt, raise one or lower the other"
            )
        if tokens < seqs:
            raise LabError(f"max_num_batched_tokens={tokens} must be at least max_num_seqs={seqs}")
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > seqs:
            raise LabError(
                f"max_num_active_seqs={self.max_num_active_seqs} must be at most max_num_seqs={seqs}"
            )
        if self.long_prefill_token_threshold > length:
            raise LabError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold} must be at most max_model_len={length}"
            )


_LEAST = {
    "num_gpu_blocks": 2,  # block 0 is the null block
    "block_size": 1,
    "max_model_len": 2,
    "max_num_batched_tokens": 1,
    "max_num_scheduled_tokens": 1,
    "max_num_seqs": 1,
    "max_num_active_seqs": 1,
    "long_prefill_token_threshold": 0,
    "prefill_schedule_interval": 1,
}
_MAY_BE_NONE = ("max_model_len", "max_num_scheduled_tokens", "max_num_active_seqs")


def _check(name: str, value: Any) -> None:
    if name == "policy":
        accepted, good = "fcfs or priority", value in ("fcfs", "priority")
    elif name == "watermark":
        number = isinstance(value, int | float) and not isinstance(value, bool)
        accepted, good = "a number from 0 up to, not including, 1", number and 0 <= value < 1
    elif name in _LEAST:
        whole = isinstance(value, int) and not isinstance(value, bool)
        good = (whole and value >= _LEAST[name]) or (value is None and name in _MAY_BE_NONE)
        accepted = f"a whole number, at least {_LEAST[name]}" + (", or None" if name in _MAY_BE_NONE else "")
    else:
        accepted, good = "True or False", isinstance(value, bool)
    if not good:
        raise LabError(f"vLLM option {name}={value!r} is not usable; it must be {accepted}")
