"""Out: a run under the servers' own names. In: pages that another program wrote, restarts, and what is not a page."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from recorded_runs import run

from labkit.errors import InputError, LabError
from labkit.observe.exposition import RunExporter, block_histograms
from labkit.observe.scrape import parse_pages, read_pages, series_frame
from labkit.observe.server_names import READINGS, kinds, metric_names


def vllm_page(running=3, usage=0.5, prompt=100, hits=20, queries=80, preempted=1, old=False) -> str:
    """What a vLLM server would say, written without the lab."""
    registry, names = CollectorRegistry(), ["model_name", "engine"]
    label = {"model_name": "m", "engine": "0"}
    gauge = "vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc"
    prefix = "vllm:gpu_prefix_cache" if old else "vllm:prefix_cache"
    Gauge("vllm:num_requests_running", "n", names, registry=registry).labels(**label).set(running)
    Gauge("vllm:num_requests_waiting", "n", names, registry=registry).labels(**label).set(7)
    Gauge(gauge, "share", names, registry=registry).labels(**label).set(usage)
    Counter("vllm:prompt_tokens", "n", names, registry=registry).labels(**label).inc(prompt)
    Counter("vllm:num_preemptions", "n", names, registry=registry).labels(**label).inc(preempted)
    Counter(f"{prefix}_hits", "n", names, registry=registry).labels(**label).inc(hits)
    Counter(f"{prefix}_queries", "n", names, registry=registry).labels(**label).inc(queries)
    ttft = Histogram("vllm:time_to_first_token_seconds", "s", names, registry=registry).labels(**label)
    for value in (0.02, 0.3, 4.0):
        ttft.observe(value)
    return generate_latest(registry).decode()


def sglang_page(usage=0.25) -> str:
    registry = CollectorRegistry()
    Gauge("sglang:num_running_reqs", "n", registry=registry).set(4)
    Gauge("sglang:num_queue_reqs", "n", registry=registry).set(2)
    Gauge("sglang:token_usage", "share", registry=registry).set(usage)
    Gauge("sglang:kv_used_tokens", "n", registry=registry).set(10)
    Counter("sglang:generation_tokens_total", "n", registry=registry).inc(500)
    return generate_latest(registry).decode()


@pytest.mark.parametrize("old", [False, True])
def test_a_vllm_page(old):
    (page,) = parse_pages(vllm_page(old=old), "p")
    assert page.system == "vllm"
    assert page.values["num_running"] == 3
    assert page.values["kv_usage"] == 0.5
    assert page.values["num_prompt_tokens"] == 100
    assert page.values["ttft_count"] == 3
    assert page.values["ttft_sum"] == pytest.approx(4.32)
    assert page.buckets["ttft"][0.5] == 2
    assert series_frame([page])["prefix_hit_ratio"][0] == 0.25


def test_an_sglang_page():
    (page,) = parse_pages(sglang_page(), "p")
    assert (page.system, page.values["num_waiting"], page.values["kv_usage"]) == ("sglang", 2, 0.25)
    assert page.values["num_output_tokens"] == 500
    assert page.values["kv_live_tokens"] == 10


def test_a_series_with_a_restart(tmp_path):
    """Counters start again from 0; totals go on and gauges are as they are."""
    files = []
    for i, (prompt, queries) in enumerate([(100, 80), (300, 240), (50, 40), (90, 72)]):
        path = tmp_path / f"{i}.txt"
        path.write_text(f"# scraped_at {1000 + 10 * i}\n{vllm_page(prompt=prompt, queries=queries)}")
        files.append(path)
    frame = series_frame(read_pages(files))
    assert list(frame["time_s"]) == [0, 10, 20, 30]
    assert list(frame["restarts"]) == [0, 0, 1, 1]
    assert list(frame["num_prompt_tokens"]) == [100, 300, 350, 390]
    assert list(frame["num_prefix_queries"]) == [80, 240, 280, 312]
    whole = tmp_path / "all.txt"
    whole.write_text("".join(path.read_text() for path in files))
    assert series_frame(read_pages([whole])).equals(frame)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("<html><body>404</body></html>", "is not Prometheus text|has no samples"),
        ("vllm:num_requests_running many\n", "is not Prometheus text"),
        ("# HELP only comments\n", "has no samples"),
        ("process_cpu_seconds_total 3.0\n", "no metric of vLLM or SGLang"),
        (vllm_page(usage=57.0), "field kv_usage: is 57; a share"),
        (vllm_page(hits=90, queries=80), "field num_prefix_hits"),
        ("# scraped_at noon\nvllm:num_requests_running 1\n", "field scraped_at"),
    ],
)
def test_what_is_not_a_page(text, said, tmp_path):
    path = tmp_path / "page.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as raised:
        series_frame(read_pages([path]))
    assert "\n" not in str(raised.value)
    assert "page.txt" in str(raised.value)


def test_clocks_out_of_order_and_missing_files(tmp_path):
    pages = parse_pages(
        "# scraped_at 5\nvllm:num_requests_running 1\n# scraped_at 4\nvllm:num_requests_running 1\n", "p"
    )
    with pytest.raises(InputError, match="before the page ahead"):
        series_frame(pages)
    with pytest.raises(InputError, match="no such file"):
        read_pages([tmp_path / "none"])
    with pytest.raises(InputError, match="cannot be reached"):
        read_pages(["http://127.0.0.1:9/metrics"])
    with pytest.raises(InputError, match="no pages"):
        series_frame([])


@pytest.mark.parametrize("system", ["vllm", "sglang"])
def test_only_names_and_kinds_of_the_server(system):
    exporter = RunExporter(system)
    exporter.update(run(kind="prefix"))
    known = kinds(system)
    families = list(text_string_to_metric_families(exporter.text()))
    assert len(families) >= 8
    for family in families:
        name = family.name if family.name in known else f"{family.name}_total"
        assert known[name] == family.type, family.name


def test_what_goes_out_comes_back_in():
    recorder = run(kind="prefix")
    exporter = RunExporter("vllm")
    exporter.update(recorder)
    with exporter.serve(0) as port:
        address = f"http://127.0.0.1:{port}/metrics"
        assert urllib.request.urlopen(address, timeout=5).status == 200
        (page,) = read_pages([address])
    assert page.values["num_finished"] == recorder.num_finished
    assert page.values["num_prefix_hits"] == recorder.num_hit_tokens
    assert page.values["ttft_count"] == sum(r.ttft_s is not None for r in recorder.requests.values())
    assert page.values["num_waiting"] == 0
    assert page.values["block_lifetime_count"] > 0
    assert set(block_histograms(recorder)) == {
        "block lifetime",
        "idle before evict",
        "reuse gap",
        "reclaim delay",
    }


def test_mistakes():
    with pytest.raises(LabError, match="choose one of: vllm, sglang"):
        RunExporter("tgi")
    exporter = RunExporter()
    with exporter.serve(0) as port, pytest.raises(LabError, match="choose another"), exporter.serve(port):
        pass
    for systems in READINGS.values():
        for system, name in systems.items():
            assert name in metric_names()[system]["metrics"]
