"""Damaged snapshots: every outcome is a snapshot or one sentence, whichever byte or value is wrong."""

import pickle

import numpy as np
import pytest
from snapshot_files import churned

from labkit.errors import LabError
from labkit.memory.snapshot import read_snapshot
from labkit.memory.snapshot_export import export_snapshot
from labkit.memory.snapshot_report import report
from labkit.memory.snapshot_timeline import timeline
from labkit.memory.snapshot_whatif import what_if
from labkit.viz.snapshot_run import snapshot_run

VALUES = [0, -1, 1, 512, 1 << 20, 1 << 40, 1 << 70, "x", None, True, 1.5, [], {}, (0, 7), "alloc", "free_completed", "segment_alloc", "segment_free", "oom", "inactive"]  # fmt: skip


def outcome(path, data):
    """Reads and analyses: "read", or the sentence."""
    path.write_bytes(data)
    try:
        snapshot = read_snapshot(path)
        report(snapshot)
        timeline(snapshot)
        snapshot_run(snapshot)
        what_if(snapshot, capacity=1 << 30, split_limits_mb=(20,))
    except LabError as error:
        return str(error)
    return "read"


def damage_bytes(data, rng):
    """A few bytes changed, removed or doubled."""
    data = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at, kind = int(rng.integers(len(data))), rng.random()
        if kind < 0.6:
            data[at] = int(rng.integers(256))
        elif kind < 0.8:
            del data[at : at + int(rng.integers(1, 9))]
        else:
            data[at:at] = data[at : at + int(rng.integers(1, 9))]
    return bytes(data)


def damage_values(data, rng):
    """A few entries replaced by other values, removed, or swapped with a neighbour: the pickle itself stays whole."""
    whole = pickle.loads(data)
    for _ in range(int(rng.integers(1, 4))):
        place = whole
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = keys[int(rng.integers(len(keys)))]
            inner = place[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
                place = inner
                continue
            break
        kind = rng.random()
        if kind < 0.2:
            del place[key]
        elif kind < 0.3 and isinstance(place, list):
            place.append(place.pop(key))
        else:
            place[key] = VALUES[int(rng.integers(len(VALUES)))]
    return pickle.dumps(whole, protocol=4)


def run(tmp_path, seed, count, damage):
    conf = ["", "expandable_segments:True"][seed % 2]
    whole = pickle.dumps(export_snapshot(churned(seed, conf, num_ops=30)), protocol=4)
    assert outcome(tmp_path / "s.pickle", whole) == "read"
    rng = np.random.default_rng(seed)
    texts = [outcome(tmp_path / "s.pickle", damage(whole, rng)) for _ in range(count)]
    assert not [text for text in texts if "\n" in text]
    print(f"seed {seed}, {damage.__name__}: {texts.count('read')} of {count} could still be read")


@pytest.mark.parametrize("damage", [damage_bytes, damage_values])
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_never_end_in_anything_but_a_sentence(tmp_path, seed, damage):
    run(tmp_path, seed, 60, damage)


@pytest.mark.fuzz
@pytest.mark.parametrize("damage", [damage_bytes, damage_values])
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_damaged_files(tmp_path, seed, damage):
    run(tmp_path, seed, 500, damage)
