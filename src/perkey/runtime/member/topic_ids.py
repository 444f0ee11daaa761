"""Detect recreated topics: a topic deleted and recreated under its name is another topic.

librdkafka continues at its position, and the committed offsets may be of the old topic: both would
skip records of the new one. So the ids are checked every few seconds. If one has changed, the
epochs of its partitions are lost, and they restart at the log's start unless a commit for the new
topic exists. Those of a deleted topic are lost, too, and wait until it exists again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from perkey.core.commits import Found
from perkey.core.partition import Partition
from perkey.kafka.ports import KafkaUnavailable, LoginRefused
from perkey.runtime.logs import event
from perkey.runtime.member.group_membership import GroupMembership, Reread
from perkey.types import TopicPartition

LOOK_EVERY_S = 2.0
#: checks in a row that do not find the topic: a broker's metadata may be a moment old
MISSED_MAX = 3
REFRESH_S = 5.0

Ask = Callable[[Sequence[str]], Mapping[str, str]]


class TopicIds:
    """The topic ids that the epochs of one member belong to."""

    def __init__(self, ask: Ask, on_unsure: Callable[[str], None] = lambda _: None) -> None:
        """`ask`: topics -> their current ids.

        `on_unsure` is called for each topic whose id may have changed: a caller with a cached id
        drops it. It is called after the epochs of the former topic are closed and before one of the
        new topic starts.
        """
        self._ask = ask
        self._on_unsure = on_unsure
        #: open epochs -> the id of the topic they belong to, once known
        self._ids: dict[TopicPartition, str] = {}
        #: revoked partitions -> the id of their topic then, and what may be committed for it
        self._left: dict[TopicPartition, tuple[str, list[range]]] = {}
        #: consumed topics that do not exist -> number of checks in a row
        self._missed: dict[str, int] = {}
        #: consumed topics that were deleted, until they can be read again; any thread
        self.gone: frozenset[str] = frozenset()
        self._asking = threading.Lock()
        self._due = 0.0

    def look(self, membership: GroupMembership, reread: Reread) -> None:
        """Check whether a consumed topic was recreated; on the watching thread, now and then.

        `reread`, on the polling thread, restarts partitions.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_EVERY_S
        topics = sorted({topic for topic, _ in list(membership.partitions)})
        ids = self._now(topics)
        if ids is None:
            return
        # Logged once that a topic was deleted: librdkafka waits for it silently.
        self._missed = {
            topic: self._missed.get(topic, 0) + 1 for topic in topics if topic not in ids
        }
        for topic, looks in self._missed.items():
            if looks == MISSED_MAX:
                self.gone |= {topic}
                event(
                    "warning",
                    "topic no longer exists",
                    topic=topic,
                    next="recreate it with `perkey topics create`, or stop consuming it",
                )
            if looks >= MISSED_MAX:
                membership.on_poll_thread(partial(self._gone, membership, reread, topic))
        for topic, fresh_id in ids.items():
            held = [where for where in list(membership.partitions) if where[0] == topic]
            if any(where not in self._ids for where in held):
                # What was looked up before the id was known may be of a former topic.
                self._on_unsure(topic)
            if any(self._ids.setdefault(where, fresh_id) != fresh_id for where in held):
                membership.on_poll_thread(partial(self._again, membership, reread, topic, fresh_id))

    def _again(
        self, membership: GroupMembership, reread: Reread, topic: str, fresh_id: str
    ) -> None:
        """On the polling thread: restart the partitions of a former topic."""
        held = [where for where in membership.partitions if where[0] == topic]
        where = [place for place in held if self._ids.get(place, fresh_id) != fresh_id]
        if not where:
            return
        membership.consumer.pause(where)
        reread(where)  # closes them under the former id
        self._on_unsure(topic)

        def look_up() -> None:
            """It may have fewer partitions: the group assigns the others until it knows."""
            with suppress(KafkaUnavailable):  # librdkafka looks by itself, every five minutes
                membership.consumer.refresh((), REFRESH_S)

        membership.background(look_up)

    def _gone(self, membership: GroupMembership, reread: Reread, topic: str) -> None:
        """On the polling thread: end the epochs of a deleted topic that would hold up others.

        The brokers refuse its commits: what waits for one keeps its slot, a transaction with its
        offsets is aborted, and in a plain commit its error is that of all other partitions. Calls
        that run at least once end first.
        """
        where = [
            partition.where
            for partition in membership.partitions.values()
            if partition.topic == topic
            and (
                partition.claiming
                or partition.handler.exact
                or not (partition.in_flight or partition.sending)
            )
        ]
        if where:
            membership.consumer.pause(where)
            reread(where)

    def closed(self, partitions: Iterable[Partition]) -> None:
        """These epochs have ended: remember their committed offsets and topic ids."""
        for partition in partitions:
            known = self._ids.pop(partition.where, None)
            if known is not None:
                self._left[partition.where] = known, partition.committed_or_sent()

    def fresh(self, found: Mapping[TopicPartition, Found]) -> dict[TopicPartition, Found]:
        """On the polling thread: the same without commits for former topics."""
        self._due = 0.0  # The ids of newly assigned topics are needed soon.
        self.gone -= {topic for topic, _ in found}
        former = {where: self._left[where] for where in found if where in self._left}
        ids = self._now(sorted({topic for topic, _ in former})) or {}
        for topic in {topic for topic, _ in found}:
            self._on_unsure(topic)
        result, again = dict(found), dict[str, str]()
        for where, (known, committed) in former.items():
            start, present = found[where], ids.get(where[0])
            if present is not None:
                self._ids[where] = present
            if present is None or present == known:
                continue
            again[where[0]] = present
            if start.committed is not None and any(
                start.committed in offsets for offsets in committed
            ):
                # Also with "latest": the new topic's records came while the group was subscribed.
                result[where] = replace(
                    start, committed=None, metadata="", reset_to=start.log_start
                )
        for topic, present in again.items():  # also if the group noticed it before this check
            event("warning", "topic was recreated", topic=topic, topic_id=present)
        return result

    def _now(self, topics: Sequence[str]) -> Mapping[str, str] | None:
        """The ids of existing topics; None if no broker answers: repeated later.

        A refused login is no answer either: the client's own refusals end the run after 30 s.
        """
        if not topics:
            return {}
        try:
            with self._asking:
                return self._ask(topics)
        except (KafkaUnavailable, LoginRefused):
            return None
