"""The Python blocks of docs/schedulers.md run, one after the other, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.serving.admission import ADMISSIONS
from labkit.serving.batching import BATCHINGS
from labkit.serving.order import ORDERS
from labkit.serving.pressure import PRESSURES

PAGE = Path(__file__).parents[2] / "docs" / "schedulers.md"


def test_code_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "docs"})


def test_every_part_is_named():
    text = PAGE.read_text(encoding="utf-8")
    for registry in (ORDERS, ADMISSIONS, BATCHINGS, PRESSURES):
        for name in registry:
            assert f"`{name}`" in text, name
