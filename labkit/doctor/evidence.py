"""What an operator has, in one frame: everything the loaders found, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.doctor.oom import OomVerdict

if TYPE_CHECKING:
    from labkit.doctor.recorded import RecordedRun


@dataclass(frozen=True, slots=True)
class HeadWait:
    """A log line: the head of the queue waits. Tokens."""

    time_s: float
    request_id: str
    limit: str
    needed: int
    free: int
    evictable: int
    largest_free: int


@dataclass(frozen=True, slots=True)
class CardReading:
    """One line of nvidia-smi. `process_bytes` are the processes it lists (text form only)."""

    time_s: float | None
    index: int
    used_bytes: float
    total_bytes: float
    process_bytes: tuple[float, ...] = ()


@dataclass
class Evidence:
    """`series` is a pandas DataFrame with one row an instant (columns of `labkit.observe.scrape`, times from 0), `memory`
    one with rows of torch.cuda.memory_stats; None where nothing of that sort was given.

    `settings` are facts of the server that its log printed: `weights_bytes`, `kv_bytes`, `kv_tokens`, `workspace_bytes`,
    `weight_bits`, `kv_bits`, `max_num_seqs`, ... `damaged` says, one sentence each, what could not be read.
    """

    series: Any = None
    memory: Any = None
    settings: dict[str, float] = field(default_factory=dict)
    waits: list[HeadWait] = field(default_factory=list)
    cards: list[CardReading] = field(default_factory=list)
    ooms: list[OomVerdict] = field(default_factory=list)
    run: RecordedRun | None = None
    sources: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    #: seconds of the series' first row on its own clock, to bring logs to the same zero
    origin_s: float | None = None

    def since_start(self, time_s: float | None) -> float | None:
        """An absolute time on the series' clock."""
        return None if time_s is None or self.origin_s is None else time_s - self.origin_s
