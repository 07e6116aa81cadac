"""Numbers of a printed line: read with their units, checked, and filled in where another field says the same.

A wrong number is an `InputError` with row and field. "GB" in these logs is GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from labkit.errors import InputError, shown
from labkit.planning.free_text import read_length
from labkit.planning.printed_names import LARGEST, LEDGER_NAMES, RESULT_NUMBERS, WHOLE


def read_number(value: Any, where: object, row: int, name: str) -> float:
    """A positive number in the unit that the field's `name` says."""
    if isinstance(value, str):
        value = _with_unit(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InputError(where, f"is {shown(value)}; expected a number", row=row, field=name)
    if not value > 0:
        raise InputError(where, f"is {shown(value)}; expected a number above 0", row=row, field=name)
    if value > LARGEST:
        raise InputError(where, f"is {shown(value)}; expected at most {LARGEST:g}", row=row, field=name)
    if name in WHOLE and value != int(value):
        raise InputError(where, f"is {shown(value)}; expected a whole number", row=row, field=name)
    return value


def _with_unit(text: str, name: str) -> Any:
    """The first number of `text` in the unit that the field's name says. "GB" is GiB, as the engines print it, unless the
    text says that it is decimal; "15.7K" tokens are 15,700."""
    found = re.search(r"(-?\d[\d,]*(?:\.\d+)?)\s*([KMGT]i?B\b|[KkMm]\b)?", text)
    if not found or len(found[1]) > 24 or not found[1].isascii():
        return text
    number = float(found[1].replace(",", ""))
    if float.is_integer(number) and "." not in found[1]:
        number = int(number)
    unit = (found[2] or "").upper()
    if len(unit) < 2:
        return number * {"": 1, "K": 1000, "M": 1_000_000}[unit]
    power = "KMGT".index(unit[0]) + 1
    decimal = "I" not in unit and re.search("decimal|10\\^9|1e9", text)
    num_bytes = number * (1000 if decimal else 1024) ** power
    if name.endswith("bytes"):
        return num_bytes
    return num_bytes / (1 << 20) if name.endswith("_mib") else num_bytes / (1 << 30)


def read_ledger(ledger: Any, where: object, row: int) -> dict[str, float]:
    """A printed budget: GiB by term, under the terms' own names. Zeros and terms that are not known are left out."""
    if not isinstance(ledger, Mapping):
        raise InputError(where, "is not an object of GiB by term", row=row, field="ledger_gib")
    return {
        LEDGER_NAMES[name]: read_number(value, where, row, f"ledger_gib.{name}")
        for name, value in ledger.items()
        if name in LEDGER_NAMES and value not in (0, None)
    }


def read_blocks(value: Any, where: object, row: int) -> dict[str, float]:
    """GPU blocks by label: "" for one number, "before" and "after" for two, "#1", "#2", ... for more."""
    if value is None:
        return {}
    if isinstance(value, list):
        labels = ["before", "after"] if len(value) == 2 else [f"#{i}" for i in range(1, len(value) + 1)]
        items = dict(zip(labels, value, strict=True))
    else:
        items = dict(value) if isinstance(value, Mapping) else {"": value}
    return {label: read_number(number, where, row, "gpu_blocks") for label, number in items.items()}


def read_flat_terms(values: Mapping[str, Any], where: object, row: int) -> dict[str, float]:
    """Budget terms that stand beside the others and not in `ledger_gib`: `activation_gib`, `non_torch_gib`, `free_after`."""
    found: dict[str, float] = {}
    for alias, name in LEDGER_NAMES.items():
        stem = alias.removesuffix("_gib")
        fields = [f"{stem}_gib", f"{stem}_gb", f"{stem}_mib"]
        if stem not in ("model", "weights", "total", "free", "graphs", "activation", "activations"):
            fields.append(stem)
        for field_name in fields:
            if values.get(field_name) not in (None, "", 0) and name not in found:
                number = read_number(values[field_name], where, row, field_name)
                found[name] = number / 1024 if field_name.endswith("_mib") else number
    return found


def fill_kv_gib(numbers: dict[str, float], values: Mapping[str, Any], where: object, row: int) -> bool:
    """Fill in `kv_gib` from `kv_mib` or `kv_gb`; True where the unit of the latter stays open (see `check_line`)."""
    if "kv_gib" in numbers:
        return False
    halves = [values.get(name) for name in ("K_gib", "V_gib")]  # SGLang prints the two apart
    if all(half not in (None, "") for half in halves):
        numbers["kv_gib"] = sum(read_number(half, where, row, "K_gib") for half in halves)
    elif "kv_mib" in numbers and "n_ctx" not in numbers:
        numbers["kv_gib"] = numbers["kv_mib"] / 1024
    elif values.get("kv_gb") not in (None, ""):
        numbers["kv_gib"] = read_number(values["kv_gb"], where, row, "kv_gb")
        return not re.search("decimal|GiB|10\\^9|1e9", str(values["kv_gb"]))
    return False


def read_max_model_len(values: Mapping[str, Any], text: str, where: object, row: int) -> int | None:
    """In tokens: the field, else "max_model_len 4096" in the model's text."""
    value = values.get("max_model_len")
    if value is None:
        found = re.search(r"max[ _-]?(?:model[ _-]?)?len\D{0,3}(\d+)", text)
        return int(found[1]) if found else None
    if isinstance(value, str):
        return read_length(value)
    return int(read_number(value, where, row, "max_model_len"))


def fill_from_result(values: dict[str, Any]) -> None:
    """vLLM's sentences carry their numbers; a field of the line itself comes first."""
    text = str(values.get("result", ""))
    for pattern, name in RESULT_NUMBERS:
        if (found := re.search(pattern, text, re.IGNORECASE)) and values.get(name) is None:
            values[name] = float(found[1]) if "." in found[1] else int(found[1])
