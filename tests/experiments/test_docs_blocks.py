"""The first Python block of docs/player.md and docs/sweeps.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["player.md", "sweeps.md"])
def test_the_first_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)[0]
    namespace = {"__name__": "docs"}
    exec(compile(block, page, "exec"), namespace)
    if page == "player.md":
        assert (tmp_path / "run.html").stat().st_size > 10_000
    else:
        assert list(namespace["frame"].columns) == ["gpu", "max_model_len", "num_tokens", "concurrency"]
        assert len(namespace["frame"]) == 4
