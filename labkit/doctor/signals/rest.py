"""What is held at rest, by whom and for how long."""

from __future__ import annotations

from labkit.doctor.signals.core import LEAST_HELD, LONG_REST_S, REST, Rest, Signal, Signals, signal

# --- what is held at rest -------------------------------------------------------------------------------------------


@signal("rest_usage", "share", "KV usage at the end of the last rest with nobody running", REST)
def _rest_usage(s: Signals) -> Signal | None:
    rests = s.empty_rests
    return Signal(rests[-1].usage_last, rests[-1].end_s) if rests else None


@signal("rest_growth", "share", "KV usage at rest: the end of the last rest less the end of the first", REST)
def _rest_growth(s: Signals) -> Signal | None:
    rests = [r for r in s.empty_rests if r.end_s - r.start_s >= 12]
    if len(rests) < 2:
        return None
    return Signal(rests[-1].usage_last - rests[0].usage_last, rests[-1].end_s)


@signal("rest_drop", "share", "the most that KV usage fell inside a rest with nobody running", REST)
def _rest_drop(s: Signals) -> Signal | None:
    rests = s.empty_rests
    if not rests:
        return None
    best = max(rests, key=lambda r: r.usage_first - r.usage_last)
    return Signal(best.usage_first - best.usage_last, best.start_s)


@signal(
    "rest_hold_s",
    "s",
    "how long after the last end more than a tenth of what was held then is still held",
    REST,
)
def _rest_hold(s: Signals) -> Signal | None:
    """Over rests with nobody running that start with something held; the longest."""
    if s.frame is None or not s.empty_rests:
        return None
    times, usage = s.frame["time_s"].to_numpy(dtype=float), s.column("kv_usage")
    assert usage is not None
    longest, at = 0.0, None
    for rest in s.empty_rests:
        if rest.usage_first < LEAST_HELD:
            continue
        inside = (times >= rest.start_s) & (times <= rest.end_s)
        held = times[inside][usage[inside] > 0.1 * rest.usage_first]
        lasted = float(held[-1] - rest.start_s) if len(held) else 0.0
        if lasted >= longest:
            longest, at = lasted, rest.start_s
    return Signal(longest, at)


@signal(
    "rest_usage_first", "share", "the most KV usage at the first reading of a rest with nobody running", REST
)
def _rest_first(s: Signals) -> Signal | None:
    rests = s.empty_rests
    if not rests:
        return None
    best = max(rests, key=lambda r: r.usage_first)
    return Signal(best.usage_first, best.start_s)


@signal(
    "rest_cleared",
    "share",
    "of what is held at the first reading of a rest, how much is gone at its end (smallest over long rests)",
    REST,
)
def _rest_cleared(s: Signals) -> Signal | None:
    held = [r for r in s.empty_rests if r.usage_first >= LEAST_HELD]
    rests = [r for r in held if r.end_s - r.start_s >= LONG_REST_S] or held
    if not rests:
        return None
    worst = min(rests, key=lambda r: 1 - r.usage_last / r.usage_first)
    return Signal(1 - worst.usage_last / worst.usage_first, worst.end_s)


@signal("idle_sequences", "count", "sequences counted as running at rest that make no token", REST)
def _idle(s: Signals) -> Signal | None:
    best = _most_idle(s)
    if best is None:
        return None
    return Signal(max(0.0, best.running - (best.decoding or 0.0)), best.end_s)


@signal("decoding_at_rest", "count", "sequences that go on decoding while nothing arrives or ends", REST)
def _decoding(s: Signals) -> Signal | None:
    known = [r for r in s.rests if r.decoding is not None]
    if not known:
        return None
    best = max(known, key=lambda r: r.decoding or 0.0)
    return Signal(best.decoding or 0.0, best.end_s)


@signal("held_by_idle", "share", "KV usage in the rest with the most idle sequences", REST)
def _held_by_idle(s: Signals) -> Signal | None:
    best = _most_idle(s)
    if best is None:
        return None
    return Signal(best.usage_last, best.end_s)


@signal("held_by_few", "share", "KV usage in a rest of sequences that decode", REST)
def _held_by_few(s: Signals) -> Signal | None:
    known = _decoding_rests(s)
    if not known:
        return Signal(0.0) if s.rests else None
    best = max(known, key=lambda r: r.usage_last)
    return Signal(best.usage_last, best.end_s)


@signal(
    "times_the_usual",
    "ratio",
    "KV a sequence holds in that rest, over prompt and output of a usual request",
    f"{REST}, and the pool's size in tokens",
)
def _times_usual(s: Signals) -> Signal | None:
    known = _decoding_rests(s)
    usual, pool = s.usual_tokens, s.pool_tokens
    if not s.rests or usual is None or pool is None:
        return None
    if not known:
        return Signal(0.0)
    best = max(known, key=lambda r: r.usage_last)
    held = max(0.0, best.usage_last - s.held_by_nobody)
    return Signal(held * pool / best.running / usual, best.end_s)


def _most_idle(s: Signals) -> Rest | None:
    """The rest with the most sequences that are counted as running and make no token."""
    known = [r for r in s.rests if r.decoding is not None]
    return max(known, key=lambda r: r.running - (r.decoding or 0.0)) if known else None


def _decoding_rests(s: Signals) -> list[Rest]:
    """Rests in which most of the running sequences decode."""
    return [r for r in s.rests if r.decoding is not None and r.running and r.decoding >= 0.6 * r.running]
