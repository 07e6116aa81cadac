"""A plan as the engine's own log lines, as text for people, and as JSON."""

from __future__ import annotations

from typing import Any

from labkit.planning.engines import batch_limits, memory_fraction
from labkit.planning.ledger import make_ledger, naive_concurrency
from labkit.planning.on_trace import TracePlan
from labkit.planning.planner import Plan
from labkit.planning.steps_lengths import SWAP_BYTES
from labkit.planning.whatif import what_if
from labkit.units import GIB


def printed_lines(plan: Plan) -> list[str]:
    """What the engine would log, in its own words and units."""
    engine, length = plan.request.engine, plan.request.model_len
    if engine == "vllm-v0":
        cpu = SWAP_BYTES // plan.block_bytes
        return [
            f"# GPU blocks: {plan.num_blocks}, # CPU blocks: {cpu}",
            f"Maximum concurrency for {length} tokens per request: {plan.max_concurrency:.2f}x",
        ]
    if engine == "sglang":
        half = plan.kv_gib / 2
        sizes = (
            f"KV size: {plan.kv_gib:.2f} GB"
            if plan.request.model.mla
            else f"K size: {half:.2f} GB, V size: {half:.2f} GB"
        )
        return [
            f"KV Cache is allocated. #tokens: {plan.num_tokens}, {sizes}",
            f"max_total_num_tokens={plan.num_tokens}",
        ]
    if engine == "tensorrt_llm":
        return [
            f"Number of blocks: {plan.num_blocks}, tokens per block: {plan.block_size}",
            f"Allocated {plan.kv_gib:.2f} GiB for max tokens in paged KV cache ({plan.num_tokens}).",
        ]
    return [
        f"Available KV cache memory: {plan.kv_gib:.2f} GiB",
        f"GPU KV cache size: {plan.num_tokens:,} tokens",
        f"Maximum concurrency for {length:,} tokens per request: {plan.max_concurrency:.2f}x",
    ]


def as_dict(plan: Plan, trace: TracePlan | None = None) -> dict[str, Any]:
    """Everything, ready for JSON."""
    request = plan.request
    tokens, seqs = batch_limits(request)
    ledger = make_ledger(plan)
    return {
        "model": request.model.name,
        "gpu": request.gpu.name,
        "engine": request.engine,
        "tp": request.parallel.tp,
        "pp": request.parallel.pp,
        "kv_dtype": request.kv_dtype,
        "max_model_len": request.model_len,
        "memory_fraction": memory_fraction(request),
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "num_params": request.model.num_params,
        "kv_bytes_per_token": plan.groups.num_groups * plan.groups.bytes_per_token,
        "kv_bytes": plan.kv_bytes,
        "kv_gib": plan.kv_gib,
        "block_size": plan.block_size,
        "num_blocks": plan.num_blocks,
        "num_usable_blocks": plan.num_usable_blocks,
        "num_tokens": plan.num_tokens,
        "max_concurrency": plan.max_concurrency,
        "naive_concurrency": naive_concurrency(plan),
        "estimated_max_len": plan.estimated_max_len,
        "binding_limit": plan.binding_limit,
        "fits": plan.fits,
        "rule": plan.budget.rule,
        "sentence": plan.sentence,
        "warnings": list(plan.warnings),
        "printed": printed_lines(plan),
        "ledger": ledger.rows(),
        "what_if": [change.as_dict() for change in what_if(plan)],
        "trace": None if trace is None else trace.as_dict(),
    }


def as_text(plan: Plan, trace: TracePlan | None = None) -> str:
    """The same for people: the engine's lines, the ledger, what limits, what would help."""
    data = as_dict(plan, trace)
    ledger = make_ledger(plan)
    lines = [
        f"{data['model']} on {data['gpu']}, {data['engine']}, tp {data['tp']}, pp {data['pp']}, KV {data['kv_dtype']}",
        f"rule: {data['rule']}",
        "",
        *[f"  {line}" for line in data["printed"]],
        f"  = {plan.kv_bytes:,} B = {plan.num_blocks:,} blocks x {plan.block_size} tokens x {plan.groups.bytes_per_token:,} B"
        + (f" in {plan.groups.num_groups} groups" if plan.groups.num_groups > 1 else ""),
        "",
        f"{'ledger of one rank':<34}{'GiB':>9}  {'':<8}{'':<10}formula",
    ]
    for row in data["ledger"]:
        when = "dynamic" if row["dynamic"] else "static"
        lines.append(
            f"  {row['line']:<32}{row['bytes'] / GIB:>9.3f}  {when:<8}{row['confidence']:<10}{row['formula']}"
        )
    lines += ["", ledger.sentence(), plan.sentence]
    lines.append(
        f"Weights and theoretical KV alone would promise {data['naive_concurrency']:.2f} requests of {data['max_model_len']:,} "
        "tokens."
    )
    lines += [f"note: {warning}" for warning in plan.warnings]
    lines += ["", f"{'what if':<44}{'KV GiB':>8}{'tokens':>13}{'concurrency':>13}{'gain':>9}"]
    for change in data["what_if"]:
        if change["kv_gib"] is None:
            lines.append(f"  {change['change']:<42}  not possible: {change['reason']}")
        else:
            gain = "" if change["gain_percent"] is None else f"{change['gain_percent']:+.1f} %"
            lines.append(
                f"  {change['change']:<42}{change['kv_gib']:>8.2f}{change['num_tokens']:>13,}"
                f"{change['max_concurrency']:>13.2f}{gain:>9}"
            )
    if trace is not None:
        lines += ["", *_trace_text(trace)]
    return "\n".join(lines)


def _trace_text(trace: TracePlan) -> list[str]:
    lines = [
        f"on the trace ({trace.num_requests:,} requests, {trace.num_too_long:,} too long; prompts "
        f"{trace.mean_prompt_tokens:,.0f} and outputs {trace.mean_output_tokens:,.0f} tokens on average):",
        f"  concurrency at final length {trace.concurrency_at_final_length:,.1f}, at P95 length "
        f"{trace.concurrency_at_p95_length:,.1f}, at the mean footprint over a life {trace.concurrency_at_mean_footprint:,.1f}",
    ]
    if trace.summary is not None and trace.preempted_share is not None:
        summary = trace.summary
        lines.append(
            f"  replay: {summary['num_finished']:,} finished, {summary['num_refused']:,} refused, "
            f"{100 * trace.preempted_share:.2f} % of the admitted preempted at least once, peak {summary['peak_running']:,} "
            f"running, TTFT P95 {summary['ttft_s']['p95'] or 0:.2f} s"
        )
    if trace.lifetime is not None:
        lines.append(f"  lifetimes: {trace.lifetime.sentence()}")
    return lines
