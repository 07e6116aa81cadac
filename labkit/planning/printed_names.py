"""The words of printed lines: which fields hold numbers, what else people call them, and the terms of a printed budget."""

from __future__ import annotations

#: fields that hold a printed number
NUMBERS = (
    "kv_gib",
    "kv_tokens",
    "concurrency",
    "weights_gib",
    "per_token_bytes",
    "block_size",
    "cpu_blocks",
    "needs_gib",
    "available_gib",
    "estimated_max_len",
    "n_ctx",
    "n_seq",
    "full_layers",
    "K_mib",
    "V_mib",
    "swa_cells",
    "swa_mib",
    "tp",
    "pp",
    "tokens",
    "kv_mib",
    "swap_gib",
    "num_kv_layers",
)
#: counts of things that have no fractions
WHOLE = ("tp", "pp", "block_size", "num_kv_layers", "n_seq", "full_layers")
#: no printed number is larger
LARGEST = 1e15
#: other names for the same thing
ALIASES = {
    "num_tokens": "tokens",
    "context_len": "tokens",
    "context_length": "tokens",
    "seq_len": "tokens",
    "bytes_per_token": "per_token_bytes",
    "max_concurrency": "concurrency",
    "num_gpu_blocks": "gpu_blocks",
    "tensor_parallel_size": "tp",
    "gpu_memory_utilization": "util",
    "mem_fraction_static": "util",
    "kv_cache_dtype": "kv_dtype",
    "kv_cache_gib": "kv_gib",
    "kv_cache_tokens": "kv_tokens",
    "kv_cache_size_tokens": "kv_tokens",
    "maximum_concurrency": "concurrency",
    "pipeline_parallel_size": "pp",
    "num_cpu_blocks": "cpu_blocks",
    "max_seq_len": "max_model_len",
    "max_len": "max_model_len",
    "utilization": "util",
    "utilisation": "util",
    "error": "result",
    "num_seqs": "n_seq",
    "batch_size": "n_seq",
}
#: terms of a printed budget, and what people call them
LEDGER = {
    "budget": ("budget", "budget_gib"),
    "total": ("total", "total_gib", "total_memory"),
    "weights": ("weights", "model_weights", "model", "weights_gib"),
    "non_torch": ("non_torch", "nontorch", "non_torch_memory", "non_torch_gib"),
    "peak_torch": ("peak_torch", "torch_peak", "peak_torch_memory"),
    "peak_activation": (
        "peak_activation",
        "peak_activations",
        "activation_peak",
        "activations_peak",
        "activation",
        "activations",
        "pytorch_activation_peak",
    ),
    "cuda_graphs": ("cuda_graphs", "cuda_graph", "cudagraph", "cudagraphs", "graphs"),
    "free_before": ("free_before", "avail_before", "free_before_load", "free_before_loading"),
    "free_after": ("free_after", "avail_after", "free_after_load", "free_after_loading", "free"),
}
LEDGER_NAMES = {alias: name for name, aliases in LEDGER.items() for alias in aliases}

#: what the engines say when they refuse to start, and the field that each number fills in
RESULT_NUMBERS = (
    (r"max seq(?:uence)? len\w*\s*\((\d+)\)", "max_model_len"),
    (r"KV cache\s*\((\d+)\)", "kv_tokens"),
    (r"(?:\(|to serve[^(]*\()([\d.]+)\s*GiB KV cache is needed", "needs_gib"),
    (r"available KV cache memory\s*\(([\d.]+)\s*GiB", "available_gib"),
    (r"estimated maximum model length is\s*(\d+)", "estimated_max_len"),
)
