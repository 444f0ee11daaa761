"""The user's callbacks of a fleet: members report, the driver calls; results are refused.

A result would cross the network a second time for a single reader, so results go to a topic
(`output=`) or a table (`sink=`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perkey.errors import ConfigError
from perkey.runtime.member.group_membership import Callbacks
from perkey.types import Committed

if TYPE_CHECKING:
    from perkey.app_options import AppOptions
    from perkey.runtime.run.result_stream import ResultStream

#: callbacks that members report; `on_error` is called in the members
REPORTED = ("on_commit", "on_assign", "on_revoke")
_END_S = 1.0


def no_results(what: str) -> ConfigError:
    """The error for `what`, which reads results."""
    return ConfigError(
        f'{what} cannot be used with engine="spark": results go to a topic (output=) or a table '
        "(sink=)"
    )


def refuse_results(options: AppOptions, stream: ResultStream | None) -> None:
    """Raise ConfigError if the app has a reader of results; `stream`: the one that waits."""
    if options.on_result is not None:
        raise no_results("App(on_result=...)")
    if stream is not None and not stream.closed:
        raise no_results("app.results()")


class FleetCallbacks:
    """Calls the user's callbacks in order, on a separate thread."""

    def __init__(self, options: AppOptions) -> None:
        self._options = options
        self._callbacks = Callbacks()

    def wanted(self) -> list[str]:
        """The callbacks that the app has."""
        return [name for name in REPORTED if getattr(self._options, name) is not None]

    def event(self, name: str, items: list[Any]) -> None:
        """A member reports what a callback is to be called with."""
        if name not in REPORTED:
            return
        values: list[Any]
        if name == "on_commit":
            values = [Committed(*item) for item in items]
        else:
            values = [(topic, number) for topic, number in items]
        self._callbacks.call(getattr(self._options, name), values)

    def end(self) -> None:
        """No member reports any more."""
        self._callbacks.close(_END_S)
