"""Soak: the slope tests, the four verdicts, flat state, the report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit.cli.main import main
from labkit.errors import LabError
from labkit.experiments.soak import SoakOptions, soak
from labkit.experiments.soak_trends import mann_kendall_p, theil_sen, trend
from labkit.experiments.soak_verdict import judge
from labkit.viz.soak_report import save_soak_report

SMALL = {"hours": 0.5, "capacity_tokens": 120_000, "max_model_len": 8192, "rate": 6.0, "window_s": 75.0}


# --- slope tests -------------------------------------------------------------------------------------------------------


def test_theil_sen_is_the_slope_and_one_outlier_does_not_move_it():
    x = np.arange(20.0)
    y = 3 * x + 1
    assert theil_sen(x, y) == pytest.approx(3)
    y[7] = 1e6
    assert theil_sen(x, y) == pytest.approx(3, rel=0.05)
    assert theil_sen([1.0], [2.0]) == 0.0


def test_mann_kendall_keeps_its_level_on_noise_and_finds_a_trend():
    rng = np.random.default_rng(1)
    false = sum(mann_kendall_p(rng.normal(size=24)) < 0.01 for _ in range(2000))
    assert 8 <= false <= 34, f"{false} of 2000 at level 1 %"
    found = sum(mann_kendall_p(rng.normal(size=24) + 0.15 * np.arange(24)) < 0.01 for _ in range(200))
    assert found > 180
    assert mann_kendall_p(np.ones(10)) == 1.0
    assert mann_kendall_p(-np.arange(10.0)) == 1.0


@pytest.mark.parametrize(
    ("values", "grows", "aged"),
    [
        (np.linspace(0, 0.5, 12), True, True),  # goes on
        ([0.0, 0.3, *[0.4, 0.41] * 5], False, True),  # has settled
        (np.linspace(0, 0.05, 12), True, False),  # below the threshold
        ([0.0, 0.4] * 6, False, False),  # back to fresh in between
        (np.linspace(0, 0.5, 5), False, False),  # five windows prove nothing
    ],
)
def test_what_counts_as_aged(values, grows, aged):
    found = trend("x", "share", 0, range(len(values)), values, threshold=0.1, fresh=0.0)
    assert (found.grows, found.aged) == (grows, aged)


# --- verdicts ----------------------------------------------------------------------------------------------------------

CASES = [
    ("paged", None, "no ageing"),
    ("vllm-no-cache", None, "no ageing"),
    ("vllm", None, "cache fill"),
    ("paged", "leak", "leak"),
    ("reserve-oracle", "sessions", "fragmentation ageing"),
    ("paged", "sessions", "no ageing"),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("policy", "fault", "verdict"), CASES)
def test_verdicts(policy, fault, verdict, seed):
    result = soak(SoakOptions(**SMALL, policy=policy, fault=fault, seed=seed))
    assert result.verdict == verdict, result.sentence
    assert result.ages() == (verdict in ("leak", "fragmentation ageing"))


def test_windows_are_drained_bytes_add_up_and_a_restart_heals():
    result = soak(SoakOptions(**SMALL, policy="paged", fault="leak"))
    pool = result.fresh[0].capacity_bytes
    for row in result.windows:
        assert row.live_bytes + row.cached_bytes + row.free_bytes == pool
        assert row.num_requests > 300
    assert result.restart_h == pytest.approx(0.25)
    before, after = result.before_and_after()["live_bytes"]
    assert before > 0.05 * pool
    assert after == 0


def test_same_seed_same_windows():
    def rows():
        result = soak(SoakOptions(**{**SMALL, "hours": 0.1}, policy="vllm", seed=3))
        return [(w.num_requests, w.ttft_p95_s, w.cached_bytes) for w in result.windows]

    assert rows() == rows()


def test_a_short_test_says_that_it_is_short():
    result = soak(SoakOptions(**{**SMALL, "hours": 0.06}, policy="reserve-oracle", fault="sessions"))
    assert result.verdict == "too short to say"
    assert not result.ages()


def test_saturation_is_where_the_queue_begins_to_grow():
    base = {"hours": 0.25, "policy": "vllm", "load": "300/60", "window_s": 300.0, "restart": False}
    at_80 = soak(SoakOptions(**base, share=0.8))
    at_120 = soak(SoakOptions(**base, share=1.2))
    assert at_80.rate == pytest.approx(0.8 * at_80.saturation)
    assert at_80.windows[-1].ttft_p95_s < 1
    assert at_120.windows[-1].ttft_p95_s > 20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "nobody"}, "choose one of"),
        ({"fault": "leak"}, "brings its own"),
        ({"fault": "rust", "policy": "paged"}, "leak, sessions"),
        ({"load": "300/x"}, "PROMPT/OUTPUT"),
        ({"load": "bible"}, "azure-conv"),
        ({"hours": 0}, "above 0"),
        ({"window_s": -1}, "above 0"),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(options, words):
    with pytest.raises(LabError, match=words):
        soak(SoakOptions(**{**SMALL, **options}))


def test_report_and_command(tmp_path, capsys):
    out = tmp_path / "soak.html"
    with pytest.raises(SystemExit) as caught:
        main(["soak", "--hours", "0.2", "--rate", "4", "--window-minutes", "1", "--out", str(out), "--json"])
    assert not caught.value.code
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "cache fill"
    assert len(report["windows"]) == 12
    text = out.read_text()
    assert "Before and after the restart" in text
    assert "https://" not in text
    assert [p.name for p in tmp_path.iterdir()] == ["soak.html"]
    with pytest.raises(SystemExit) as caught:
        main(["soak", "--hours", "-1"])
    assert caught.value.code == 2


def test_a_run_without_a_restart_says_so(tmp_path):
    result = soak(SoakOptions(**{**SMALL, "hours": 0.15}, policy="vllm", restart=False))
    assert result.before_and_after() == {}
    assert "No restart" in save_soak_report(result, tmp_path / "r.html").read_text()


def test_nothing_to_judge_is_no_verdict():
    assert judge([])[0] == "too short to say"
