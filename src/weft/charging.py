"""The cost that a call reports: `record.charge(n)`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeGuard

from weft.errors import ConfigError
from weft.numeric import is_seconds

#: limit for one record, by `Budget.cost` or `record.charge`
COST_MAX = 1e9
#: takes the record, the cost of its call, and the cost that the call reported before
Report = Callable[[Any, float, float | None], None]


class Charge:
    """The cost that one call has reported."""

    __slots__ = ("_before", "_report")

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: float | None = None

    def of(self, record: Any, cost: object) -> None:
        """See `Record.charge`."""
        if not is_cost(cost):
            raise ConfigError(
                f"record.charge({cost!r:.40}): give what the call costs in all, a number from 0 to "
                f"{COST_MAX:.0f}"
            )
        before, self._before = self._before, float(cost)
        self._report(record, self._before, before)


#: set in a call of a handler with a budget
CHARGE: ContextVar[Charge | None] = ContextVar("weft_charge", default=None)


def is_cost(value: object) -> TypeGuard[float]:
    """Whether it is a valid cost of a record."""
    return is_seconds(value) and value <= COST_MAX


def charge(record: Any, cost: object) -> None:
    """See `Record.charge`."""
    call = CHARGE.get()
    if call is None:
        raise ConfigError(
            "record.charge(): no budget is charged here: give @app.consume(budget=...), and call "
            "it in the handler itself, not in a thread that it starts"
        )
    call.of(record, cost)
