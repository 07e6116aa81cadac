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
    if text.endswith(".json") or (len(text) < 1000 and "\0" not in text and Path(text).is_dir()):
        return read_config(text)
    key = text.rsplit("/", 1)[-1].casefold()
    index = _index()
    if key not in index and (found := _spelled(key)):
        key = found
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
    index = _index()
    names = [key for key, pattern in _patterns().items() if pattern.search(said)]
    longest = [key for key in names if len(key) == max(map(len, names))]
    return _model(index[longest[0]]) if len({index[key] for key in longest}) == 1 else None


def _spelled(key: str) -> str | None:
    """The name of the catalogue that `key` is but for separators and words such as "instruct", if only one is."""
    said = re.sub(r"(?:-(?:instruct|chat|base|hf|it))+$", "", "-".join(key.replace("_", "-").split()))
    names = [name for name, pattern in _patterns().items() if pattern.fullmatch(said)]
    return names[0] if len({_index()[name] for name in names}) == 1 else None


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    """Names as people write them: "llama3.1-8b", "Llama 3.1 8B", "Qwen3-Next 80B" (the active parameters left out)."""
    patterns = {}
    for key in _index():
        base = re.sub(r"-a\d+b$", "", key)
        active = key[len(base) :]
        pieces = [re.escape(piece) for word in base.split("-") for piece in _words(word)]
        text = "-?".join(pieces) + (f"(?:{re.escape(active)})?" if active else "")
        patterns[key] = re.compile(rf"(?<![a-z0-9.]){text}(?![a-z0-9]|\.[0-9]|-distill)")
    return patterns


def _words(word: str) -> list[str]:
    """`"llama3.1"` -> `["llama", "3.1"]`: letters may be set off from the version that follows."""
    return re.findall(r"[a-z]+(?=[0-9])|.+", word)
