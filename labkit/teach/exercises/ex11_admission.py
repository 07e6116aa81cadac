"""Exercise 11: admission by block with headroom. Checked against the lab's `BlockAdmission`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.serving.admission import BlockAdmission
from labkit.teach.exercises.base import Exercise, Mistake, Picture
from labkit.teach.exercises.strip import counted
from labkit.teach.exercises.watch import called

ANSWERS = ("admit", "wait", "never")


def run(my_admit: Callable[..., str]) -> str:
    cases = [
        # (prompt, max output, hit, block_size, num_blocks, num_free, num_running, headroom)
        (33, 10, 0, 16, 100, 3, 2, 0.0),  # needs 3, exactly 3 free
        (33, 10, 0, 16, 100, 2, 2, 0.0),
        (32, 10, 0, 16, 100, 2, 2, 0.0),  # a whole number of blocks
        (16, 10, 0, 16, 100, 10, 2, 0.1),  # 1 needed, 10 free, 10 to be left: wait
        (16, 10, 0, 16, 100, 11, 2, 0.1),
        (160, 10, 0, 16, 10, 10, 0, 0.5),  # too long with its output
        (150, 10, 0, 16, 10, 10, 0, 0.5),  # idle: headroom must not hold it back for ever
        (100, 100, 0, 16, 10, 10, 0, 0.0),  # prompt fits, prompt + output never does
        (64, 16, 32, 16, 100, 2, 3, 0.0),  # two of four blocks are hits
        (64, 16, 32, 16, 100, 1, 3, 0.0),
        (1, 1, 0, 16, 1, 1, 0, 0.99),
        (17, 10, 0, 16, 15, 3, 1, 0.1),  # headroom 1.5 blocks counts as 1
    ]
    rng = np.random.default_rng(11)
    for _ in range(400):
        size, total = int(rng.choice([1, 8, 16, 32])), int(rng.integers(4, 200))
        prompt = int(rng.integers(1, total * size))
        hit = int(rng.integers(0, (prompt - 1) // size + 1)) * size if rng.random() < 0.4 else 0
        free, running = int(rng.integers(0, total + 1)), int(rng.integers(0, 4))
        if running == 0:
            free = total
        cases.append(
            (
                prompt,
                int(rng.integers(1, 200)),
                hit,
                size,
                total,
                free,
                running,
                float(rng.choice([0, 0.01, 0.1, 0.3])),
            )
        )
    my_admit = called(my_admit)
    counts = dict.fromkeys(ANSWERS, 0)
    for case in cases:
        counts[_check(my_admit, *case)] += 1
    return f"{len(cases)} decisions as the lab's admission by block takes them ({counts})."


def _check(
    my_admit: Callable[..., str],
    prompt: int,
    output: int,
    hit: int,
    size: int,
    total: int,
    free: int,
    running: int,
    headroom: float,
) -> str:
    expected = decide(prompt, output, hit, size, total, free, running, headroom)
    got = my_admit(
        prompt,
        output,
        hit,
        block_size=size,
        num_blocks=total,
        num_free_blocks=free,
        num_running=running,
        headroom=headroom,
    )
    if got == expected:
        return expected
    what = (
        f"prompt {prompt}, at most {output} more, {hit} tokens hit; {free} of {total} blocks of {size} free, {running} running, "
        f"headroom {headroom}"
    )
    needed = -(-prompt // size) - hit // size
    kept = int(headroom * total) if running else 0
    raise Mistake(
        f"my_admit answered {got!r} and should answer {expected!r}: {_why(got, expected, prompt, output, hit, size, total, free, running, headroom)}. "
        f"Input: {what}.\nThe call that shows it:\n    my_admit({prompt}, {output}, {hit}, block_size={size}, num_blocks={total}, "
        f"num_free_blocks={free}, num_running={running}, headroom={headroom})",
        Picture(
            "bars",
            f"needed {needed}, free {free}, headroom {kept} blocks",
            {
                "asked": {"needed": needed, "headroom": kept},
                "free": {"free": free},
                "the cache": {"all blocks": total},
            },
            {"ylabel": "blocks", "stacked": True},
        ),
    )


def _why(
    got: Any,
    expected: str,
    prompt: int,
    output: int,
    hit: int,
    size: int,
    total: int,
    free: int,
    running: int,
    headroom: float,
) -> str:
    """The sentence for the first classic mistake that gives `got`."""
    if got not in ANSWERS:
        return f"the answer is one of {', '.join(ANSWERS)}"
    ever = -(-(prompt + output) // size)
    if expected == "never":
        return (
            f"prompt and output together can grow to {prompt + output} tokens, {ever} blocks, and the cache has {total}: it "
            "could never finish, however long it waits, so say never"
        )
    if got == "never":
        return f"its {ever} blocks fit the cache of {total} when others have left: it can wait"
    needed = -(-prompt // size) - hit // size
    if expected == "admit" and not running and needed <= free:
        return (
            "nothing runs, so nobody will ever leave and free more: the headroom is for running requests to grow into, and "
            "must not hold back the only request (it would wait for ever)"
        )
    if expected == "admit":
        if -(-prompt // size) > free - int(headroom * total):
            return f"{hit} tokens are cached, and what they lie in is shared and not taken again: {_needed(needed)}"
        return (
            f"{_needed(needed)}, and {free} less {int(headroom * total)} of headroom are free: that suffices "
            "(needed <= free, the headroom rounded down, output not reserved)"
        )
    if prompt // size - hit // size <= free - (int(headroom * total) if running else 0):
        return f"{prompt} tokens take {-(-prompt // size)} blocks of {size}: round the last block up"
    return (
        f"{_needed(needed)} and {free} free, of which {int(headroom * total)} (headroom x all blocks of the cache) "
        "must be left for those that run"
    )


def _needed(number: int) -> str:
    return f"{counted(number, 'blocks')} {'is' if number == 1 else 'are'} needed"


def decide(
    prompt: int, output: int, hit: int, size: int, total: int, free: int, running: int, headroom: float
) -> str:
    """What the lab's `BlockAdmission` says."""
    admission = BlockAdmission(headroom=headroom)
    space: Any = SimpleNamespace(
        num_blocks=total,
        num_free_blocks=free,
        block_size=size,
        blocks_for=lambda tokens: -(-tokens // size),
        blocks_asked=lambda request, num_hit_tokens: -(-request.num_known_tokens // size),
    )
    request: Any = SimpleNamespace(
        request_id="r",
        num_known_tokens=prompt,
        num_prompt_tokens=prompt,
        max_output_tokens=output,
        max_tokens=prompt + output,
    )
    if admission.never_fits(request, space) is not None:
        return "never"
    refusal = admission.refusal(request, prompt - hit, hit, space, running, 0)
    return "admit" if refusal is None else "wait"


EXERCISE = Exercise(
    "11",
    "admission",
    "Admission by block, with headroom",
    ("my_admit",),
    (
        'First the question that waiting cannot answer: blocks of prompt + max_output_tokens against num_blocks ("never").',
        "Needed now: blocks of the prompt, rounded up, less hit_tokens // block_size.",
        "Available: num_free_blocks, less int(headroom * num_blocks) when somebody runs.",
        "With nobody running the headroom does not apply: nobody could ever free anything.",
    ),
    run,
)
