"""Points at which a test can end a member as if by kill -9.

A dead member is disconnected: its requests are lost, and the group has removed it. Its handlers
cannot be killed in a process that continues, so those that reach a crash point are blocked there,
and the results of others are dropped. The run ends with exit code 1 and the point's name.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

from perkey.errors import ConfigError

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
    """The crash that a test has requested."""

    def __init__(self, point: CrashPoint, nth: int) -> None:
        if point not in POINTS:
            raise ConfigError(f"crash_at({point!r}): choose one of {', '.join(POINTS)}")
        if nth < 1:
            raise ConfigError(f"crash_at(nth={nth!r}): give 1 or more")
        self.point = point
        self.left = nth

    def strikes(self, point: CrashPoint) -> bool:
        """A member has reached this point; returns whether it dies there."""
        if point != self.point:
            return False
        self.left -= 1
        return self.left == 0


class Mortal(Protocol):
    """A client that can die at a crash point."""

    @property
    def dead(self) -> str:
        """The point where it died; empty while it is alive."""

    def reach(self, point: CrashPoint) -> bool:
        """Reach a point; True if dead, now or since before."""

    def hold(self) -> None:
        """Block this thread of a dead member until the test is over, then raise Crashed."""


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
