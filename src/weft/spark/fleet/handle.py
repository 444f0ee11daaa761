"""What `app.stop()`, `app.pause()` and the like do when a handler calls them inside a member."""

from __future__ import annotations

from typing import Any, Protocol

from weft.app_options import AppOptions
from weft.errors import ConfigError
from weft.runtime.hosted import Hosted
from weft.runtime.run.result_stream import ResultStream
from weft.runtime.run.run import Run
from weft.spark.fleet.link import Link
from weft.types import RunReport, StopMode


class MemberApp(Hosted, Protocol):
    """The app inside a member."""

    def adopt(self, run: Any, options: AppOptions) -> None:
        """Be run by this member, with these options."""


class MemberHandle:
    """The run of one member: it speaks for itself, and asks the driver for what concerns all."""

    def __init__(self, run: Run, link: Link) -> None:
        self._run, self._link = run, link

    @property
    def over(self) -> bool:
        """The member has ended."""
        return self._run.over

    def start(self) -> None:
        """A member is started by its task."""
        raise ConfigError("the app runs already, as a member of a fleet")

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end of this member."""
        return self._run.wait(timeout_s)

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the whole fleet."""
        if not self._link.send({"type": "ask", "what": "stop", "mode": mode}):
            self._run.stop(mode)

    def pause(self, topic: str | None) -> None:
        """Pause on all members."""
        self._link.send({"type": "ask", "what": "pause", "topic": topic})

    def resume(self, topic: str | None) -> None:
        """Resume on all members."""
        self._link.send({"type": "ask", "what": "resume", "topic": topic})

    def snapshot(self) -> dict[str, Any]:
        """The current state of this member."""
        return self._run.snapshot()

    def open_results(self) -> ResultStream:
        """Results are the driver's."""
        raise ConfigError("app.results() is read on the driver of a fleet, not in a member")

    def install_signals(self) -> None:
        """Signals are the task's."""

    def restore_signals(self) -> None:
        """Signals are the task's."""
