"""The load of a soak: lengths to draw from, what a fresh server can take of them, and arrivals at a share of that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.errors import LabError
from labkit.experiments.soak_result import SoakOptions
from labkit.experiments.soak_server import build_policy
from labkit.serving.fast_loop import LinearStepTime, summarize_load
from labkit.workload.base import RequestSpec
from labkit.workload.synthetic import LOADS
from labkit.workload.traces import load_or_synthetic

#: requests that saturation is measured with, and read from a trace for their lengths
NUM_PROBE = 5000


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


def arrivals(
    prompts: np.ndarray,
    outputs: np.ndarray,
    rate: float,
    window_s: float,
    rng: np.random.Generator,
    prefix: str,
) -> Iterator[RequestSpec]:
    """Poisson arrivals of one window of `window_s`, `rate` a second, made while they are asked for."""
    num = int(rng.poisson(rate * window_s))
    times = np.sort(rng.uniform(0.0, window_s, num)).tolist()
    picks = rng.integers(0, len(prompts), num).tolist()
    for i, (at, k) in enumerate(zip(times, picks)):
        yield RequestSpec(f"{prefix}{i}", at, int(prompts[k]), int(outputs[k]))
