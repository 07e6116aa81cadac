"""Numbers and names out of the free text that people put beside a printed line: GPU, engine, utilisation, quantisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labkit.models.dtypes import dtype_in_text
from labkit.models.gpus import GPUSpec, load_gpus
from labkit.models.quantization import Quantization, get_quantization


def first_number(value: Any) -> float | None:
    """The number, or the first one in a text; None where there is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = re.search(r"\d+(?:\.\d+)?", value) if isinstance(value, str) else None
    return float(found[0]) if found else None


def read_utilisation(value: Any, engine: str) -> float | None:
    """A share of the GPU, from 0.9, 90 or "90 %"; "default" is 0.9 but for SGLang, which has a rule."""
    number = first_number(value)
    if number is not None:
        return number / 100 if number > 1 or (isinstance(value, str) and "%" in value) else number
    return 0.9 if isinstance(value, str) and "default" in value and engine != "sglang" else None


def num_gpus(text: str) -> int | None:
    """`"4x H100 80GB"`, `"8 GPUs"` -> how many cards, or None."""
    found = re.search(r"(?<![\w.])(\d{1,4})\s*(?:[x×*]\s*(?=[A-Za-z])|GPUs\b)", text)
    found = found or re.search(r"[a-z0-9)]\s*[x×]\s*(\d{1,3})\b", text, re.IGNORECASE)
    return int(found[1]) or None if found else None


def read_length(value: str) -> int | None:
    """`"131072 tokens"`, `"131,072"`, `"128k"` (a power of two counts in 1,024s) -> tokens; None for "default"."""
    found = re.search(r"(\d[\d,_]*(?:\.\d+)?)\s*([kKmM](?![A-Za-z]))?", value)
    if not found or not found[0].isascii():
        return None
    number = float(found[1].replace(",", "").replace("_", ""))
    if found[2]:
        whole = int(number)
        step = 1024 if number == whole and whole & (whole - 1) == 0 else 1000
        number *= step if found[2] in "kK" else step * step
    return int(number) if number < 1e12 else None


def read_result(text: str) -> str | None:
    """What became of the start: "refused" or "served", None for words that say neither."""
    said = text.lower()
    if re.search(
        r"refus|reject|error|fail|larger than|exceed|cannot|can't|not enough|too (?:small|large|long)", said
    ):
        return "refused"
    return "served" if re.search(r"\bok\b|serv|start|success|works|running|fits", said) else None


def read_engine(values: Mapping[str, Any], text: str) -> str:
    """ "vllm" (0.33 and later), "vllm-v1", "vllm-v0", "sglang", "tensorrt_llm" or "llama_cpp", by the marks in a line."""
    said = f"{values.get('engine', '')} {text} {values.get('util', '')} {values.get('version', '')}".lower()
    for mark, engine in (
        ("sglang", "sglang"),
        ("mem-fraction", "sglang"),
        ("tensorrt", "tensorrt_llm"),
        ("trt-llm", "tensorrt_llm"),
        ("tensorrt_llm", "tensorrt_llm"),
        ("trtllm", "tensorrt_llm"),
        ("llama.cpp", "llama_cpp"),
        ("ollama", "llama_cpp"),
    ):
        if mark in said:
            return engine
    if re.search(r"vllm[ -]*v?0\.(?:3[3-9]|[4-9]\d)", said) or (
        "vllm" in str(values.get("engine", "")).lower()
        and re.match(r"v?0\.(?:3[3-9]|[4-9]\d)", str(values.get("version", "")))
    ):
        return "vllm"
    if found := re.search(r"vllm[ -]*v([01])(?!\.?\d)", said):
        return f"vllm-v{found[1]}"
    return "vllm-v0" if "gpu_blocks" in values else "vllm-v1"


def read_quantization(text: str) -> Quantization | None:
    """The scheme that the model's text names; None for none."""
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
    said = re.search(r"(\d+(?:\.\d+)?)\s*GiB", text)
    total = float(said[1]) if said else None
    upper = re.sub(r"(RTX|TESLA)[ -]+", r"\1", text.upper()).replace("RTXA6000", "A6000")
    upper = re.sub(r"TESLA(?=[A-Z])|H100[ -]+(?=NVL)", lambda m: m[0].strip(" -").replace("TESLA", ""), upper)
    upper = re.sub(r"H100(?=\W*94\s*G)", "H100NVL", upper)
    cards = {}
    for spec in load_gpus().values():
        base, _, size = spec.name.upper().rpartition("-")
        if re.search(rf"(?<![0-9A-Z]){base}(?![0-9A-Z])", upper):
            cards[size.removesuffix("GB")] = spec
    sizes = [size for size in cards if re.search(rf"(?<![0-9.]){size}\s*G", upper)]
    if len(cards) > 1 and not sizes:  # the usual one where the size is not said; V100 and GH200 have none
        sizes = ["80"] if "80" in cards else []
    if len(cards) == 1 or sizes:
        spec = cards[sizes[0]] if sizes else next(iter(cards.values()))
        return (replace(spec, total_bytes=round(total * 2**30)) if total else spec), total
    classes = {24: "RTX3090-24GB", 40: "A100-40GB", 46: "L40S-48GB", 48: "L40S-48GB", 80: "H100-80GB"}
    size_class = re.search(r"(\d+)\s*GB class", text)
    if size_class and int(size_class[1]) in classes:
        return load_gpus()[classes[int(size_class[1])]], total
    return None, total


def read_kv_dtype(values: Mapping[str, Any], text: str) -> str:
    """As the line says; "fp8 KV" in the model's text counts where there is no field."""
    if "kv_dtype" in values:
        return dtype_in_text(str(values["kv_dtype"]))
    found = re.search(
        r"(fp8(?:_e\d\w+)?|int8|q[458]_[01])\s+kv\b|\bkv\w*[\s=:]+(fp8|int8|q[458]_[01])", text.lower()
    )
    return dtype_in_text(found[1] or found[2]) if found else "bfloat16"


def read_num_kv_layers(numbers: Mapping[str, float], text: str) -> int | None:
    """Layers that keep keys and values, where the line says it ("16 KV layers")."""
    if "num_kv_layers" in numbers:
        return int(numbers["num_kv_layers"])
    found = re.search(r"(\d+)\s+KV layers", text)
    return int(found[1]) if found else None
