"""The calls of one handler with a budget: what they report of their costs goes to the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from weft.charging import CHARGE, Charge
from weft.core.events import Charged
from weft.runtime.door import Door
from weft.types import Record


class Charges:
    """Makes `record.charge` work in a handler."""

    #: set before the first call
    door: Door

    def __init__(self, handler: int) -> None:
        """`handler`: its index."""
        self._handler = handler

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The handler; what it sets stays in the context of its call."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def charged(record: Any, *more: Any) -> Any:
                CHARGE.set(Charge(self.report))
                return await function(record, *more)

            return charged

        @wraps(function)
        def called(record: Any, *more: Any) -> Any:
            CHARGE.set(Charge(self.report))
            return function(record, *more)

        return called

    def report(self, record: Record[Any], cost: float, before: float | None) -> None:
        """A call of this record costs so much; any thread."""
        one = Charged(self._handler, record.topic, record.partition, record.offset, cost, before)
        self.door.post(lambda engine, now: engine.charged(now, [one]))
