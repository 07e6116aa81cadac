"""Why does everybody wait? One row a waiting request, for a notebook that schedules."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from labkit.serving.base import Scheduler
from labkit.serving.progress import waiting_ids

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "request_id",
    "limit",
    "num_needed_blocks",
    "num_free_blocks",
    "num_evictable_blocks",
    "can_ever_fit",
    "sentence",
)


def waiting_table(scheduler: Scheduler, max_rows: int = 10) -> pd.DataFrame:
    """The first `max_rows` of the queue; empty when nobody waits. Changes nothing."""
    import pandas as pd

    rows = [asdict(scheduler.why_waiting(request_id)) for request_id in waiting_ids(scheduler)[:max_rows]]
    return pd.DataFrame(rows, columns=list(COLUMNS))
