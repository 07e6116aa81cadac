"""A run as `/metrics` text with the servers' own names, through `prometheus_client`.

    exporter = RunExporter("vllm")
    exporter.update(recorder, usage=0.7)
    text = exporter.text()                   # what a scrape would see now
    with exporter.serve(port=9400): ...      # on loopback unless told otherwise

Only metrics that the lab really measures are published; the list of names and kinds is the servers' (`metric_names.json`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from labkit.errors import LabError
from labkit.observe.block_watch import histogram, pooled
from labkit.observe.recorder import RunRecorder
from labkit.observe.server_names import READINGS, kinds

SYSTEMS = ("vllm", "sglang")
#: bucket edges in seconds of latencies (those of vLLM's time to first token)
BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)


class RunExporter:
    """A collector for one system's names. `update` replaces everything at once, so a scrape never sees half a step."""

    def __init__(self, system: str = "vllm", model_name: str = "labkit"):
        if system not in SYSTEMS:
            raise LabError(f"unknown system {system!r}; choose one of: {', '.join(SYSTEMS)}")
        from prometheus_client import CollectorRegistry

        self.system, self.labels = system, {"model_name": model_name}
        self._lock = Lock()
        self._values: dict[str, float] = {}
        self._histograms: dict[str, tuple[list[tuple[str, float]], float]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)  # type: ignore[arg-type]

    def update(
        self, recorder: RunRecorder, *, usage: float | None = None, num_running: int | None = None
    ) -> None:
        """Take the run's state now. `usage` is the share of the pool that live requests hold."""
        values, histograms = self._collect_run(recorder, usage, num_running)
        with self._lock:
            self._values, self._histograms = values, histograms

    def _collect_run(
        self, recorder: RunRecorder, usage: float | None, num_running: int | None
    ) -> tuple[dict[str, float], dict[str, tuple[list[tuple[str, float]], float]]]:
        series = recorder.series
        if num_running is None and series is not None and series.rows:
            num_running = series.column("num_running")[-1]
        running = num_running or 0
        if usage is None and series is not None and series.rows and series.capacity_bytes:
            usage = (series.column("kv_live_bytes")[-1] or 0) / series.capacity_bytes
        admitted = [r for r in recorder.requests.values() if r.admission_s is not None]
        done = [r for r in admitted if r.finish_s is not None]
        by_column: dict[str, float] = {
            "num_running": running,
            "num_waiting": max(0, recorder.num_live - running),
            "num_preemptions": recorder.num_preemptions,
            "num_prompt_tokens": sum(r.num_prompt_tokens for r in admitted),
            "num_output_tokens": sum(r.num_output_tokens for r in done),
            "num_finished": recorder.num_finished,
            "num_rejected": recorder.num_refused,
            "num_prefix_hits": recorder.num_hit_tokens,
            "num_prefix_queries": sum(r.num_prompt_tokens for r in admitted),
        }
        if usage is not None:
            by_column["kv_usage"] = min(1.0, max(0.0, usage))
        if by_column["num_prefix_queries"]:
            by_column["prefix_hit_ratio"] = by_column["num_prefix_hits"] / by_column["num_prefix_queries"]
        latencies: dict[str, list[float]] = {
            "ttft": [r.ttft_s for r in admitted if r.ttft_s is not None],
            "e2e": [r.e2e_s for r in done if r.e2e_s is not None],
            "queue": [r.queue_s for r in admitted if r.queue_s is not None],
        }
        if recorder.blocks is not None:
            watch = recorder.blocks
            latencies["block_lifetime"] = pooled(watch.lifetimes_s).tolist()
            latencies["block_idle_before_evict"] = pooled(watch.idle_before_evict_s).tolist()
            latencies["block_reuse_gap"] = pooled(watch.reuse_gaps_s).tolist()
        return by_column, {name: _buckets(seconds) for name, seconds in latencies.items()}

    def collect(self) -> Iterator[Any]:
        """For `prometheus_client`: one family a metric that this system has."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with self._lock:
            values, histograms = self._values, self._histograms
        known, names, labels = kinds(self.system), list(self.labels), list(self.labels.values())
        for column, systems in READINGS.items():
            name = systems.get(self.system)
            kind = known.get(name or "")
            if name is None:
                continue
            if kind == "histogram" and column in histograms:
                family: Any = HistogramMetricFamily(name, column, labels=names)
                family.add_metric(labels, histograms[column][0], histograms[column][1])
            elif kind == "counter" and column in values:
                family = CounterMetricFamily(name, column, labels=names)
                family.add_metric(labels, values[column])
            elif kind == "gauge" and column in values:
                family = GaugeMetricFamily(name, column, labels=names)
                family.add_metric(labels, values[column])
            else:
                continue
            yield family

    def text(self) -> str:
        """The page as it would be scraped now."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    @contextmanager
    def serve(self, port: int, host: str = "127.0.0.1") -> Iterator[int]:
        """Serve `/metrics`; yields the port (0 lets the system choose). Raises `LabError` when it is taken."""
        from prometheus_client import start_http_server

        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:
            raise LabError(
                f"{host}:{port} cannot be served on ({error}); choose another --serve-metrics port"
            ) from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _buckets(seconds: list[float]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative counts by upper edge, and the sum."""
    import numpy as np

    values = np.sort(np.asarray(seconds, dtype=float))
    counts = np.searchsorted(values, BUCKETS, side="right")
    rows = [(str(edge), float(count)) for edge, count in zip(BUCKETS, counts)]
    return [*rows, ("+Inf", float(len(values)))], float(values.sum())


def block_histograms(recorder: RunRecorder) -> Mapping[str, Any]:
    """`{name: (edges_s, counts)}` of the lives of blocks, for pictures; empty without a watch."""
    if recorder.blocks is None:
        return {}
    watch = recorder.blocks
    return {
        "block lifetime": histogram(pooled(watch.lifetimes_s)),
        "idle before evict": histogram(pooled(watch.idle_before_evict_s)),
        "reuse gap": histogram(pooled(watch.reuse_gaps_s)),
        "reclaim delay": histogram(pooled(watch.reclaim_delays_s)),
    }
