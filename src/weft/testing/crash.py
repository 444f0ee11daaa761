"""Points at which a test can end a member as if by kill -9.

A dead member is disconnected: its requests are lost, and the group has removed it
out. Its handlers cannot be killed in a process that lives on, so those that come to a crash point
are held there, and the others finish unheard. The run ends with exit code 1 and the point's name.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

from weft.errors import ConfigError

CrashPoint = Literal[
    "assigned",
    "before_handler",
    "after_handler",
    "before_output",
    "output_stored",
    "before_commit",
    "commit_stored",
    "revoked",
]
POINTS: tuple[str, ...] = get_args(CrashPoint)


class Crashed(Exception):
    """The member was killed at a crash point; ends its polling thread."""


class Armed:
    """The crash that a test has asked for."""

    def __init__(self, point: CrashPoint, nth: int) -> None:
        if point not in POINTS:
            raise ConfigError(f"crash_at({point!r}): choose one of {', '.join(POINTS)}")
        if nth < 1:
            raise ConfigError(f"crash_at(nth={nth!r}): give 1 or more")
        self.point = point
        self.left = nth

    def strikes(self, point: CrashPoint) -> bool:
        """A member has come to this point; whether it dies there."""
        if point != self.point:
            return False
        self.left -= 1
        return self.left == 0


class Mortal(Protocol):
    """Whatever can be at a crash point."""

    @property
    def dead(self) -> str:
        """Where it died; empty while it lives."""

    def reach(self, point: CrashPoint) -> bool:
        """Come to a point; True when dead, now or since before."""

    def hold(self) -> None:
        """Keep this thread of a dead member until the test is over, and raise Crashed then."""


def around(handler: Callable[..., Any], mortal: Mortal) -> Callable[..., Any]:
    """The handler with a crash point before and one after it."""
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    if inspect.iscoroutinefunction(called):

        async def crash_async(*arguments: Any) -> Any:
            if mortal.reach("before_handler"):
                await asyncio.Event().wait()
            returned = await handler(*arguments)
            if mortal.reach("after_handler"):
                await asyncio.Event().wait()
            return returned

        return crash_async

    def crash(*arguments: Any) -> Any:
        if mortal.reach("before_handler"):
            mortal.hold()
        returned = handler(*arguments)
        if mortal.reach("after_handler"):
            mortal.hold()
        return returned

    return crash
