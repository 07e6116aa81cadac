"""Six incidents: each cause shows in its own figure, beyond what the healthy service and the other causes show."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.experiments.six_incidents import CAUSES, FIGURES, recording, six


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_telling_figure_tells(seed):
    found = {cause: recording(cause, np.random.default_rng(seed)) for cause in ["healthy", *CAUSES]}
    for figures in found.values():
        assert list(figures) == list(FIGURES)
    others = {cause: [f for name, f in found.items() if name != cause] for cause in CAUSES}
    assert found["leak"]["kv_at_rest_growth"] > 0.2
    assert all(f["kv_at_rest_growth"] < 0.02 for f in others["leak"])
    assert found["pinned prefixes"]["kv_at_rest_first"] > 0.3
    assert found["pinned prefixes"]["kv_at_rest_growth"] < 0.02
    assert found["fragmentation"]["largest_free_while_waiting"] < 0.8
    assert all(f["largest_free_while_waiting"] == 1 for f in others["fragmentation"])
    assert found["admission limit"]["free_while_waiting"] > 0.6
    assert found["admission limit"]["mean_waiting"] > 2
    assert found["step too large"]["worst_gap_ms"] > 400
    assert found["step too large"]["num_preemptions"] == 0
    assert found["pool too small"]["kv_peak"] > 0.97
    assert found["pool too small"]["num_preemptions"] > 20
    healthy = found["healthy"]
    assert healthy["kv_peak"] < 0.8
    assert healthy["mean_waiting"] < 0.1
    assert healthy["worst_gap_ms"] < 150


def test_drawn_by_a_seed():
    assert [cause for cause, _ in six(1)] == [cause for cause, _ in six(1)]
    assert sorted(cause for cause, _ in six(1)) == sorted(CAUSES)
    with pytest.raises(LabError, match="choose one of: healthy, leak"):
        recording("ghosts", np.random.default_rng(0))
