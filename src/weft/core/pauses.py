"""Pauses by the app, and pauses and settings by command that are in force."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from weft.core.events import AS_DECLARED, Steering

if TYPE_CHECKING:
    from weft.core.handler import Handler
    from weft.core.partition import Partition


class Pauses:
    """They also apply to later epochs."""

    def __init__(self) -> None:
        #: the app paused all topics; and topics for which it has since requested the opposite
        self._all = False
        self._toggled: set[str] = set()
        #: in force by command
        self.steering = Steering()

    def by_app(self, topic: str | None, *, on: bool) -> None:
        """The app pauses or resumes a topic, or all."""
        if topic is None:
            self._all = on
            self._toggled.clear()
        elif on == self._all:
            self._toggled.discard(topic)
        else:
            self._toggled.add(topic)

    def by_command(self, steering: Steering, handlers: Iterable[Handler]) -> None:
        """All commands in force from now on; the same again changes nothing."""
        self.steering = steering
        for handler in handlers:
            handler.tune(steering.tunings.get(handler.index, AS_DECLARED))

    @property
    def topics(self) -> set[str | None]:
        """The topics that the app paused; None means all (except those resumed since)."""
        return {None} if self._all else set(self._toggled)

    def apply(self, partition: Partition) -> None:
        """Pause or resume the partition accordingly."""
        topic, handler = partition.topic, partition.handler
        by_command = any(one.holds(topic, handler.index) for one in self.steering.pauses)
        partition.pause(user=self._all != (topic in self._toggled), command=by_command)
        handler.enlist(partition)
