"""A fleet as queried from outside: the driver's socket and HTTP answer for all members.

The driver queries the members for what it does not know (single records, partitions' offset maps).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perkey.observe.asking import Source
from perkey.observe.orders import Answer, Order, order_of

if TYPE_CHECKING:
    from perkey.spark.fleet.roster import Roster


class FleetSource:
    """All members as one source."""

    def __init__(
        self, snapshot: Callable[[], dict[str, Any]], fleet: Roster, stop: Callable[..., None]
    ) -> None:
        """`snapshot` is the fleet's, merged; `stop` ends all of it."""
        self.snapshot = self.measures = self.report = snapshot
        self._fleet, self._stop = fleet, stop

    def members(self) -> list[dict[str, Any]]:
        """Each member; those without a connection have `silent_s`."""
        return self._fleet.members()

    sums = members  # they are available at no cost

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """One partition's offset map and worst records, from its owner."""
        asked = {"ask": "picture", "topic": topic, "partition": partition}
        drawn = (answer for answer in self._fleet.ask(asked).values() if answer is not None)
        return next(drawn, None)

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """The place of one record, from the owner of its partition."""
        where = {"topic": topic, "partition": partition, "offset": offset}
        for name, answer in self._fleet.ask({"ask": "find", **where}).items():
            if answer is not None and answer["place"] != "elsewhere":
                return {**answer, "member": name}
        return {**where, "place": "elsewhere"}

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """The places of the first records of one key, in all members."""
        asked = {"ask": "find_key", "key": base64.b64encode(key).decode(), "topic": topic}
        answer = self._fleet.ask(asked).items()
        return [{**row, "member": name} for name, rows in answer for row in rows or ()]

    def control(self, order: Order) -> list[Answer]:
        """Pass a command to each member; returns the answers. The driver handles a stop."""
        dry = replace(order, dry_run=True) if order.action == "stop" else order
        asked = {"ask": "control", "topic": None, "order": dry.row()}
        rows = [row for rows in self._fleet.ask(asked).values() for row in rows or ()]
        if order.action == "stop" and not order.dry_run:
            self._stop(order.mode)
            return [Answer(row["member"], "done", f"stopping, mode {order.mode}") for row in rows]
        return [Answer(**row) for row in rows]

    def commands(self) -> list[dict[str, Any]]:
        """The commands in force in each member, and the last ones."""
        answers = self._fleet.ask({"ask": "commands", "topic": None}).values()
        return [row for rows in answers for row in rows or ()]

    def live(self) -> tuple[bool, str]:
        """True if the driver answers; Spark restarts dead members."""
        state = self.snapshot()["state"]
        return state != "failed", state

    def ready(self) -> tuple[bool, str]:
        """True if some member has partitions, and no stop was requested."""
        shot = self.snapshot()
        if shot["state"] == "running" and shot["partitions"]:
            return True, "ok"
        return False, f"the fleet is {shot['state']}, with {len(shot['partitions'])} partitions"


def answered(source: Source, question: Mapping[str, Any]) -> Any:
    """A member's answer to the driver's query; None if it is unknown."""
    what, topic = question["ask"], question["topic"]
    if what == "find_key":
        return source.find_key(base64.b64decode(question["key"]), topic)
    if what == "control":
        return [one.row() for one in source.control(order_of(question["order"]))]
    if what == "commands":
        return source.commands()
    where = topic, int(question["partition"])
    if what == "picture":
        return source.picture(*where)
    return source.find(*where, int(question["offset"])) if what == "find" else None
