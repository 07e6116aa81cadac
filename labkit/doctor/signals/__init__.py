"""Numbers that rules look at, by name. Every module of this package puts its own into the table `SIGNALS`."""

from __future__ import annotations

from labkit.doctor.signals import memory, queue, rest
from labkit.doctor.signals.core import FELT_S, SIGNALS, Signal, SignalInfo, Signals, felt

__all__ = ["FELT_S", "SIGNALS", "Signal", "SignalInfo", "Signals", "felt", "memory", "queue", "rest"]
