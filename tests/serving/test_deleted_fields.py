"""A recorded field that is deleted is a difference under its own path, or one sentence; so is what a recording adds."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.experiments.verify import verify_file

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
FILES = {
    "vllm": "vllm/full_hit.json.gz",
    "vllm async": "vllm/async_finish_preempted_a.json.gz",
    "sglang": "sglang/chunked_small_budget.json.gz",
    "sglang-ops": "sglang/ops/lru_page16_s8.json.gz",
    "trtllm": "trtllm/small_batch_size.json.gz",
    "torch": "torch_allocator/01_small.json.gz",
}


def load(name):
    return json.loads(gzip.decompress((GOLDEN / FILES[name]).read_bytes()))


def outcome(recording, tmp_path):
    """The path of the first difference, the sentence, or None where nothing was noticed."""
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(recording))
    try:
        first = verify_file(path).comparison.first
    except LabError as error:
        return str(error)
    return first.path if first else None


@pytest.mark.parametrize("name", FILES)
def test_every_deleted_field_of_the_header_is_noticed(tmp_path, name):
    recording = load(name)
    assert outcome(recording, tmp_path) is None
    for key in recording:
        if key in ("config", "system", "format") or (name == "torch" and key == "name"):
            continue
        said = outcome({k: v for k, v in recording.items() if k != key}, tmp_path)
        assert said is not None, key
        assert key in said or name == "sglang-ops", (key, said)


@pytest.mark.parametrize("name", ["vllm", "vllm async", "sglang", "trtllm"])
def test_every_deleted_field_of_a_step_and_of_the_totals_is_named(tmp_path, name):
    recording = load(name)
    at = next(i for i, step in enumerate(recording["steps"]) if step.get("admitted") or step.get("mode"))
    for key in recording["steps"][at]:
        changed = copy.deepcopy(recording)
        del changed["steps"][at][key]
        assert outcome(changed, tmp_path) == f"steps[{at}].{key}"
    for key in recording["totals"]:
        changed = copy.deepcopy(recording)
        del changed["totals"][key]
        assert outcome(changed, tmp_path) == f"totals.{key}"
    if name.startswith(("vllm", "trtllm")):
        for key in recording["steps"][at]["admitted"][0]:
            changed = copy.deepcopy(recording)
            del changed["steps"][at]["admitted"][0][key]
            said = outcome(changed, tmp_path)
            assert str(said).startswith(f"steps[{at}].admitted[0]")
    for key in ("id", "arrival_step", "prompt_token_ids", "output_len"):
        changed = copy.deepcopy(recording)
        del changed["workload"][0][key]
        assert f"workload[0].{key}: is missing" in outcome(changed, tmp_path)


def test_a_detail_gone_from_every_step_of_a_synchronous_recording(tmp_path):
    recording = load("vllm")
    for step in recording["steps"]:
        del step["new_block_ids"]
    assert outcome(recording, tmp_path) == "steps[0].new_block_ids"


@pytest.mark.parametrize("name", ["vllm", "sglang", "sglang-ops", "trtllm"])
def test_a_remark_is_no_difference_but_another_release_is(tmp_path, name):
    recording = load(name)
    assert outcome({**recording, "note": "by hand", "name": "x", "seed": 3}, tmp_path) is None
    assert outcome({**recording, "version": "9"}, tmp_path) == "version"
    assert outcome({**recording, "more": {"a": 1}}, tmp_path) == "more"


def test_options_of_an_sglang_recording(tmp_path):
    recording = load("sglang")
    for name, value, noticed in [
        ("page_sise", 4, "field config.page_sise: is not known"),
        ("cache", "radix_tree", "field config.cache: is 'radix_tree'; choose one of: unified, radix"),
        ("enable_hierarchical_cache", True, "which is not modelled"),
        ("radix_eviction_policy", "coin", "radix_eviction_policy is 'coin'"),
    ]:
        changed = {**recording, "config": {**recording["config"], name: value}}
        assert noticed in outcome(changed, tmp_path)
    more = {"enable_hierarchical_cache": False, "max_queued_requests": None, "prefill_decode_interval": 0}
    assert outcome({**recording, "config": {**recording["config"], **more}}, tmp_path) is None
    few = {k: v for k, v in recording["config"].items() if k not in ("ignore_eos", "retraction_policy")}
    assert outcome({**recording, "config": few}, tmp_path) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eviction_policy": "coin"}, "field eviction_policy: is 'coin'; choose one of: lru"),
        ({"page_size": 0}, "field page_size: is 0"),
        ({"page_size": "16"}, "field page_size: is '16'; expected a int"),
        ({"results": {"unified": []}}, "field radix: is missing"),
        ({"ops": [["jump"]]}, "'jump' is none of insert"),
        ({"ops": [3]}, "3 is none of insert"),
    ],
)
def test_operations_that_cannot_be_replayed(tmp_path, change, said):
    assert said in outcome({**load("sglang-ops"), **change}, tmp_path)
