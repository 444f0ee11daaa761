"""How many partitions each handler's topics have: a member's share of a budget is based on it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from perkey.errors import ConfigError
from perkey.kafka.ports import AdminPort, KafkaUnavailable, LoginRefused
from perkey.routing import Routes
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member.member import Member
from perkey.types import TopicPartition

ANSWER_S = 5.0
#: a pattern may match new topics without an assignment to this member
AGAIN_S = 60.0
#: delay after no broker has answered
SOON_S = 2.0


class Shares:
    """Queries once per assignment; only if a handler has a budget."""

    def __init__(self, routes: Routes, plans: Sequence[HandlerPlan]) -> None:
        self._routes = routes
        self._handlers = range(len(plans))
        self._needed = any(plan.spec.budget is not None for plan in plans)
        #: the member's partitions at the last query
        self._of: set[TopicPartition] | None = None
        self._due = 0.0

    def begin(self, member: Member, admin: AdminPort) -> None:
        """Before the member owns anything: nothing starts until the counts are known."""
        if self._needed:
            unknown: dict[int, int | None] = dict.fromkeys(self._handlers)
            member.door.call(lambda engine, now: engine.totals_known(now, unknown))
            self.look(member, admin)

    def look(self, member: Member, admin: AdminPort | None) -> None:
        """Called often on the watching thread; may wait for a broker."""
        if not self._needed or admin is None:
            return
        held, now = set(member.partitions), time.monotonic()
        if held == self._of and now < self._due:
            return
        self._of, self._due = held, now + AGAIN_S
        try:
            routes = self._routes
            matching = admin.matching(routes.patterns, ANSWER_S) if routes.patterns else []
            described = admin.describe(sorted({*routes.literal, *matching}), ANSWER_S)
            totals: dict[int, int | None] = dict.fromkeys(self._handlers, 0)
            for topic, facts in described.items():
                try:
                    handler = routes.handler_of(topic)
                except ConfigError:  # two patterns match: the member ends because of it
                    continue
                totals[handler] = (totals[handler] or 0) + facts.partitions
        except (KafkaUnavailable, LoginRefused):
            self._due = now + SOON_S  # until then the last counts hold
            return
        member.door.post(lambda engine, now: engine.totals_known(now, totals))
