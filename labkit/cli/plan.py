"""`labkit plan`: how many requests fit; `labkit plan check`: printed capacity lines against the arithmetic."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _PlanByDefault(TyperGroup):
    """`labkit plan NAME --gpu …` is `labkit plan model NAME --gpu …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["model", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_PlanByDefault,
    no_args_is_help=True,
    help="How many requests fit on a GPU under an engine's own arithmetic: plan NAME|CONFIG.json --gpu GPU, or plan check FILE.",
)


@app.command("model")
def model(
    model: Annotated[str, typer.Argument(help="a model's name, or a Hugging Face config.json")],
    gpu: Annotated[str, typer.Option(help="a GPU's name, or a .json file of your own")] = "H100-80GB",
    engine: Annotated[str, typer.Option(help="vllm, vllm-v1, vllm-v0, sglang or tensorrt_llm")] = "vllm",
    tp: Annotated[int, typer.Option(help="tensor-parallel ranks")] = 1,
    pp: Annotated[int, typer.Option(help="pipeline stages")] = 1,
    expert_parallel: Annotated[bool, typer.Option(help="ranks hold whole experts")] = False,
    max_model_len: Annotated[int | None, typer.Option(help="longest sequence in tokens")] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto, fp8, bf16, ...")] = "auto",
    quantization: Annotated[
        str | None, typer.Option(help="weights: fp8, fp8-block, int8, awq, gptq, mxfp4, none")
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="tokens per block")] = None,
    memory_fraction: Annotated[
        float | None,
        typer.Option("--memory-fraction", "--gpu-memory-utilization", help="the engine's own fraction"),
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="largest batch in sequences")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="largest batch in tokens")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="TensorRT-LLM's limit on the pool in tokens")] = None,
    trace: Annotated[
        str | None, typer.Option(help="a trace file or name: concurrency on its lengths, and a replay")
    ] = None,
    scheduler: Annotated[str, typer.Option(help="who replays the trace: lab, or engine (its model)")] = "lab",
    limit: Annotated[int | None, typer.Option(help="first requests of the trace only")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """KV GiB, blocks, tokens and concurrency as the engine would print them, the ledger, and what would help."""
    from labkit.models import get_gpu, get_model
    from labkit.models.parallel import Parallel
    from labkit.models.quantization import get_quantization
    from labkit.planning.planner import make_plan
    from labkit.planning.report import as_dict, as_text
    from labkit.planning.request import PlanRequest

    request = PlanRequest(
        get_model(model),
        get_gpu(gpu),
        engine=engine.replace("-llm", "_llm") if engine.startswith("tensorrt") else engine,
        parallel=Parallel(tp, pp, expert_parallel),
        max_model_len=max_model_len,
        kv_dtype=kv_dtype,
        block_size=block_size,
        memory_fraction=memory_fraction,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_num_batched_tokens,
        quantization=None if quantization is None else get_quantization(quantization),
        max_tokens=max_tokens,
    )
    plan = make_plan(request)
    on_trace = None
    if trace is not None:
        from labkit.planning.on_trace import plan_on_trace
        from labkit.workload.traces import load_trace

        on_trace = plan_on_trace(plan, load_trace(trace, limit), scheduler=scheduler)
    typer.echo(json.dumps(as_dict(plan, on_trace), indent=1) if as_json else as_text(plan, on_trace))


@app.command("check")
def check(
    file: Annotated[str, typer.Argument(help="JSON list of lines that real servers printed")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Test every step that a line's own terms allow. Exit 1 when one of them misses."""
    from labkit.planning.check import check_lines, table
    from labkit.planning.printed import read_lines

    results = check_lines(read_lines(file))
    num_flagged = sum(result.flagged for result in results)
    if as_json:
        rows = [result.as_dict() for result in results]
        typer.echo(json.dumps({"num_lines": len(rows), "num_flagged": num_flagged, "rows": rows}, indent=1))
    else:
        heads = ("id", "model", "step", "printed", "planned", "deviation", "verdict")
        rows_text = [(r[0], r[1][:34], *r[2:]) for r in [heads, *table(results)]]
        widths = [max(len(row[i]) for row in rows_text) for i in range(len(heads))]
        for row in rows_text:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        typer.echo()
        for result in results:
            tested = (
                ", ".join(step.name for step in result.steps) or "nothing: the line lacks a second number"
            )
            typer.echo(f"{result.line.id}: {result.verdict}; tested: {tested}")
        off = sum(not step.holds for result in results for step in result.estimates)
        typer.echo(f"{len(results)} lines, {num_flagged} flagged, {off} estimates further off than 12 %")
    if num_flagged:
        raise typer.Exit(1)
