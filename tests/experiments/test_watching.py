"""Section 11: each predicate on three seeds, with its control."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiments.one_reading import CAUSES, one_reading_four_causes, told_apart
from labkit.experiments.serve import serve
from labkit.experiments.soak_faults import Leak
from labkit.experiments.watching import (
    DEVICE_BYTES,
    alike,
    device_with,
    harmed_and_healed,
    lost_contiguity,
    room_for,
    sees_what_stays,
    steady_load,
    watch,
    with_long_answers,
    with_restart,
)
from labkit.observe.measure import measure
from labkit.units import GIB
from labkit.workload.sessions import SessionLoad, session_load
from labkit.workload.synthetic import synthetic_load

PER_TOKEN = 131_072
seeds = pytest.mark.parametrize("seed", [0, 1, 2])


def load(seed, num=400):
    requests = synthetic_load("azure-conv", num, np.random.default_rng(seed))
    return [r for r in requests if r.num_prompt_tokens + r.num_output_tokens < 8000]


def test_nvidia_smi_is_what_is_reserved_and_what_lies_outside():
    device = device_with(15 * GIB, 8 * GIB)
    before = device.nvidia_smi_bytes
    assert before == 23 * GIB + GIB // 2
    device.spike(3 * GIB)
    assert device.nvidia_smi_bytes == before + 3 * GIB, "the temporary is gone and its segment is not"
    assert device.nvidia_smi == device.nvidia_smi_bytes / DEVICE_BYTES


@seeds
def test_the_reading_hides_what_is_allocatable(seed):
    run = watch(steady_load(load(seed), 300, 5.0, np.random.default_rng(seed)), device_with(15 * GIB, 5 * GIB),
                bytes_per_token=PER_TOKEN)  # fmt: skip
    assert run.idle().hides(run.busiest())
    assert not run.idle().hides(run.idle())


@seeds
def test_contiguity_is_lost_in_one_piece_only(seed):
    requests = with_long_answers(load(seed), np.random.default_rng(seed), share=0.05)
    pool = {"capacity_tokens": 60_000, "bytes_per_token": PER_TOKEN, "every": 4}
    assert lost_contiguity(serve("reserve-pow2", requests, **pool), 4096) > 0.1
    assert lost_contiguity(serve("paged", requests, **pool), 4096) == 0.0


@seeds
def test_lifetimes(seed):
    rng = np.random.default_rng(seed)
    chats = with_long_answers(session_load(SessionLoad(session_rate=1.5, think_s=15.0), 90, rng), rng)
    options = {"bytes_per_token": PER_TOKEN, "kv_options": {"prefix": "hash"}}
    assert sees_what_stays(watch(chats, device_with(15 * GIB, 4 * GIB), **options).metrics())
    assert not sees_what_stays(watch(alike(chats), device_with(15 * GIB, 4 * GIB), **options).metrics())


@seeds
def test_a_restart_heals_a_leak(seed):
    requests = steady_load(load(seed), 1600, 5.0, np.random.default_rng(seed), regular=True)
    room = room_for(requests, 2.1, bytes_per_token=PER_TOKEN)
    for fault, harmed in ((Leak(every=4, tokens_each=256), True), (None, False)):
        recorder, restart_s = with_restart(
            requests, capacity_tokens=room, bytes_per_token=PER_TOKEN, fault=fault
        )
        assert recorder.num_finished == len(requests)
        ends = recorder.series.column("end_s")
        assert ends == sorted(ends), "one clock over both lives"
        assert harmed_and_healed(measure(recorder, restart_s=restart_s)) is harmed


@pytest.mark.parametrize("seed", [0, 1])
def test_one_reading_four_causes(seed):
    requests = steady_load(load(seed), 1400, 6.0, np.random.default_rng(seed))
    readings = {
        name: reading
        for name, (reading, _) in one_reading_four_causes(requests, np.random.default_rng(seed)).items()
    }
    shown = [reading.nvidia_smi for reading in readings.values()]
    assert max(shown) - min(shown) < 0.01
    assert told_apart(readings)
    assert readings["healthy"].cause() == "none of these"
    assert not told_apart({name: readings[name].only_nvidia_smi() for name in CAUSES})
