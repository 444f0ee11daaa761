"""A topic that is deleted and made again under its name is another topic.

librdkafka goes on at the position it had, and the offsets a group has committed may be of the old
topic: both would skip records of the new one. So the ids are looked at every few seconds. Where
one has changed, the epochs of its partitions are lost, and they begin anew at the log's start
unless somebody has committed for the new topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.core.partition import Partition
from weft.core.starting import Found
from weft.kafka.ports import KafkaUnavailable, TopicPartition
from weft.runtime.logs import event

if TYPE_CHECKING:
    from weft.runtime.member import Member

_log = logging.getLogger("weft")

LOOK_EVERY_S = 2.0

Ask = Callable[[Sequence[str]], Mapping[str, str]]


class TopicIds:
    """The ids that the epochs of one member belong to."""

    def __init__(self, ask: Ask, on_again: Callable[[str], None] = lambda _: None) -> None:
        """`ask`: topics -> their ids now; `on_again` is told of each topic that was made again."""
        self._ask = ask
        self._on_again = on_again
        self._known: dict[str, str] = {}
        #: partitions we had -> the id of their topic then, and what we had committed
        self._left: dict[TopicPartition, tuple[str, set[int]]] = {}
        self._asking = threading.Lock()
        self._due = 0.0

    def look(self, member: Member) -> None:
        """Look whether a topic of ours was made again; on the watching thread, now and then."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_EVERY_S
        for topic, found in self._now(sorted({topic for topic, _ in list(member.partitions)})):
            if self._known.setdefault(topic, found) != found:
                member.on_poll_thread(
                    lambda topic=topic, found=found: self._again(member, topic, found)  # type: ignore[misc]  # bound at once, not when it is called
                )

    def _again(self, member: Member, topic: str, found: str) -> None:
        """On the polling thread: nothing that is held belongs to the topic there is now."""
        if self._known.get(topic) == found:
            return
        event(_log, "warning", "topic made again", topic=topic, topic_id=found)
        where = [one for one in member.partitions if one[0] == topic]
        self._on_again(topic)
        member.consumer.pause(where)
        member.reread(where)  # closes them under the former id
        self._known[topic] = found

    def closed(self, partitions: Iterable[Partition]) -> None:
        """These epochs have ended: remember what they had committed for which topic."""
        for partition in partitions:
            known = self._known.get(partition.topic)
            if known is not None:
                committed = {partition.committed}
                if partition.sent_plan is not None:
                    committed.add(partition.sent_plan.frontier)
                self._left[partition.topic, partition.number] = known, committed

    def fresh(self, found: Mapping[TopicPartition, Found]) -> dict[TopicPartition, Found]:
        """On the polling thread: the same without what we had committed for former topics."""
        self._due = 0.0  # The id of what is being assigned is to be known soon.
        former = {where: self._left[where] for where in found if where in self._left}
        ids = dict(self._now(sorted({topic for topic, _ in former})))
        result = dict(found)
        for where, (known, committed) in former.items():
            one, present = found[where], ids.get(where[0])
            if present is None or present == known:
                continue
            self._known[where[0]] = present
            if one.committed in committed:
                # "latest" too: whatever the new topic holds came while the group was subscribed.
                result[where] = replace(one, committed=None, metadata="", reset_to=one.log_start)
        return result

    def _now(self, topics: Sequence[str]) -> list[tuple[str, str]]:
        if not topics:
            return []
        try:
            with self._asking:
                return list(self._ask(topics).items())
        except KafkaUnavailable:
            return []  # asked again later
