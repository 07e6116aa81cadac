"""Soak: a simulated day at a share of measured saturation, a restart in the middle, and tests of what had aged.

    result = soak(SoakOptions(hours=24, policy="vllm"))
    result.verdict, result.sentence

The day is cut into windows. At the end of each the server is drained, and the memory that is left is looked at: in an empty
server every live byte is one that somebody forgot, and every hole one that somebody left. Nothing of a window is kept but
one row, so memory does not grow with the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.experiments.soak_faults import FAULTS, SoakFault
from labkit.experiments.soak_trends import Trend, trend
from labkit.experiments.system_memory import kv_memory
from labkit.kv import KV_CACHES, make_kv_cache
from labkit.kv.base import KVCacheManager, KVStats
from labkit.memory import make_allocator
from labkit.serving.base import Scheduler, StepOutcome, StepPlan
from labkit.serving.engine import simulate
from labkit.serving.fast_loop import LinearStepTime, LoadSummary, SummaryRecorder, summarize_load
from labkit.serving.schedulers import SYSTEMS, make_scheduler
from labkit.units import GIB
from labkit.workload.base import RequestSpec
from labkit.workload.synthetic import LOADS
from labkit.workload.traces import load_or_synthetic

#: what makes a rise count: shares of the KV pool, of free memory, of the workspace's device share, of the latency itself
THRESHOLDS = {"live": 0.02, "cached": 0.05, "fragmentation": 0.10, "reserved": 0.05, "latency": 0.20}
#: activations of a prefill: two buffers of 14,336 values a token in 16 bits, from an allocator with this much of the device
WORKSPACE_BYTES_PER_TOKEN, WORKSPACE_DEVICE_BYTES = 2 * 14_336 * 2, 4 * GIB
NUM_PROBE, NUM_WORKSPACE = 5000, 64
#: requests that a window needs before its P95 is worth a test
MIN_REQUESTS = 100


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
        ends = [w.end_h for w in self.windows if w.life == 0]
        return ends[-1] if len(ends) < len(self.windows) else None

    def life(self, number: int) -> list[Window]:
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


def soak(options: SoakOptions, on_window: Callable[[Window], object] | None = None) -> SoakResult:
    """Run it. Raises `LabError` for options that do not go together and when the server stops making progress."""
    options.check()
    began = time.process_time()
    rng = np.random.default_rng(options.seed)
    prompts, outputs, origin = soak_lengths(options.load, options.max_model_len, rng)
    saturation = measure_saturation(options, prompts, outputs) if options.rate is None else float("nan")
    rate = options.share * saturation if options.rate is None else options.rate
    total_s = options.hours * 3600
    window_s = min(total_s, options.window_s or max(60.0, total_s / 48))
    num = max(1, round(total_s / window_s))
    lives = [num - num // 2, num // 2] if options.restart and num > 1 else [num]
    windows: list[Window] = []
    fresh: list[KVStats] = []
    for life, num_windows in enumerate(lives):
        server = _Server(options)
        fresh.append(server.memory())
        for _ in range(num_windows):
            load = _arrivals(prompts, outputs, rate, window_s, rng, prefix=f"w{len(windows)}-")
            row = server.serve(load, life, (len(windows) + 1) * window_s / 3600, prompts, rng)
            windows.append(row)
            if on_window is not None:
                on_window(row)
        server.check()
    trends = [t for life in range(len(lives)) for t in _trends(options, life, windows, fresh[life])]
    verdict, sentence = judge(trends)
    return SoakResult(
        options, origin, saturation, rate, windows, fresh, trends, verdict, sentence, time.process_time() - began
    )  # fmt: skip


# --- the server ----------------------------------------------------------------------------------------------------------


def build_policy(options: SoakOptions) -> Scheduler:
    """A fresh scheduler under `options.policy`."""
    name, tokens = options.policy, options.capacity_tokens
    limits: dict[str, Any] = {
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
    }
    if name in ("vllm", "vllm-no-cache"):
        return make_scheduler(
            "vllm", num_gpu_blocks=tokens // 16 + 1, block_size=16, enable_prefix_caching=name == "vllm", **limits
        )  # fmt: skip
    if name == "sglang":
        return make_scheduler(
            "sglang", max_total_tokens=tokens, chunked_prefill_size=options.max_num_batched_tokens,
            max_running_requests=options.max_num_seqs,
        )  # fmt: skip
    if name == "tensorrt_llm":
        return make_scheduler(
            "tensorrt_llm", num_blocks=tokens // 32, tokens_per_block=32, max_batch_size=options.max_num_seqs,
            max_num_tokens=options.max_num_batched_tokens, enable_chunked_prefill=True,
        )  # fmt: skip
    extra = {"max_model_len": options.max_model_len} if name == "reserve-max" else {}
    kv = make_kv_cache(name, capacity_tokens=tokens, bytes_per_token=options.bytes_per_token, **extra)
    return make_scheduler("lab", kv, max_model_len=options.max_model_len, **limits)


class _Server:
    """One life: scheduler, cache, workspace allocator, fault."""

    def __init__(self, options: SoakOptions):
        self.options, self.scheduler = options, build_policy(options)
        self.workspace = make_allocator("caching", WORKSPACE_DEVICE_BYTES)
        self.fault: SoakFault | None = None
        if options.fault is not None:
            self.fault = FAULTS[options.fault](**options.fault_options)
            self.fault.attach(self._kv())

    def _kv(self) -> KVCacheManager:
        kv = getattr(self.scheduler, "kv", None)
        if not isinstance(kv, KVCacheManager):
            raise LabError(
                f"a fault needs a cache of the lab, and policy {self.options.policy!r} brings its own; choose one of: "
                f"{', '.join(KV_CACHES)}"
            )
        return kv

    def memory(self) -> KVStats:
        stats = kv_memory(self.scheduler, self.options.bytes_per_token)
        if stats is None:
            raise LabError(f"policy {self.options.policy!r} does not show its memory; choose another")
        return stats

    def serve(
        self,
        load: Iterator[RequestSpec],
        life: int,
        end_h: float,
        prompts: np.ndarray,
        rng: np.random.Generator,
    ) -> Window:
        """One window, drained to the last request."""
        if self.fault is None:
            summary = summarize_load(self.scheduler, load, LinearStepTime())
        else:
            recorder = _FaultRecorder(self.fault)
            simulate(self.scheduler, LinearStepTime(), load, recorder)
            summary = recorder.summary
        for tokens in rng.choice(prompts, NUM_WORKSPACE).tolist():
            size = min(int(tokens), self.options.max_num_batched_tokens) * WORKSPACE_BYTES_PER_TOKEN
            self.workspace.free(self.workspace.malloc(size, lifetime="workspace"))
        return self._row(summary, life, end_h)

    def _row(self, summary: LoadSummary, life: int, end_h: float) -> Window:
        memory = self.memory()
        return Window(
            life=life,
            end_h=end_h,
            num_requests=summary.num_requests,
            num_refused=summary.num_refused,
            num_preempted=summary.num_preempted,
            ttft_p50_s=summary.quantile("ttft", 0.5),
            ttft_p95_s=summary.quantile("ttft", 0.95),
            itl_p95_s=summary.quantile("itl", 0.95),
            e2e_p95_s=summary.quantile("e2e", 0.95),
            live_bytes=memory.reserved_bytes,
            cached_bytes=memory.cached_bytes,
            free_bytes=memory.free_bytes,
            fragmentation=contiguity_loss(memory),
            reserved_bytes=memory.capacity_bytes + self.workspace.stats().reserved_bytes,
            rss_bytes=rss_bytes(),
        )

    def check(self) -> None:
        """The cache's own conservation laws, at the end of a life."""
        kv = getattr(self.scheduler, "kv", None)
        (kv if isinstance(kv, KVCacheManager) else self.scheduler).check_integrity()


class _FaultRecorder(SummaryRecorder):
    def __init__(self, fault: SoakFault):
        super().__init__()
        self.fault = fault

    def on_step(
        self, scheduler: Scheduler, plan: StepPlan, outcome: StepOutcome, start_s: float, end_s: float
    ) -> None:
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        for _ in outcome.finished:
            self.fault.finished()


# --- the load ------------------------------------------------------------------------------------------------------------


def soak_lengths(
    load: str, max_model_len: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, str]:
    """Prompt and output lengths to draw from, in pairs, and where they come from. Pairs beyond `max_model_len` are left out."""
    if "/" in load:
        try:
            prompt, output = (int(part) for part in load.split("/"))
        except ValueError:
            prompt = output = 0
        if min(prompt, output) < 1 or prompt + output > max_model_len:
            raise LabError(
                f"load {load!r} is not PROMPT/OUTPUT in tokens, such as 300/60, of at most {max_model_len} together"
            )
        return np.array([prompt]), np.array([output]), f"Load: {prompt} and {output} tokens each."
    if load not in LOADS:
        raise LabError(f"unknown load {load!r}; choose PROMPT/OUTPUT in tokens or one of: {', '.join(LOADS)}")
    requests, origin = load_or_synthetic(load, NUM_PROBE, rng)
    pairs = [(r.num_prompt_tokens, r.num_output_tokens) for r in requests]
    kept = np.array([pair for pair in pairs if sum(pair) < max_model_len])
    if not len(kept):
        raise LabError(f"no request of {load} is shorter than max_model_len={max_model_len}")
    return kept[:, 0], kept[:, 1], origin


def measure_saturation(options: SoakOptions, prompts: np.ndarray, outputs: np.ndarray) -> float:
    """Requests a second of a fresh server that never lacks work: `NUM_PROBE` requests at once, counted between the first
    and the last fifth of the finishes."""
    picks = np.random.default_rng(options.seed + 1).integers(0, len(prompts), NUM_PROBE).tolist()
    load = [RequestSpec(f"p{i}", 0.0, int(prompts[k]), int(outputs[k])) for i, k in enumerate(picks)]
    summary = summarize_load(build_policy(options), load, LinearStepTime())
    if summary.num_finished < NUM_PROBE // 2:
        raise LabError(
            f"only {summary.num_finished} of {NUM_PROBE} requests can be served at all ({summary.num_refused} refused); "
            "give more capacity_tokens or a longer max_model_len"
        )
    ends = np.sort(np.frombuffer(summary.e2e))
    first, last = int(0.2 * len(ends)), int(0.8 * len(ends))
    return float((last - first) / (ends[last] - ends[first]))


def _arrivals(
    prompts: np.ndarray,
    outputs: np.ndarray,
    rate: float,
    window_s: float,
    rng: np.random.Generator,
    prefix: str,
) -> Iterator[RequestSpec]:
    """Poisson arrivals of one window, made while they are asked for."""
    num = int(rng.poisson(rate * window_s))
    times = np.sort(rng.uniform(0.0, window_s, num)).tolist()
    picks = rng.integers(0, len(prompts), num).tolist()
    for i, (at, k) in enumerate(zip(times, picks)):
        yield RequestSpec(f"{prefix}{i}", at, int(prompts[k]), int(outputs[k]))


# --- the verdict ---------------------------------------------------------------------------------------------------------


def _trends(options: SoakOptions, life: int, windows: list[Window], fresh: KVStats) -> list[Trend]:
    rows = [w for w in windows if w.life == life]
    hours = [w.end_h for w in rows]
    pool = fresh.capacity_bytes

    def of(
        name: str,
        key: str,
        unit: str,
        threshold: float,
        start: float | None,
        scale: float = 1.0,
        less: int = 0,
    ) -> Trend:
        values = [(getattr(w, key) - less) / scale for w in rows]
        return trend(name, unit, life, hours, values, threshold=threshold, fresh=start)

    loss = contiguity_loss(fresh)
    ttft = float(np.median([w.ttft_p95_s for w in rows[: max(1, len(rows) // 4)]]))
    found = [
        of("live after drain", "live_bytes", "share of the pool", THRESHOLDS["live"], fresh.reserved_bytes / pool, pool),
        of("cached after drain", "cached_bytes", "share of the pool", THRESHOLDS["cached"], fresh.cached_bytes / pool, pool),
        of("fragmentation after drain", "fragmentation", "share of the free bytes", THRESHOLDS["fragmentation"], loss),
        of("reserved after drain", "reserved_bytes", "share of the workspace's device memory", THRESHOLDS["reserved"],
           None, WORKSPACE_DEVICE_BYTES, pool),
    ]  # fmt: skip
    if np.median([w.num_requests for w in rows]) >= MIN_REQUESTS:
        found.append(of("TTFT P95", "ttft_p95_s", "s", THRESHOLDS["latency"] * ttft, None))
    return found


def judge(trends: list[Trend]) -> tuple[str, str]:
    """`(verdict, sentence)` from the trends of all lives; what holds in one life is enough, healed by the restart or not."""
    if all(t.num_windows < 6 for t in trends):
        return "too short to say", "No life has six windows; a slope test needs at least as many."
    found = {
        name: max((t for t in trends if t.name == name), key=lambda t: (t.aged, t.rise))
        for name in dict.fromkeys(t.name for t in trends)
    }
    live, cached = found["live after drain"], found["cached after drain"]
    holes, reserved, ttft = (
        found["fragmentation after drain"],
        found["reserved after drain"],
        found.get("TTFT P95"),
    )
    slower = ttft is not None and ttft.aged
    if ttft is None:
        effect = f" TTFT P95 is not judged: windows have fewer than {MIN_REQUESTS} requests."
    elif slower:
        effect = f" TTFT P95 rose from {ttft.fresh:.2f} to {ttft.last:.2f} s."
    else:
        effect = " TTFT P95 did not grow."
    if live.leaks:
        return "leak", (
            f"Live memory in the drained server grew by {100 * live.slope:.2f} % of the pool an hour (p = {live.p:.1g}) to "
            f"{100 * live.last:.1f} %: somebody keeps blocks.{effect}"
        )
    if holes.aged:
        return "fragmentation ageing", (
            f"Of the free memory of the drained server {100 * holes.last:.0f} % lies outside the largest span, {100 * holes.fresh:.0f} % "
            f"when it was fresh, and what is live did not grow.{effect}"
        )
    if reserved.leaks:
        return "allocator growth", (
            f"The allocator's reserved memory grew by {100 * reserved.slope:.2f} % of its device share an hour (p = {reserved.p:.1g}) "
            f"with nothing live.{effect}"
        )
    if slower:
        return "latency ageing", f"Memory came back to what it was.{effect}"
    if cached.aged:
        return "cache fill", (
            f"After the drain {100 * cached.last:.0f} % of the pool is cached and what is live did not grow: the cache is "
            f"full, which is what it is for.{effect}"
        )
    return (
        "no ageing",
        f"Nothing grew by its threshold: memory after each drain stayed what it was.{effect}",
    )


def contiguity_loss(memory: KVStats) -> float:
    """1 - largest free span / free bytes; 0 where nothing is free."""
    return 1 - memory.largest_free_bytes / memory.free_bytes if memory.free_bytes else 0.0


def rss_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
