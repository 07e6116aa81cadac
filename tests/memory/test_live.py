"""`labkit verify --live` without a GPU: the child talks to a stand-in for torch that is the model itself.

So the plumbing is tested (operations, statistics, trace, comparison), not PyTorch.
"""

from __future__ import annotations

import copy
import sys
import types
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.experiments.verify import load_recording
from labkit.memory import OutOfMemory
from labkit.memory.caching import CachingAllocator
from labkit.memory.caching.live import replay_live
from labkit.memory.caching.live_child import run_operations
from labkit.units import GIB

GOLDEN = Path(__file__).parents[1] / "golden" / "torch_allocator"


def stand_in(alloc_conf: str, device_bytes: int) -> types.ModuleType:
    allocator = CachingAllocator(device_bytes, alloc_conf=alloc_conf, address_policy="descending")
    blocks: dict[int, object] = {}

    class OutOfMemoryError(RuntimeError):
        pass

    def caching_allocator_alloc(size, device, stream):
        try:
            block = allocator.malloc(size, stream=stream)
        except OutOfMemory as error:
            raise OutOfMemoryError(str(error)) from None
        blocks[block.offset] = block
        return block.offset

    def start_history(**_):
        allocator.history = []

    def snapshot(device):
        trace = [{"action": e.action, "addr": e.addr, "size": e.size} for e in allocator.history]
        return {"device_traces": [trace]}

    torch = types.ModuleType("torch")
    torch.__version__ = "2.14.1+stand-in"
    torch.OutOfMemoryError = OutOfMemoryError
    torch.cuda = types.SimpleNamespace(
        get_device_properties=lambda device: types.SimpleNamespace(total_memory=device_bytes),
        set_per_process_memory_fraction=lambda fraction, device: allocator.set_memory_fraction(fraction),
        Stream=lambda device: types.SimpleNamespace(cuda_stream=77),
        memory=types.SimpleNamespace(_record_memory_history=start_history, _snapshot=snapshot),
        memory_stats=lambda device: allocator.memory_stats(),
        empty_cache=allocator.empty_cache,
        caching_allocator_alloc=caching_allocator_alloc,
        caching_allocator_delete=lambda pointer: allocator.free(blocks.pop(pointer)),
    )
    return torch


@pytest.fixture
def run_child(monkeypatch):
    def run(task, device_bytes=80 * GIB):
        monkeypatch.setitem(sys.modules, "torch", stand_in(task["alloc_conf"], device_bytes))
        return run_operations(task["ops"], task["total_memory"])

    return run


@pytest.mark.parametrize("name", ["19_boundaries", "06_frag_oom", "11_expandable"])
def test_the_same_release_shows_no_difference(name, run_child):
    recording = load_recording(GOLDEN / f"{name}.json.gz")
    comparison = replay_live(recording, run_child)
    assert comparison.num_differences == 0
    assert comparison.num_ops == len(recording["ops"])
    assert "2.14.1+stand-in" in comparison.format


def test_a_release_that_decides_otherwise_is_shown_with_both_values(run_child):
    recording = load_recording(GOLDEN / "19_boundaries.json.gz")

    def other_release(task):
        answer = copy.deepcopy(run_child(task))
        answer["rows"][40][1] += 512
        call = next(i for i, entry in enumerate(answer["trace"]) if entry[0] == "segment_alloc")
        answer["trace"][call][2] += 2 << 20
        return answer

    paths = [difference.path for difference in replay_live(recording, other_release).kept]
    assert paths == ["rows[40].reserved_bytes.all.current", "device_calls[0][1]"]


def test_a_small_device_is_one_sentence(run_child):
    recording = load_recording(GOLDEN / "19_boundaries.json.gz")
    with pytest.raises(LabError, match="the device has 1 GiB; this recording needs 2 GiB"):
        replay_live(recording, lambda task: run_child(task, device_bytes=GIB))


def test_no_device_is_one_sentence():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(LabError, match=r"--live needs a CUDA device, and torch .* sees none on this machine"):
        replay_live(load_recording(GOLDEN / "19_boundaries.json.gz"))
