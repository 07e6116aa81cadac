"""Models by name: a built-in catalogue of shapes (`labkit/data/models.json`), or a config.json of one's own."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path

from labkit.errors import LabError, shown
from labkit.models.config import from_config, read_config
from labkit.models.spec import ModelSpec


def get_model(name: str | Path) -> ModelSpec:
    """A model of the catalogue by its name or a usual alias (`"meta-llama/Llama-3.1-8B-Instruct"`), or the path of a
    config.json or of a folder with one. Raises `LabError` that lists the names, `InputError` with the field."""
    text = str(name)
    if text.endswith(".json") or Path(text).is_dir():
        return read_config(text)
    key = text.rsplit("/", 1)[-1].casefold()
    index = _index()
    if key not in index:
        raise LabError(
            f"unknown model {shown(text)}; choose one of: {', '.join(model_names())}, or give a config.json"
        )
    return _model(index[key])


def model_names() -> list[str]:
    """Names of the catalogue, in its order."""
    return [entry["name"] for entry in _entries()]


@cache
def _entries() -> list[dict]:
    text = resources.files("labkit").joinpath("data/models.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


@cache
def _index() -> dict[str, int]:
    index = {entry["name"].casefold(): i for i, entry in enumerate(_entries())}
    for i, entry in enumerate(_entries()):
        for alias in entry.get("aliases", ()):
            index.setdefault(alias.casefold(), i)
    return index


@cache
def _model(position: int) -> ModelSpec:
    entry = _entries()[position]
    return from_config(entry, name=entry["name"], where=f"models.json ({entry['name']})")


def find_in_text(text: str) -> ModelSpec | None:
    """The catalogue's model that a free text names ("Llama-3 70B (rollout)"), the longest name that fits, or None.

    A name ends where the word does: "DeepSeek-V3.2" is not DeepSeek-V3, and a distilled model is none of its teacher's.
    """
    said = "-".join(text.casefold().replace("_", "-").split())
    names = [
        key
        for key in _index()
        if re.search(rf"(?<![a-z0-9.]){re.escape(key)}(?![a-z0-9]|\.[0-9]|-distill)", said)
    ]
    return _model(_index()[max(names, key=len)]) if names else None
