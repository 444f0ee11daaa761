"""The pauses and settings by command that are in force: one desired state, which the engine gets.

Pure. The engine gets all of it each time (`Engine.steer`). So a command that comes twice changes
nothing twice, and one that expires is simply missing in the next state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perkey.core.events import Pause, Steering, Tuning
from perkey.errors import ConfigError
from perkey.observe.orders import SETTINGS, Order, what

#: commands in force in one member; each comes from a person
IN_FORCE_MAX = 1_000
#: cause -> the setting that can bring it about
SETTING_OF = {"rate_limit": "rate_limit_per_s", "slots": "concurrency"}


class InForce(NamedTuple):
    """A command that is in force until a time."""

    order: Order
    until: float

    def row(self) -> dict[str, Any]:
        """JSON-able."""
        return {**self.order.row(), "until": round(self.until, 3)}

    @property
    def subject(self) -> tuple[object, ...]:
        """The later one of two commands with the same subject counts."""
        order = self.order
        return order.action, order.topic, order.handler, frozenset(order.settings)


class Desired:
    """The commands in force, oldest first. Every change replaces the tuple: it is read any time."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names`: of the handlers, in order."""
        self._names = list(names)
        self.commands: tuple[InForce, ...] = ()

    def put(self, order: Order, until: float) -> None:
        """In force until then, in place of an earlier one of the same; ConfigError for too many."""
        new = InForce(order, until)
        others = tuple(command for command in self.commands if command.subject != new.subject)
        if len(others) == len(self.commands) >= IN_FORCE_MAX:
            raise ConfigError(f"{IN_FORCE_MAX:,} commands are in force: end some of them first")
        self.commands = (*others, new)

    def resumed_by(self, order: Order) -> tuple[list[InForce], str]:
        """The pauses that a resume ends, and in words those that it leaves."""
        whole = order.topic is None and order.handler is None
        target = (order.topic, order.handler)
        paused = [command for command in self.commands if command.order.action == "pause"]
        ended = [o for o in paused if whole or (o.order.topic, o.order.handler) == target]
        return ended, ", ".join(what(command.order) for command in paused if command not in ended)

    def end(self, ended: Sequence[InForce]) -> None:
        """End these commands."""
        self.commands = tuple(command for command in self.commands if command not in ended)

    def over(self, now: float) -> list[InForce]:
        """Those whose time is over."""
        return [command for command in self.commands if command.until <= now]

    def steering(self) -> Steering:
        """All of it for the engine; of two settings of a handler the later one counts."""
        pauses, settings = [], dict[int, dict[str, Any]]()
        for order, until in self.commands:
            index = None if order.handler is None else self._names.index(order.handler)
            if order.action == "pause":
                pauses.append(Pause(order.topic, index, round(until, 3), order.reason))
                continue
            for handler in range(len(self._names)) if index is None else [index]:
                settings.setdefault(handler, {}).update(order.settings)
        return Steering(tuple(pauses), {index: Tuning(**set_) for index, set_ in settings.items()})

    def behind(self, halt: Mapping[str, Any]) -> dict[str, Any]:
        """Fields with the command whose setting brings this cause about; empty if none does."""
        name, fields = SETTING_OF.get(halt["cause"], ""), dict[str, Any]()
        for order, until in self.commands:
            if name not in order.settings or order.handler not in (None, halt.get("handler")):
                continue
            whole = "all" if order.handler is None else "handler"
            fields = {} if order.settings[name] is None else {
                "value": settings_text(order.settings, " "), "until": round(until, 3),
                "reason": order.reason, "why": whole,
            }  # fmt: skip
        return fields


def settings_text(
    settings: Mapping[str, float | None], between: str, declared: str = "default"
) -> str:
    """`NAME=VALUE` of each setting."""
    return between.join(
        f"{name}={declared if value is None else f'{value:g}'}" for name, value in settings.items()
    )


assert set(SETTINGS) == set(Tuning._fields)  # every setting exists in the core
