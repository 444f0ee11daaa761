"""The interface of an app to its run: in this process, on Spark, or in a member."""

from __future__ import annotations

from typing import Any, Protocol

from weft.runtime.run.result_stream import ResultStream
from weft.types import RunReport, StopMode


class RunHandle(Protocol):
    """The handle of a run: `app.start()` returns one."""

    @property
    def over(self) -> bool:
        """The run has ended."""

    def start(self) -> None:
        """Begin; returns once it runs."""

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end and its report; TimeoutError when it did not come in time."""

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run."""

    def pause(self, topic: str | None) -> None:
        """Start no records of this topic, or of any."""

    def resume(self, topic: str | None) -> None:
        """Start records of this topic again, or of all."""

    def snapshot(self) -> dict[str, Any]:
        """The current state as JSON-able data."""

    def open_results(self) -> ResultStream:
        """The results from now on, for one reader."""

    def install_signals(self) -> None:
        """Have SIGINT and SIGTERM stop the run; nothing off the main thread."""

    def restore_signals(self) -> None:
        """Put the handlers of before back."""
