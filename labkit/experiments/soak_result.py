"""What a soak is asked for, one row a window, and what came out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.soak_faults import FAULTS
from labkit.experiments.soak_trends import Trend
from labkit.kv import KV_CACHES
from labkit.kv.base import KVStats
from labkit.serving.schedulers import SYSTEMS


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """`policy` is a system ("vllm", "sglang", "tensorrt_llm", "vllm-no-cache") or a KV cache of the lab under its
    scheduler. `load` names a trace ("azure-conv") or a fixed length "PROMPT/OUTPUT". `window_s` None: a 48th of the run, at
    least a minute. `fault` is None or a name of `soak_faults`, for the lab's caches. `rate` None: `share` of saturation."""

    hours: float = 24.0
    policy: str = "vllm"
    load: str = "azure-conv"
    share: float = 0.8
    rate: float | None = None
    capacity_tokens: int = 416_000
    bytes_per_token: int = 131_072
    max_model_len: int = 16_384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    window_s: float | None = None
    restart: bool = True
    fault: str | None = None
    fault_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def check(self) -> None:
        """Raises `LabError` for what no run could use."""
        names = ("vllm-no-cache", *SYSTEMS, *KV_CACHES)
        if self.policy not in names:
            raise LabError(f"unknown policy {self.policy!r}; choose one of: {', '.join(names)}")
        if self.fault is not None and self.fault not in FAULTS:
            raise LabError(f"unknown fault {self.fault!r}; choose one of: {', '.join(FAULTS)}")
        for name in ("hours", "share", "capacity_tokens", "bytes_per_token", "max_model_len", "max_num_seqs"):
            if not getattr(self, name) > 0:
                raise LabError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("rate", "window_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise LabError(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True, slots=True)
class Window:
    """One row. Latencies of the requests of the window; bytes after the drain at its end."""

    life: int
    end_h: float
    num_requests: int
    num_refused: int
    num_preempted: int
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p95_s: float
    e2e_p95_s: float
    live_bytes: int
    cached_bytes: int
    free_bytes: int
    fragmentation: float
    reserved_bytes: int
    rss_bytes: int


@dataclass(frozen=True)
class SoakResult:
    """`fresh` is the memory of each life before its first request; `saturation` and `rate` in requests a second."""

    options: SoakOptions
    origin: str
    saturation: float
    rate: float
    windows: list[Window]
    fresh: list[KVStats]
    trends: list[Trend]
    verdict: str
    sentence: str
    cpu_s: float

    @property
    def num_requests(self) -> int:
        return sum(w.num_requests for w in self.windows)

    @property
    def restart_h(self) -> float | None:
        """Hours after the start; None where there was no restart."""
        ends = [w.end_h for w in self.windows if w.life == 0]
        return ends[-1] if len(ends) < len(self.windows) else None

    def life(self, number: int) -> list[Window]:
        """The windows before (0) or after (1) the restart."""
        return [w for w in self.windows if w.life == number]

    def before_and_after(self) -> dict[str, tuple[float, float]]:
        """Latencies: medians over the last quarter of the first life and the first quarter of the second. Memory: after the
        last drain before the restart, and just after it, before the first request."""
        if self.restart_h is None:
            return {}
        old, new = self.life(0), self.life(1)
        before, after, fresh = old[-max(1, len(old) // 4) :], new[: max(1, len(new) // 4)], self.fresh[1]
        found = {
            name: (
                float(np.median([getattr(w, name) for w in before])),
                float(np.median([getattr(w, name) for w in after])),
            )
            for name in ("ttft_p50_s", "ttft_p95_s", "itl_p95_s", "e2e_p95_s")
        }
        memory = {
            "live_bytes": fresh.reserved_bytes, "cached_bytes": fresh.cached_bytes, "free_bytes": fresh.free_bytes,
            "fragmentation": contiguity_loss(fresh), "reserved_bytes": fresh.capacity_bytes,
        }  # fmt: skip
        return found | {name: (float(getattr(old[-1], name)), float(now)) for name, now in memory.items()}

    def ages(self) -> bool:
        """Something got worse with age; a cache that filled up is not worse."""
        return self.verdict not in ("no ageing", "cache fill", "too short to say")

    def as_dict(self) -> dict[str, Any]:
        return {
            "options": asdict(self.options), "origin": self.origin, "saturation_per_s": self.saturation,
            "rate_per_s": self.rate, "num_requests": self.num_requests, "verdict": self.verdict,
            "sentence": self.sentence, "cpu_s": self.cpu_s, "before_and_after_restart": self.before_and_after(),
            "trends": [asdict(t) | {"grows": t.grows, "aged": t.aged} for t in self.trends],
            "windows": [asdict(w) for w in self.windows],
        }  # fmt: skip


def contiguity_loss(memory: KVStats) -> float:
    """1 - largest free span / free bytes; 0 where nothing is free."""
    return 1 - memory.largest_free_bytes / memory.free_bytes if memory.free_bytes else 0.0
