"""What the scheduler and the eviction board share: serve a load in a child, and judge what came back.

The parent judges with its own copy of the load, so that a child that changes the requests deceives nobody but itself, and
says so. Non-anticipation is tested, not guessed from source text: everything that an honest policy cannot know at step K
is changed (how long the unfinished answers will be, who will come), and the decisions up to step K must stay the same.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.errors import IntegrityError
from labkit.experiments.serve import STEP_COST
from labkit.observe.recorder import RunRecorder
from labkit.serving.base import Scheduler
from labkit.serving.cost_model import LinearStepCost
from labkit.serving.engine import simulate
from labkit.teach.leaderboard import Result
from labkit.teach.leaderboard_entry import TIME_S, Disqualified, in_child
from labkit.teach.leaderboard_traces import BoardLoad
from labkit.workload.base import RequestSpec

#: one step: admitted (id, hit tokens), preempted ids, dropped ids, scheduled tokens
Step = tuple[tuple[tuple[str, int], ...], tuple[str, ...], tuple[str, ...], int]
Build = Callable[[], Scheduler]
SLA_TPOT_S = 0.060
#: steps between two checks of an entry's pool
CHECK_EVERY = 40


@dataclass
class Life:
    """What happened to one request: instants, tokens, and the decode steps between its first and last token."""

    first_token_s: float | None
    finish_s: float | None
    num_output_tokens: int
    num_decode_steps: int


@dataclass
class Played:
    """One run of one policy on one load."""

    steps: list[Step]
    ends_s: list[float]
    lives: dict[str, Life]
    requests_after: list[RequestSpec]
    num_preempted: int
    num_lost_tokens: int
    num_hit_tokens: int
    num_dropped: int
    num_scheduled_tokens: int
    num_evicted: int
    end_s: float
    cpu_s: float


class _Watch(RunRecorder):
    """Notes decisions, and checks the laws of the pool at every `every`-th step (0: never); `checks_s` is what that took."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.checks_s = every, 0.0
        self.steps: list[Step] = []
        self.ends_s: list[float] = []
        self.num_decodes = 0
        self._first_at: dict[str, int] = {}
        self.decode_steps: dict[str, int] = {}

    def on_step(self, scheduler, plan, outcome, start_s, end_s):  # type: ignore[no-untyped-def]
        super().on_step(scheduler, plan, outcome, start_s, end_s)
        self.steps.append(
            (
                tuple((row.request_id, row.num_hit_tokens) for row in plan.admitted),
                tuple(row.request_id for row in plan.preempted),
                tuple(row.request_id for row in plan.dropped),
                plan.num_scheduled_tokens,
            )
        )
        self.ends_s.append(end_s)
        self.num_decodes += plan.num_decode_requests > 0
        for request_id in outcome.started:
            self._first_at.setdefault(request_id, self.num_decodes)
        for request_id in outcome.finished:
            self.decode_steps[request_id] = self.num_decodes - self._first_at.get(
                request_id, self.num_decodes
            )
        kv = getattr(scheduler, "kv", None)
        if kv is not None and self.every and len(self.steps) % self.every == 0:
            start = time.process_time()
            kv.check_integrity()
            self.checks_s += time.process_time() - start


def play(
    build: Build, requests: Sequence[RequestSpec], *, check_every: int = 0, max_steps: int = 60_000
) -> Played:
    """Serve a copy of `requests`."""
    mine = [copy.copy(r) for r in requests]
    scheduler, watch = build(), _Watch(check_every)
    start = time.process_time()
    totals = simulate(scheduler, LinearStepCost(**STEP_COST), mine, watch, max_steps=max_steps)
    cpu_s = time.process_time() - start - watch.checks_s
    kv = getattr(scheduler, "kv", None)
    if kv is not None:
        kv.check_integrity()
    lives = {
        r.request_id: Life(
            r.first_token_s, r.finish_s, r.num_output_tokens, watch.decode_steps.get(r.request_id, 0)
        )
        for r in watch.requests.values()
    }
    return Played(
        watch.steps,
        watch.ends_s,
        lives,
        mine,
        totals.num_preempted,
        totals.num_recomputed_tokens,
        totals.num_hit_tokens,
        totals.num_dropped + totals.num_refused,
        totals.num_scheduled_tokens,
        getattr(getattr(kv, "prefix", None), "num_evicted", 0),
        totals.end_s,
        cpu_s,
    )


def score(load: BoardLoad, played: Played) -> Result:
    """Goodput and what it cost, from the parent's own copy of the load."""
    num_good = num_output = 0
    for r in load.requests:
        life = played.lives.get(r.request_id)
        if life is None or life.finish_s is None or life.first_token_s is None:
            continue
        if life.num_output_tokens < r.num_output_tokens:
            continue
        num_output += life.num_output_tokens
        ttft_s = life.first_token_s - r.arrival_s
        tpot_s = (life.finish_s - life.first_token_s) / max(1, life.num_output_tokens - 1)
        num_good += ttft_s <= load.ttft_s and tpot_s <= SLA_TPOT_S
    num_prompt = sum(r.num_prompt_tokens for r in load.requests)
    span = max(played.end_s, load.requests[-1].arrival_s)
    figures = {
        "good_share": num_good / len(load.requests),
        "goodput": num_good / span,
        "output_tokens_per_s": num_output / span,
        "preempted": float(played.num_preempted),
        "lost_tokens": float(played.num_lost_tokens),
        "refused": float(played.num_dropped),
        "hit_share": played.num_hit_tokens / num_prompt,
        "evicted_blocks": float(played.num_evicted),
    }
    return Result(load.name, figures, len(played.steps), played.cpu_s)


@dataclass
class Contest:
    """Scores an entry on one load: four runs, each in a child of its own."""

    load: BoardLoad
    build: Build
    time_s: float = TIME_S

    def result(self) -> Result:
        """Raises `Disqualified`."""
        load = self.load
        played = self._run(load.requests)
        _unchanged(load, played)
        _possible(load, played)
        again = self._run(load.requests)
        if again.steps != played.steps:
            raise Disqualified(
                "is not deterministic", f"two runs on {load.name} decided differently; draw from a fixed seed"
            )
        for share in (1 / 3, 2 / 3):
            self._foresight(played, int(share * len(played.steps)))
        return score(load, played)

    def _foresight(self, played: Played, at: int) -> None:
        """Decisions before step `at` must not change with what comes later."""
        other = self._run(another_future(self.load.requests, played, at)).steps
        differs = [i for i in range(at) if i >= len(other) or other[i] != played.steps[i]]
        if differs:
            raise Disqualified(
                "reads the future",
                f"on {self.load.name} it decides differently at step {differs[0]} when only what happens after step {at} is "
                "changed (how long answers will be, who will come)",
            )

    def _run(self, requests: Sequence[RequestSpec]) -> Played:
        def run() -> Played:
            try:
                return play(self.build, requests, check_every=CHECK_EVERY)
            except IntegrityError as error:
                raise Disqualified("corrupts memory", f"on {self.load.name}: {str(error)[:240]}") from None

        return in_child(run, time_s=self.time_s)


def another_future(requests: Sequence[RequestSpec], played: Played, at: int) -> list[RequestSpec]:
    """The same load up to step `at`: what has not finished by then goes on to its maximum, and who comes later is another."""
    now_s = played.ends_s[at - 1] if at else 0.0
    changed = []
    for r in requests:
        finish_s = played.lives[r.request_id].finish_s if r.request_id in played.lives else None
        if r.arrival_s >= now_s:
            changed.append(
                dataclasses.replace(
                    r,
                    num_prompt_tokens=r.num_prompt_tokens // 2 + 8,
                    num_output_tokens=r.num_output_tokens // 2 + 1,
                    prefix_hashes=None,
                    prefix_block_size=0,
                )
            )
        elif finish_s is None or finish_s > now_s:
            changed.append(
                dataclasses.replace(r, num_output_tokens=r.max_output_tokens or r.num_output_tokens)
            )
        else:
            changed.append(r)
    return changed


def _unchanged(load: BoardLoad, played: Played) -> None:
    for before, after in zip(load.requests, played.requests_after):
        if before != after:
            what = next(
                f.name
                for f in dataclasses.fields(before)
                if getattr(before, f.name) != getattr(after, f.name)
            )
            raise Disqualified(
                "mutates the trace",
                f"{what} of request {before.request_id} on {load.name} was {getattr(before, what)!r} and is "
                f"{getattr(after, what)!r}",
            )


def _possible(load: BoardLoad, played: Played) -> None:
    """Every token of a finished answer took a step, and every prompt was computed or found."""
    computed = 0
    for r in load.requests:
        life = played.lives.get(r.request_id)
        if life is None or life.finish_s is None:
            continue
        if life.num_decode_steps < life.num_output_tokens - 1:
            raise Disqualified(
                "corrupts memory",
                f"request {r.request_id} on {load.name} ended with {life.num_output_tokens} tokens after "
                f"{life.num_decode_steps + 1} steps that could make one",
            )
        computed += r.num_prompt_tokens + life.num_output_tokens - 1
    if played.num_scheduled_tokens + played.num_hit_tokens < computed:
        raise Disqualified(
            "corrupts memory",
            f"finished requests on {load.name} need {computed:,} tokens computed or found, and "
            f"{played.num_scheduled_tokens + played.num_hit_tokens:,} were",
        )
