"""The app as its run sees it, and the app of a handler function."""

from __future__ import annotations

from typing import Any, Protocol

from weft.app_options import AppOptions
from weft.options import HandlerOptions


class Hosted(Protocol):
    """What a run uses of its app."""

    #: the value of the lifespan while the app runs
    state: Any

    @property
    def options(self) -> AppOptions:
        """The app's own options."""

    @property
    def handlers(self) -> tuple[HandlerOptions, ...]:
        """Its handlers, in the order of their declaration."""


#: handler -> its app, for worker processes, which receive the function only
_OWNERS: dict[int, tuple[Any, Hosted]] = {}


def belongs(function: Any, app: Hosted) -> None:
    """Register the app as the `owner_of` this function."""
    _OWNERS[id(function)] = (function, app)


def owner_of(function: Any) -> Hosted | None:
    """The app that last decorated this function, in this process."""
    known = _OWNERS.get(id(function))
    return None if known is None else known[1]
