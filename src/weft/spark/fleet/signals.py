"""SIGINT and SIGTERM on the driver: they drain the members."""

from __future__ import annotations

import signal

from weft.runtime.signals import StopSignals


class FleetSignals(StopSignals):
    """As of a run in one process; but a SparkContext takes SIGINT for itself."""

    def reinstall(self) -> None:
        """Be in charge again: a new context's handler would kill the members."""
        for number in self._before:
            signal.signal(number, self._on_signal)
