"""What would one more GiB, fp8 keys and values, another block size or a shorter maximum buy? Each answer is a plan made
again with that one change, never a rule of thumb."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from labkit.errors import LabError
from labkit.models.parallel import Parallel
from labkit.planning.engines import memory_fraction
from labkit.planning.planner import Plan, make_plan
from labkit.planning.request import PlanRequest
from labkit.units import GIB


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change and its plan; `plan` is None with a `reason` where the change is not possible."""

    change: str
    plan: Plan | None
    gain: float | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "change": self.change,
            "kv_gib": None if plan is None else round(plan.kv_gib, 4),
            "num_tokens": None if plan is None else plan.num_tokens,
            "max_concurrency": None if plan is None else round(plan.max_concurrency, 4),
            "gain_percent": None if self.gain is None else round(100 * self.gain, 2),
            "reason": self.reason,
        }


def what_if(plan: Plan) -> list[WhatIf]:
    """The usual changes, each alone, with its gain in concurrency over `plan`."""
    request = plan.request
    fraction = memory_fraction(request)
    changes = [
        ("one more GiB of GPU memory", replace(request, extra_bytes=request.extra_bytes + GIB)),
        ("keys and values in fp8", replace(request, kv_dtype="fp8")),
        ("weights in fp8", replace(request, quantization=_fp8(request), given=_without(request, "weights"))),
        (
            f"half the maximum length ({request.model_len // 2:,})",
            replace(request, max_model_len=max(1, request.model_len // 2)),
        ),
        ("half the batched tokens", replace(request, max_batched_tokens=_half_batch(request))),
        (
            f"memory fraction {min(0.99, fraction + 0.05):g}",
            replace(request, memory_fraction=min(0.99, fraction + 0.05)),
        ),
    ]
    sizes = [size for size in (8, 16, 32, 64, 128) if size != plan.block_size]
    changes += [(f"block size {size}", replace(request, block_size=size)) for size in sizes]
    results = [_try(plan, change, changed) for change, changed in changes]
    try:
        wider = replace(
            request,
            parallel=Parallel(2 * request.parallel.tp, request.parallel.pp, request.parallel.expert_parallel),
        )
        results.append(_try(plan, f"tensor parallelism of {2 * request.parallel.tp}", wider))
    except LabError as error:
        results.append(WhatIf(f"tensor parallelism of {2 * request.parallel.tp}", None, None, str(error)))
    return results


def _try(plan: Plan, change: str, request: PlanRequest) -> WhatIf:
    try:
        changed = make_plan(request)
    except LabError as error:
        return WhatIf(change, None, None, str(error))
    gain = changed.max_concurrency / plan.max_concurrency - 1 if plan.max_concurrency else None
    return WhatIf(change, changed, gain)


def _fp8(request: PlanRequest) -> Any:
    from labkit.models.quantization import get_quantization

    return get_quantization("fp8")


def _half_batch(request: PlanRequest) -> int:
    from labkit.planning.engines import batch_limits

    return max(1, batch_limits(request)[0] // 2)


def _without(request: PlanRequest, name: str) -> dict[str, int]:
    return {key: value for key, value in request.given.items() if key != name}
