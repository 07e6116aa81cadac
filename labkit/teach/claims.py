"""Claims: what a notebook sets out to show, the verdict on this run, and the control that keeps it honest.

    claim("5.2", "growing without room behind it moves the cache or fails", held=moves > 0, control=moves_with_room > 0,
          moves=moves, moves_with_room=moves_with_room)

`held` and `control` are the same predicate on two cases; on the control case it must be false. A claim whose control
also holds shows nothing. The verdict is shown to the reader and emitted as an output of MIME type `CLAIM_MIME`, from
which the runner builds one table over all notebooks. `finish(...)` in the last cell raises if anything went wrong, so
that one false claim does not hide the others.
"""

from __future__ import annotations

import html
import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from labkit.errors import LabError

CLAIM_MIME = "application/vnd.labkit.claim+json"
RSS_MIME = "application/vnd.labkit.rss+json"
HELD, NOT_HELD, NOT_MEASURED = "held", "not held", "not measured here"


@dataclass(frozen=True)
class Verdict:
    """One row of the claims table."""

    id: str
    notebook: str
    verdict: str
    held: bool
    control: bool
    reason: str
    statement: str
    figures: dict[str, Any]

    def _ipython_display_(self) -> None:
        """`claim` has shown it already; as the last value of a cell it is not shown again."""


class ClaimsFailed(AssertionError):
    """Raised by `finish`: names every claim that is missing, not held, or has a control that also holds."""


_shown: dict[str, Verdict] = {}


def claim(
    claim_id: str,
    statement: str,
    held: Any,
    *,
    control: Any,
    reason: str = "",
    not_measured: str = "",
    **figures: Any,
) -> Verdict:
    """Show and record one verdict.

    `held` and `control` are booleans (NumPy's too). `not_measured` names what this machine could not measure: with
    `held=True` the claim stays held and the text becomes its reason; with `held=None` the verdict is "not measured
    here". `figures` are the numbers that the verdict rests on. Raises `LabError` for an id that is not in the list.
    """
    entry = claim_list().get(claim_id)
    if entry is None:
        raise LabError(f"claim {claim_id!r} is not in the list of claims; it has {', '.join(claim_list())}")
    control_held = _truth(control, "control")
    if held is None:
        if not not_measured:
            raise LabError(
                f"claim {claim_id}: held=None needs not_measured, one sentence on what was not measured"
            )
        verdict, is_held = NOT_MEASURED, False
    else:
        is_held = _truth(held, "held")
        verdict = HELD if is_held else NOT_HELD
    result = Verdict(
        id=claim_id,
        notebook=entry["notebook"],
        verdict=verdict,
        held=is_held,
        control=control_held,
        reason=" ".join(part for part in (reason, not_measured) if part),
        statement=statement,
        figures={name: _plain(value) for name, value in figures.items()},
    )
    _shown[claim_id] = result
    _display(result)
    return result


def finish(notebook: str) -> None:
    """Last cell of a notebook: every claim of `notebook` was made, each held, no control did. Raises `ClaimsFailed`."""
    problems = problems_of(list(_shown.values()), notebooks=[notebook])
    if problems:
        raise ClaimsFailed("; ".join(problems))
    made = [v for v in _shown.values() if v.notebook == notebook]
    _emit_peak_rss()
    if made:
        print(f"{len(made)} claims of notebook {notebook}: " + ", ".join(f"{v.id} {v.verdict}" for v in made))


def problems_of(verdicts: list[Verdict], *, notebooks: list[str]) -> list[str]:
    """What is wrong with a run of these notebooks, one short sentence each; an empty list is a good run."""
    known = known_exceptions()
    by_id = {v.id: v for v in verdicts}
    problems = []
    for claim_id, entry in claim_list().items():
        if entry["notebook"] not in notebooks:
            continue
        verdict = by_id.get(claim_id)
        if verdict is None:
            problems.append(f"claim {claim_id} is missing")
        elif verdict.control:
            problems.append(f"claim {claim_id}: its control holds too, so it shows nothing")
        elif verdict.verdict == NOT_HELD and claim_id not in known:
            problems.append(f"claim {claim_id} did not hold: {verdict.statement} {verdict.figures}")
    return problems


@cache
def claim_list() -> dict[str, dict[str, str]]:
    """`{"5.2": {"notebook": "05", "statement": ...}}` in the order of the sections."""
    entries = json.loads(files("labkit.data").joinpath("claims.json").read_text(encoding="utf-8"))
    return {entry["id"]: entry for entry in entries}


@cache
def known_exceptions() -> dict[str, str]:
    """Claims that honest data contradicts: id to reason. The README lists them."""
    entries = json.loads(files("labkit.data").joinpath("known_exceptions.json").read_text(encoding="utf-8"))
    return {entry["id"]: entry["reason"] for entry in entries}


def verdict_from(payload: dict[str, Any]) -> Verdict:
    """The verdict inside an output of MIME type `CLAIM_MIME`."""
    return Verdict(**payload)


def _truth(value: Any, name: str) -> bool:
    if not (value is True or value is False or type(value).__name__ in ("bool_", "bool")):
        raise LabError(f"{name} must be a boolean, not {type(value).__name__}: write the comparison out")
    return bool(value)


def _plain(value: Any) -> Any:
    """A figure as JSON: NumPy scalars and arrays become numbers and lists, floats are cut to 6 digits."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | bool | type(None)) else str(value)


def _emit_peak_rss() -> None:
    """Tell the runner how much memory this kernel needed at most (not on Windows, which has no `resource`)."""
    try:
        import resource

        from IPython.display import display
    except ImportError:
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = peak / (1 << 20) if sys.platform == "darwin" else peak / (1 << 10)
    if "ipykernel" in sys.modules:
        display({RSS_MIME: {"peak_rss_mib": peak_mib}}, raw=True)  # type: ignore[no-untyped-call]


_MARK = {HELD: ("✓", "#1b7837"), NOT_HELD: ("✗", "#b2182b"), NOT_MEASURED: ("–", "#666666")}


def _display(verdict: Verdict) -> None:
    text = f"{_MARK[verdict.verdict][0]} claim {verdict.id}, {verdict.verdict}: {verdict.statement}"
    if verdict.control:
        text += " [its control holds too: this shows nothing]"
    if verdict.reason:
        text += f" ({verdict.reason})"
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        get_ipython = None  # type: ignore[assignment]
    if get_ipython is None or get_ipython() is None:
        print(text)
        return
    bundle = {"text/plain": text, "text/html": verdict_html(verdict), CLAIM_MIME: asdict(verdict)}
    display(bundle, raw=True)  # type: ignore[no-untyped-call]


def verdict_html(verdict: Verdict) -> str:
    """The box that a reader sees: verdict, statement, the figures it rests on, and what the control did."""
    mark, colour = _MARK[verdict.verdict]
    figures = ", ".join(
        f"{html.escape(k.replace('_', ' '))} = {html.escape(_short(v))}" for k, v in verdict.figures.items()
    )
    control = "holds too, so this shows nothing" if verdict.control else "does not hold, as it must"
    reason = f"<div>{html.escape(verdict.reason)}</div>" if verdict.reason else ""
    return (
        f'<div id="claim-{verdict.id}" style="border-left:6px solid {colour};padding:6px 12px;margin:6px 0">'
        f'<b style="color:{colour}">{mark} Claim {verdict.id}: {verdict.verdict}</b>'
        f"<div>{html.escape(verdict.statement)}</div>{reason}"
        f'<div style="font-size:90%;opacity:.8">{figures}</div>'
        f'<div style="font-size:90%;opacity:.8">The control {control}.</div></div>'
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
