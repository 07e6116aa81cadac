"""Progress goes to a file of the test's own; the worker for Triton kernels ends with the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture(scope="session", autouse=True)
def _stop_worker() -> Iterator[None]:
    yield
    from labkit.teach.triton_worker import WORKER

    WORKER.stop()
