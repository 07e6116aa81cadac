"""What the columns of the boards mean, and how many decimals say something. Each figure is a mean over the loads."""

from __future__ import annotations

#: figure -> (decimals, unit and meaning)
COLUMNS: dict[str, tuple[int, str]] = {
    "served": (3, "share of the requests that were never refused anything"),
    "moved_gib": (2, "GiB copied because something could not grow where it lay"),
    "utilisation": (3, "share of memory that is asked for, mean over the calls"),
    "refusals": (1, "requests that were refused"),
    "good_share": (3, "share of the requests that met the SLA"),
    "lost_tokens": (0, "tokens computed again after a preemption"),
    "goodput": (3, "requests a second that were good"),
    "output_tokens_per_s": (0, "tokens a second of finished answers"),
    "preempted": (1, "preemptions"),
    "refused": (1, "requests refused or dropped"),
    "hit_share": (3, "share of the prompt tokens that were found in the cache"),
    "evicted_blocks": (0, "cached blocks given up"),
}


def shown(figure: str, value: float) -> str:
    """The value with its decimals."""
    return f"{value:,.{COLUMNS[figure][0]}f}"


def legend(figures: tuple[str, ...]) -> list[str]:
    """One line a column, the score first."""
    heads = [figure.replace("_", " ") for figure in (*figures, "decisions/s")]
    says = [COLUMNS[figure][1] for figure in figures]
    says = [f"{says[0]} (the score)", f"{says[1]} (decides equal scores, fewer is better)", *says[2:]]
    says.append("decisions a CPU second of this machine")
    width = max(map(len, heads))
    return [f"{head:{width}}  {text}" for head, text in zip(heads, says)]
