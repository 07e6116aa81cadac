"""The settings string of PyTorch's allocator, `PYTORCH_CUDA_ALLOC_CONF`, read as PyTorch 2.14 reads it.

Source: c10/core/AllocatorConfig.{h,cpp} (`AcceleratorAllocatorConfig::parseArgs`) and
c10/cuda/CUDAAllocatorConfig.{h,cpp} (`CUDAAllocatorConfig::parseArgs`). One call walks the string twice, like there:
first the common settings, then those of CUDA. Separators are passed over without being looked at, as there: only a
string that ends too early is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.memory.caching.conf_tokens import UNLIMITED, AllocatorConfError, Tokens
from labkit.units import MIB

__all__ = ["NUM_INTERVALS", "UNLIMITED", "AllocatorConfError", "AllocatorSettings"]

NUM_INTERVALS = 16
_MAX_MIB = UNLIMITED // MIB


@dataclass
class AllocatorSettings:
    """Values in bytes. `divisions[i]` belongs to sizes in [2^i, 2^(i+1)) MiB; 0 means rounding to 512 bytes.

    `set(conf)` again resets the split limit, its rounding, the divisions and the garbage-collection threshold;
    everything else keeps its last value, and what was read before an error stays, as in PyTorch.
    """

    large_segment_size: int = 20 * MIB
    max_split_size: int = UNLIMITED
    max_non_split_rounding_size: int = 20 * MIB
    divisions: list[int] = field(default_factory=lambda: [0] * NUM_INTERVALS)
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    #: settings that change nothing in this model (pinned host memory, locks, graph capture), by key
    without_effect: dict[str, bool | int] = field(default_factory=dict)
    conf: str = ""

    @classmethod
    def parse(cls, conf: str) -> AllocatorSettings:
        """The defaults, and then `conf`; raises `AllocatorConfError`."""
        settings = cls()
        settings.set(conf)
        return settings

    def set(self, conf: str) -> None:
        """Apply a settings string; raises `AllocatorConfError`."""
        self.max_split_size = UNLIMITED
        self.divisions = [0] * NUM_INTERVALS
        self.garbage_collection_threshold = 0.0
        self.conf = conf
        tokens = Tokens(conf)
        i = 0
        while i < len(tokens):  # before the rest, because two limits below are compared with it
            if tokens[i] == "large_segment_size_mb":
                i = self._large_segment_size(tokens, i)
            i += 1
        self.max_non_split_rounding_size = self.large_segment_size
        self._walk(tokens, _COMMON, "Accelerator")
        self._walk(tokens, _CUDA, "CUDA")

    def _walk(self, tokens: Tokens, parsers: dict[str, Parser], where: str) -> None:
        i = 0
        while i < len(tokens):
            key = tokens[i]
            if key in parsers:
                i = parsers[key](self, tokens, i)
            elif key in _KEYS:
                i = tokens.skip_value(i)
            else:
                raise tokens.error(f"Unrecognized key '{key}' in {where} allocator config.")
            if i + 1 < len(tokens):
                i += 1  # the comma
            i += 1

    # One method a key: `i` is the index of the key, the result that of the last token used.

    def _large_segment_size(self, tokens: Tokens, i: int) -> int:
        value = tokens.integer(i + 2)
        if value <= 10:
            raise tokens.error("CachingAllocator option large_segment_size_mb must be > 10 MB")
        self.large_segment_size = min(value, _MAX_MIB) * MIB
        return i + 2

    def _max_split_size(self, tokens: Tokens, i: int) -> int:
        self.max_split_size = self._at_least_a_segment(tokens, i, "max_split_size_mb")
        return i + 2

    def _max_non_split_rounding(self, tokens: Tokens, i: int) -> int:
        self.max_non_split_rounding_size = self._at_least_a_segment(tokens, i, "max_non_split_rounding_mb")
        return i + 2

    def _at_least_a_segment(self, tokens: Tokens, i: int, key: str) -> int:
        least = self.large_segment_size // MIB
        value = tokens.integer(i + 2)
        if value < least:
            raise tokens.error(f"CachingAllocator option {key} too small, must be >= {least}")
        return min(value, _MAX_MIB) * MIB

    def _garbage_collection(self, tokens: Tokens, i: int) -> int:
        value = tokens.number(i + 2)
        if not 0 < value < 1:
            raise tokens.error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        self.garbage_collection_threshold = value
        return i + 2

    def _divisions(self, tokens: Tokens, i: int) -> int:
        i += 2
        if tokens[i] != "[":
            value = tokens.integer(i)
            if not _is_power_of_two(value):
                raise tokens.error("For roundups, the divisions has to be power of 2")
            self.divisions = [value] * NUM_INTERVALS
            return i
        first, last = True, 0
        i += 1
        while i < len(tokens) and tokens[i] != "]":
            key, value = tokens[i], tokens.integer(i + 2)
            if value and not _is_power_of_two(value):
                raise tokens.error("For roundups, the divisions has to be power of 2 or 0 to disable roundup")
            if key == ">":  # what comes after the last named interval
                self.divisions[last + 1 :] = [value] * (NUM_INTERVALS - last - 1)
            else:
                boundary = tokens.integer(i)
                if not _is_power_of_two(boundary):
                    raise tokens.error("For roundups, the intervals have to be power of 2")
                last = min(boundary.bit_length() - 1, NUM_INTERVALS - 1)
                if first:  # the first named interval also stands for all below it
                    self.divisions[:last] = [value] * last
                    first = False
                self.divisions[last] = value
            i += 2
            if tokens[i + 1] != "]":
                i += 1
            i += 1
        if i >= len(tokens):
            raise tokens.error("Expected closing bracket ']' in ConfigTokenizer but reached end of config")
        return i

    def _fraction(self, tokens: Tokens, i: int) -> int:
        value = tokens.number(i + 2)
        if not 0 <= value <= 1:
            raise tokens.error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")
        self.per_process_memory_fraction = value
        return i + 2

    def _backend(self, tokens: Tokens, i: int) -> int:
        if tokens[i + 2] == "cudaMallocAsync":
            raise tokens.error("backend:cudaMallocAsync is not modelled, only native")
        if tokens[i + 2] != "native":
            raise tokens.error("Unknown allocator backend, options are native and cudaMallocAsync")
        return i + 2

    def _num_register_threads(self, tokens: Tokens, i: int) -> int:
        value = tokens.integer(i + 2)
        if not _is_power_of_two(value):
            raise tokens.error(f"Number of register threads has to be power of 2, got {value}")
        if value > 128:
            raise tokens.error(f"Number of register threads should be less than or equal to 128, got {value}")
        self.without_effect[tokens[i]] = value
        return i + 2

    def _reserve_segment_size(self, tokens: Tokens, i: int) -> int:
        value = tokens.integer(i + 2)
        if not value:
            raise tokens.error("Pinned reserve segment size has to be greater than 0")
        self.without_effect[tokens[i]] = value
        return i + 2

    def _expandable(self, tokens: Tokens, i: int) -> int:
        self.expandable_segments = tokens.boolean(i + 2)
        return i + 2

    def _throw_on_oom(self, tokens: Tokens, i: int) -> int:
        self.throw_on_cudamalloc_oom = tokens.boolean(i + 2)
        return i + 2

    def _other_boolean(self, tokens: Tokens, i: int) -> int:
        self.without_effect[tokens[i]] = tokens.boolean(i + 2)
        return i + 2

    def _other_integer(self, tokens: Tokens, i: int) -> int:
        self.without_effect[tokens[i]] = tokens.integer(i + 2)
        return i + 2


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


Parser = Callable[[AllocatorSettings, Tokens, int], int]
_S = AllocatorSettings
_COMMON: dict[str, Parser] = {
    "max_split_size_mb": _S._max_split_size,
    "max_non_split_rounding_mb": _S._max_non_split_rounding,
    "garbage_collection_threshold": _S._garbage_collection,
    "roundup_power2_divisions": _S._divisions,
    "expandable_segments": _S._expandable,
    "pinned_use_background_threads": _S._other_boolean,
    "pinned_max_round_threshold_mb": _S._other_integer,
    "pinned_max_cached_size_mb": _S._other_integer,
}
_CUDA: dict[str, Parser] = {
    "backend": _S._backend,
    "release_lock_on_cudamalloc": _S._other_boolean,
    "release_lock_on_hipmalloc": _S._other_boolean,
    "pinned_use_cuda_host_register": _S._other_boolean,
    "pinned_use_hip_host_register": _S._other_boolean,
    "graph_capture_record_stream_reuse": _S._other_boolean,
    "pinned_reserve_segment_size_mb": _S._reserve_segment_size,
    "pinned_num_register_threads": _S._num_register_threads,
    "per_process_memory_fraction": _S._fraction,
    "pinned_free_catch_all": _S._other_boolean,
    "throw_on_cudamalloc_oom": _S._throw_on_oom,
}
_KEYS = {"large_segment_size_mb", *_COMMON, *_CUDA}
