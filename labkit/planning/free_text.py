"""Numbers and names out of the free text that people put beside a printed line: GPU, engine, utilisation, quantisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labkit.models.gpus import GPUSpec, load_gpus
from labkit.models.quantization import Quantization, get_quantization


def first_number(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = re.search(r"\d+(?:\.\d+)?", value) if isinstance(value, str) else None
    return float(found[0]) if found else None


def read_utilisation(value: Any, engine: str) -> float | None:
    number = first_number(value)
    if number is not None:
        return number / 100 if isinstance(value, str) and "%" in value else number
    return 0.9 if isinstance(value, str) and "default" in value and engine != "sglang" else None


def read_engine(values: Mapping[str, Any], text: str) -> str:
    said = f"{values.get('engine', '')} {text} {values.get('util', '')}".lower()
    for mark, engine in (
        ("sglang", "sglang"),
        ("mem-fraction", "sglang"),
        ("tensorrt", "tensorrt_llm"),
        ("trt-llm", "tensorrt_llm"),
        ("llama.cpp", "llama_cpp"),
        ("ollama", "llama_cpp"),
    ):
        if mark in said:
            return engine
    return "vllm-v0" if "gpu_blocks" in values else "vllm-v1"


def read_quantization(text: str) -> Quantization | None:
    said = text.lower()
    for mark, scheme in (
        ("w8a8", "int8"),
        ("awq", "awq"),
        ("gptq", "gptq"),
        ("fp8", "fp8-block"),
        ("int8", "int8"),
    ):
        if mark in said:
            return get_quantization(scheme)
    return None


def read_gpu(text: str) -> tuple[GPUSpec | None, float | None]:
    """The card, and its usable memory where the line itself says it ("total 23.58 GiB")."""
    said = re.search(r"([\d.]+)\s*GiB", text)
    total = float(said[1]) if said else None
    upper = re.sub(r"(RTX|TESLA)[ -]+", r"\1", text.upper()).replace("RTXA6000", "A6000")
    for spec in load_gpus().values():
        base, size = spec.name.upper().rsplit("-", 1)
        if re.search(rf"(?<![0-9A-Z]){base}(?![0-9A-Z])", upper):
            if base == "A100" and ("40G" in upper) != (size == "40GB"):
                continue
            return (replace(spec, total_bytes=round(total * 2**30)) if total else spec), total
    classes = {24: "RTX3090-24GB", 40: "A100-40GB", 46: "L40S-48GB", 48: "L40S-48GB", 80: "H100-80GB"}
    size_class = re.search(r"(\d+)\s*GB class", text)
    if size_class and int(size_class[1]) in classes:
        return load_gpus()[classes[int(size_class[1])]], total
    return None, total
