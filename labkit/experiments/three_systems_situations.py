"""One situation, three answers: small loads on the models of vLLM, SGLang and TensorRT-LLM, and what each decides.

    python -c "from labkit.experiments.three_systems_situations import page; print(page(), end='')"

writes docs/systems.md. Every answer is a sentence made of what a run did; nothing is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.errors import LabError
from labkit.experiments.three_systems_answers import (
    full_hit,
    identical_prompts,
    long_prompt,
    never_fits,
    pool_exhausted,
    pool_exhausted_optimistic,
    set_aside,
    shared_prefix_freed,
    small_behind_big,
    starved_budget,
    without_chunking,
)
from labkit.experiments.three_systems_small import NAMES, Situation


def situations() -> list[Situation]:
    """All of them, run now."""
    return [situation() for situation in SITUATIONS.values()]


def situation(name: str) -> Situation:
    """One by name; raises `LabError` for a name that is not known."""
    if name not in SITUATIONS:
        raise LabError(f"unknown situation {name!r}; choose one of: {', '.join(SITUATIONS)}")
    return SITUATIONS[name]()


SITUATIONS: dict[str, Callable[[], Situation]] = {
    "identical prompts": identical_prompts,
    "pool exhausted": pool_exhausted,
    "pool exhausted, tuned for speed": pool_exhausted_optimistic,
    "a prompt longer than the budget": long_prompt,
    "the same without chunked prefill": without_chunking,
    "a request that can never fit": never_fits,
    "a shared prefix is freed": shared_prefix_freed,
    "what is set aside for outputs": set_aside,
    "the whole prompt is cached": full_hit,
    "a small one behind a big one": small_behind_big,
    "a budget of one chunk unit": starved_budget,
}


def page() -> str:
    """docs/systems.md."""
    parts = [_HEAD]
    for found in situations():
        parts.append(
            f"## {found.name[0].upper()}{found.name[1:]}\n\n{found.question}\n\n| system | answer |\n| --- | --- |\n"
        )
        parts.append("".join(f"| {NAMES[name]} | {answer} |\n" for name, answer in found.answers.items()))
        parts.append("\n")
    return "".join(parts) + _TAIL


_HEAD = """# vLLM, SGLang and TensorRT-LLM side by side

One situation, three answers. Every answer below was given by the lab's model of that system, which is checked decision for
decision against recordings of the real code ([vLLM](systems/vllm.md), [SGLang](systems/sglang.md),
[TensorRT-LLM](systems/tensorrt_llm.md) say what is modelled, what is not, and what was compared). This page is written by

```
python -c "from labkit.experiments.three_systems_situations import page; print(page(), end='')"
```

and `pytest tests/experiments/test_three_systems.py` fails when it no longer says what the models do. Unless stated otherwise: a
pool of 800 tokens, a step of 512, at most 16 requests at once, each system's own block (16, 1, 32 tokens) and defaults; chunked prefill is on.

| question | vLLM | SGLang | TensorRT-LLM |
| --- | --- | --- | --- |
| unit of memory | block of 16, table a request | token (page), radix tree | block of 32, table a request |
| what admission counts | the known sequence, now | prompt + its maximum in full, others by an estimate | every block to completion (or one step: MAX_UTILIZATION) |
| a step | decodes first, then chunks, mixed | a prefill alone, else decodes | decodes counted first, contexts share the rest |
| under pressure | preempt the last admitted, to the front of the queue | retract the one with fewest outputs, to the end | never (or pause the last started, it keeps its place) |
| same prompt twice in one step | shared at once | both computed | the second waits one step and reuses |

"""
_TAIL = """## The same trace under all three

`notebooks/10_three_systems.ipynb` runs one trace through the three (`labkit.experiments.three_systems.side_by_side`), and replays recordings;
`labkit replay` does so with a trace of your own, `labkit verify FILE` with a recording.
"""
