"""The what-if panel: sliders for model, GPU, utilisation, formats and lengths; the ledger and the concurrency answer.

whatif_panel()                       # in a notebook
whatif_panel().figure(tp=2)          # the same picture for papermill and print
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from labkit.models import get_gpu, get_model, model_names
from labkit.models.gpus import load_gpus
from labkit.models.parallel import Parallel
from labkit.models.quantization import get_quantization
from labkit.planning.ledger import make_ledger, naive_concurrency
from labkit.planning.planner import Plan, make_plan
from labkit.planning.request import ENGINES, PlanRequest
from labkit.viz.ledger import draw_ledger
from labkit.viz.panel import Choice, Slider, SliderPanel


def plan_from_controls(
    model: str,
    gpu: str,
    engine: str,
    tp: int,
    memory_fraction: float,
    kv_dtype: str,
    weights: str,
    max_model_len: int,
    max_num_seqs: int,
) -> Plan:
    """The plan that the panel's controls mean. Raises `LabError` where it is not possible."""
    return make_plan(
        PlanRequest(
            get_model(model),
            get_gpu(gpu),
            engine=engine,
            parallel=Parallel(tp),
            memory_fraction=memory_fraction,
            kv_dtype=kv_dtype,
            quantization=None if weights == "as published" else get_quantization(weights),
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
        )
    )


def draw_whatif(figure: Figure | None = None, **values: Any) -> Figure:
    """The ledger of one rank, with tokens, concurrency and what binds in the title."""
    plan = plan_from_controls(**values)
    figure = draw_ledger(make_ledger(plan), figure=figure)
    verdict = "" if plan.fits else "  (the engine refuses to start)"
    figure.axes[0].set_title(
        f"{plan.kv_gib:.2f} GiB for KV, {plan.num_tokens:,} tokens, {plan.max_concurrency:.2f} requests of "
        f"{plan.request.model_len:,}{verdict}; weights + KV alone would say {naive_concurrency(plan):.1f}",
        fontsize=9,
        loc="left",
    )
    return figure


def whatif_panel(**defaults: Any) -> SliderPanel:
    """Controls over the picture of `draw_whatif`; keywords change where they start, e.g. `model="Qwen3-8B"`."""
    start: dict[str, Any] = {
        "model": "Llama-3.1-8B",
        "gpu": "A100-80GB",
        "engine": "vllm",
        "tp": 1,
        "memory_fraction": 0.9,
        "kv_dtype": "auto",
        "weights": "as published",
        "max_model_len": 16384,
        "max_num_seqs": 256,
    } | defaults
    controls: dict[str, Any] = {
        "model": Choice(start["model"], model_names(), "model"),
        "gpu": Choice(start["gpu"], list(load_gpus()), "GPU"),
        "engine": Choice(start["engine"], list(ENGINES), "engine"),
        "tp": Choice(start["tp"], [1, 2, 4, 8], "tensor parallelism"),
        "memory_fraction": Slider(start["memory_fraction"], 0.5, 0.99, 0.01, "memory fraction of the engine"),
        "kv_dtype": Choice(start["kv_dtype"], ["auto", "fp8", "float32"], "format of keys and values"),
        "weights": Choice(start["weights"], ["as published", "none", "fp8", "int8", "awq"], "weights"),
        "max_model_len": Slider(start["max_model_len"], 1024, 131072, 1024, "longest sequence (tokens)"),
        "max_num_seqs": Slider(start["max_num_seqs"], 8, 1024, 8, "largest batch (sequences)"),
    }
    return SliderPanel(draw_whatif, controls, title="How many requests fit?")
