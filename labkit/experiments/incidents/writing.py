"""Evidence as files: `/metrics` pages in vLLM's or SGLang's words, a log, `torch.cuda.memory_stats` lines, nvidia-smi CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from labkit.doctor.oom_message import render_oom
from labkit.experiments.incidents.kinds import Plan
from labkit.experiments.incidents.seen import BYTES_PER_TOKEN, EDGES, Row, Watched
from labkit.observe.server_names import READINGS, kinds
from labkit.units import GIB, MIB

#: Llama-3.1-8B
PARAMETERS = 8.03e9
CONTEXT_BYTES = 0.45 * GIB
CARDS = (24, 32, 40, 48, 80, 96, 141)
START = datetime(2026, 3, 2, 9, 0, 0)
OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
}


class Ledger:
    """Bytes of one server: `card`, `weights`, `kv`, `workspace` (activation peak and graphs), `budget`."""

    def __init__(self, plan: Plan, watched: Watched):
        self.weights = PARAMETERS * plan.weight_bits / 8
        self.kv = watched.capacity_tokens * BYTES_PER_TOKEN * plan.kv_bits / 16
        self.workspace = (self.weights + self.kv) * plan.workspace_share / (1 - plan.workspace_share)
        self.budget = self.weights + self.kv + self.workspace + CONTEXT_BYTES
        idle = plan.idle_reserved_share
        needed = self.budget / (1 - idle) * 1.01
        fill = plan.card_fill or float(plan.rng.uniform(0.86, 0.93))
        sizes = [gib * GIB for gib in CARDS if gib * GIB * 0.98 >= needed]
        #: a slice of a card where no card is that small or that large
        self.card = needed / fill if plan.card_fill or not sizes or needed / sizes[0] < 0.7 else sizes[0]
        self.idle_end = idle * self.card
        self.utilisation = self.budget / self.card


def write_evidence(folder: Path, plan: Plan, watched: Watched, system: str, old_names: bool) -> None:
    """Write `folder/metrics.prom`, `server.log`, `memory_stats.jsonl`, `nvidia-smi.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(plan, watched)
    rows = _restarted(watched.rows, plan) if plan.restart else watched.rows
    (folder / "metrics.prom").write_text(_pages(rows, system, old_names), encoding="utf-8")
    (folder / "server.log").write_text(_log(plan, watched, ledger, system), encoding="utf-8")
    (folder / "memory_stats.jsonl").write_text(_memory(plan, watched, ledger), encoding="utf-8")
    (folder / "nvidia-smi.csv").write_text(_smi(plan, watched, ledger), encoding="utf-8")


def _restarted(rows: Sequence[Row], plan: Plan) -> list[Row]:
    """Everything counted starts again from nothing in the lull."""
    at = plan.load.lull_s[0] + 60
    base = next((r for r in rows if r.time_s >= at), rows[-1])
    counters = [
        name for name in base.values if name.startswith("num_") and name not in ("num_running", "num_waiting")
    ]
    found = []
    for row in rows:
        if row.time_s >= base.time_s:
            values = row.values | {name: row.values[name] - base.values[name] for name in counters}
            values["kv_cached_tokens"] = 0.0 if row is base else values["kv_cached_tokens"]
            histograms = {
                name: (
                    [a - b for a, b in zip(counts, base.histograms[name][0])],
                    total - base.histograms[name][1],
                )
                for name, (counts, total) in row.histograms.items()
            }
            row = Row(row.time_s, values, histograms)
        found.append(row)
    return found  # fmt: skip


def _pages(rows: Sequence[Row], system: str, old_names: bool) -> str:
    known, label = kinds(system), 'model_name="llama"'
    names = [(column, systems[system]) for column, systems in READINGS.items() if system in systems]
    lines: list[str] = []
    for row in rows:
        lines.append(f"# scraped_at {row.time_s + START.timestamp():.0f}")
        for column, name in names:
            shown = OLD_NAMES.get(name, name) if old_names else name
            if column in row.histograms:
                counts, total = row.histograms[column]
                lines += [f'{shown}_bucket{{{label},le="{edge}"}} {n}' for edge, n in zip(EDGES, counts)]
                lines += [
                    f'{shown}_bucket{{{label},le="+Inf"}} {counts[-1]}',
                    f"{shown}_sum{{{label}}} {total:.6f}",
                    f"{shown}_count{{{label}}} {counts[-1]}",
                ]
            elif column in row.values:
                if known[name] == "counter" and not shown.endswith("_total"):
                    shown += "_total"
                lines.append(f"{shown}{{{label}}} {row.values[column]:g}" if row.values[column] < 1e5
                             else f"{shown}{{{label}}} {row.values[column]:.1f}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _log(plan: Plan, watched: Watched, ledger: Ledger, system: str) -> str:
    gib = {name: value / GIB for name, value in vars(ledger).items()}
    quantised = {16: "None", 8: "fp8", 4: "awq"}[plan.weight_bits]
    kv_dtype = "auto" if plan.kv_bits == 16 else "fp8"
    seqs = plan.options.get("max_num_seqs", 256)
    graphs = 0.35 * gib["workspace"]
    lines = [
        (0, "INFO", f"engine config: model='Llama-3.1-8B', dtype=bfloat16, quantization={quantised}, kv_cache_dtype={kv_dtype}, "
                    f"max_num_seqs={seqs}, gpu_memory_utilization={ledger.utilisation:.3f}, enable_prefix_caching={plan.prefix}"),
        (11, "INFO", f"Model loading took {gib['weights']:.4f} GiB memory and 10.7 seconds"),
        (14, "INFO", f"Peak activation memory: {gib['workspace'] - graphs:.2f} GiB; non-torch memory: {CONTEXT_BYTES / GIB:.2f} GiB"),
        (14, "INFO", f"Available KV cache memory: {gib['kv']:.2f} GiB"),
        (14, "INFO", f"GPU KV cache size: {watched.capacity_tokens:,} tokens"),
        (19, "INFO", f"Graph capturing finished in 5 secs, took {graphs:.2f} GiB"),
    ]  # fmt: skip
    rows: list[tuple[float, str, str]] = [(t - 20, level, text) for t, level, text in lines]
    for wait in watched.waits:
        rows.append((wait.time_s, "WARNING",
                     f"request {wait.request_id} waits ({wait.limit}): needs {wait.needed} tokens, free {wait.free}, "
                     f"evictable {wait.evictable}, largest free span {wait.largest_free}"))  # fmt: skip
    refused = [r for r in plan.load.requests if r.request_id in plan.refused]
    for request in refused[:3]:
        rows.append((request.arrival_s, "ERROR", _oom(plan, ledger)))
    if plan.restart:
        rows.append((plan.load.lull_s[0] + 60, "INFO", "engine config: restarted with the same arguments"))
    rows.sort(key=lambda row: row[0])
    stamp = lambda t: (START + timedelta(seconds=t)).strftime("%Y-%m-%d %H:%M:%S")  # noqa: E731
    return "".join(f"{stamp(t)} {level} {system} {text}\n" for t, level, text in rows)


def _oom(plan: Plan, ledger: Ledger) -> str:
    """PyTorch's message when an activation does not fit into the pieces that are free."""
    idle = 0.9 * ledger.idle_end
    allocated = ledger.budget - CONTEXT_BYTES - 0.2 * ledger.workspace
    free = max(0.02 * GIB, ledger.card - allocated - idle - CONTEXT_BYTES)
    tried = min(idle * 0.6, 0.6 * ledger.workspace) + 0.01 * GIB
    size = lambda value: f"{value / GIB:.2f} GiB"  # noqa: E731
    return render_oom(
        {
            "tried": size(tried), "gpu_index": 0, "total_capacity": size(ledger.card), "free": size(min(free, tried * 0.8)),
            "allocated": size(allocated), "unallocated": size(idle), "reserved_unallocated": size(idle),
            "this_process": size(ledger.card - min(free, tried * 0.8)),
        },
        "2.2",
    )  # fmt: skip


def _memory(plan: Plan, watched: Watched, ledger: Ledger) -> str:
    """The allocator over time: what is allocated breathes with prefill, what is reserved and idle grows to `idle_end`."""
    rng, rows = plan.rng, watched.rows[::5]
    last = plan.load.ends_s
    steady = ledger.weights + ledger.kv + 0.35 * ledger.workspace
    churn = plan.pauses is not None
    lines = []
    retries = ooms = 0
    refused = sorted(r.arrival_s for r in plan.load.requests if r.request_id in plan.refused)
    for row in rows:
        busy = row.time_s < last
        allocated = steady + (
            float(rng.uniform(0.1, 0.6)) * ledger.workspace if busy and row.values["num_running"] else 0
        )
        age = min(1.0, row.time_s / last)
        idle = ledger.idle_end * (age**0.6 if churn else min(1.0, 0.7 + age))
        if churn and busy:
            retries += int(rng.poisson(3))
        ooms = int(np.searchsorted(refused, row.time_s))
        reserved = min(steady + 0.62 * ledger.workspace + idle, ledger.card - CONTEXT_BYTES)
        stats = {
            "time_s": row.time_s + START.timestamp(),
            "allocated_bytes.all.current": int(allocated),
            "active_bytes.all.current": int(allocated * 1.001),
            "reserved_bytes.all.current": int(max(reserved, allocated)),
            "inactive_split_bytes.all.current": int(idle * (0.85 if churn else 0.5)),
            "num_alloc_retries": retries
            + (1 if not churn and age > 0.5 and plan.idle_reserved_share > 0.02 else 0),
            "num_ooms": ooms,
        }
        lines.append(json.dumps(stats))
    return "\n".join(lines) + "\n"


def _smi(plan: Plan, watched: Watched, ledger: Ledger) -> str:
    lines = ["timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%]"]
    for row in watched.rows[::10]:
        age = min(1.0, row.time_s / plan.load.ends_s)
        used = ledger.budget + ledger.idle_end * age**0.6
        busy = 0 if not row.values["num_running"] else int(plan.rng.integers(60, 99))
        stamp = (START + timedelta(seconds=row.time_s)).strftime("%Y/%m/%d %H:%M:%S.000")
        lines.append(
            f"{stamp}, 0, {min(used, ledger.card) / MIB:.0f} MiB, {ledger.card / MIB:.0f} MiB, {busy} %"
        )
    return "\n".join(lines) + "\n"
