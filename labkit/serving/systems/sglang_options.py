"""SGLang's own option names, their defaults and their rules (0.5.23, `arg_groups/fields/schedule.py`, `memory.py`,
`validation_hook.py`). What a server resolves by looking at its GPU is written out here as a plain number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.errors import LabError

SCHEDULE_POLICIES = ("fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first")
#: the command line offers lru, lfu, slru, priority and tlru; the code behind it also has the other three
EVICTION_POLICIES = ("lru", "lfu", "fifo", "filo", "mru", "slru", "priority", "tlru")
RETRACTION_POLICIES = ("length", "priority")


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What `mem_fraction_static` needs to become a pool size (bytes of one GPU)."""

    free_bytes_before_load: int
    free_bytes_after_load: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions:
    """One server's scheduling options. Tokens, requests, ratios.

    `max_total_tokens` is the size of the pool. Without it, `mem_fraction_static` and `memory` give one; with both, the
    smaller counts. Raises `LabError` (one sentence) for a value SGLang would refuse.
    """

    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    memory: MemoryFacts | None = None
    page_size: int = 1
    context_length: int | None = None
    max_running_requests: int = 256
    max_queued_requests: int | None = None
    max_prefill_tokens: int = 16384
    #: tokens of one prefill pass; zero or less switches chunking off
    chunked_prefill_size: int = 8192
    prefill_max_requests: int | None = None
    prefill_decode_interval: int = 0
    prefill_decode_interval_min_bs: int = 0
    enable_mixed_chunk: bool = False
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    disable_radix_cache: bool = False
    radix_eviction_policy: str = "lru"
    radix_eviction_policy_config: Mapping[str, float] = field(default_factory=dict)
    enable_priority_scheduling: bool = False
    disable_priority_preemption: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    retraction_policy: str = "length"
    #: not a server option: the load's requests ask to ignore the end-of-sequence token
    ignore_eos: bool = False

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> SglangOptions:
        """Options by name, as they stand in a file or on a command line."""
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise LabError(f"unknown SGLang option {name!r}; options are: {', '.join(sorted(known))}")
        return cls(**options)

    def __post_init__(self) -> None:
        for name in ("page_size", "max_running_requests", "max_prefill_tokens"):
            _whole(self, name, 1)
        for name in (
            "max_total_tokens",
            "context_length",
            "max_queued_requests",
            "prefill_max_requests",
        ):
            if getattr(self, name) is not None:
                _whole(self, name, 1)
        for name in ("prefill_decode_interval", "prefill_decode_interval_min_bs"):
            _whole(self, name, 0)
        _whole(self, "chunked_prefill_size", None)
        _whole(self, "priority_scheduling_preemption_threshold", None)
        _one_of(self, "schedule_policy", SCHEDULE_POLICIES)
        _one_of(self, "radix_eviction_policy", EVICTION_POLICIES)
        _one_of(self, "retraction_policy", RETRACTION_POLICIES)
        for name in (f.name for f in fields(self) if f.type == "bool"):
            if not isinstance(getattr(self, name), bool):
                raise LabError(f"SGLang option {name} is {getattr(self, name)!r}; it is true or false")
        _number(self, "schedule_conservativeness", 0.0, None)
        if self.mem_fraction_static is not None:
            _number(self, "mem_fraction_static", 0.0, 1.0)
        if self.max_total_tokens is None and (self.mem_fraction_static is None or self.memory is None):
            raise LabError(
                "SGLang needs a pool size: give max_total_tokens, or mem_fraction_static together with memory facts"
            )
        if self.capacity < self.page_size:
            raise LabError(
                f"SGLang's pool of {self.capacity} tokens is smaller than one page of {self.page_size}"
            )

    def check_combinations(self) -> None:
        """What a server refuses at start although each value alone is good (`validation_hook.py`). Recordings of the
        bare scheduler may hold such a combination, so this is asked for separately."""
        if self.chunked_prefill_size > 0 and self.chunked_prefill_size % self.page_size:
            raise LabError(
                f"SGLang option chunked_prefill_size is {self.chunked_prefill_size}; it must be a multiple of "
                f"page_size ({self.page_size}), or -1 for no chunking"
            )
        if self.enable_priority_scheduling and self.schedule_policy not in ("fcfs", "lof"):
            raise LabError(
                f"SGLang option schedule_policy is {self.schedule_policy!r}; with enable_priority_scheduling it is fcfs or lof"
            )
        if self.retraction_policy == "priority" and not self.enable_priority_scheduling:
            raise LabError("SGLang option retraction_policy 'priority' needs enable_priority_scheduling")
        if self.schedule_policy == "shortest-prefill-first" and self.disable_radix_cache:
            raise LabError("SGLang option schedule_policy 'shortest-prefill-first' needs the radix cache")
        config, accepted = (
            self.radix_eviction_policy_config,
            _POLICY_CONFIG.get(self.radix_eviction_policy, ()),
        )
        for name, value in config.items():
            if name not in accepted or isinstance(value, bool) or not isinstance(value, int | float):
                raise LabError(
                    f"SGLang option radix_eviction_policy_config has {name}={value!r}; "
                    f"{self.radix_eviction_policy} takes {', '.join(accepted) or 'nothing'} (numbers)"
                )
        if self.radix_eviction_policy == "tlru" and not (
            config.get("threshold", 0) > config.get("next_prompt_estimate", 0) >= 0
        ):
            raise LabError(
                "SGLang option radix_eviction_policy 'tlru' needs radix_eviction_policy_config with a threshold greater "
                "than next_prompt_estimate, both not negative"
            )

    @property
    def capacity(self) -> int:
        """Token slots of the pool, in whole pages."""
        sizes = [] if self.max_total_tokens is None else [self.max_total_tokens]
        if self.mem_fraction_static is not None and self.memory is not None:
            sizes.append(max_total_tokens(self.mem_fraction_static, self.memory))
        return min(sizes) // self.page_size * self.page_size

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens of a prefill chunk; None where prompts are not chunked."""
        return self.chunked_prefill_size if self.chunked_prefill_size > 0 else None

    @property
    def preempts_by_priority(self) -> bool:
        return self.enable_priority_scheduling and not self.disable_priority_preemption


def max_total_tokens(mem_fraction_static: float, memory: MemoryFacts) -> int:
    """Tokens that fit beside weights: everything but a slack of `(1 - mem_fraction_static)` of what was free before
    loading (`kv_cache_configurator.py` `_profile_available_bytes`)."""
    slack = memory.free_bytes_before_load * (1 - mem_fraction_static)
    return max(0, int((memory.free_bytes_after_load - slack) // memory.bytes_per_token))


_POLICY_CONFIG = {"slru": ("protected_threshold",), "tlru": ("threshold", "next_prompt_estimate")}


def _whole(options: SglangOptions, name: str, least: int | None) -> None:
    value = getattr(options, name)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        what = "a whole number" if least is None else f"a whole number of at least {least}"
        raise LabError(f"SGLang option {name} is {value!r}; it is {what}")


def _number(options: SglangOptions, name: str, above: float, most: float | None) -> None:
    value = getattr(options, name)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not value > above or (most is not None and value > most):
        limit = f"a number above {above:g}" + ("" if most is None else f" and at most {most:g}")
        raise LabError(f"SGLang option {name} is {value!r}; it is {limit}")


def _one_of(options: SglangOptions, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(options, name)
    if value not in choices:
        raise LabError(f"SGLang option {name} is {value!r}; choose one of: {', '.join(choices)}")
