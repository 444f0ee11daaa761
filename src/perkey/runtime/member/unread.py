"""Assigned partitions that are not read: report them, and find out where to continue.

A client may stop fetching a partition without an error, and knows the end of the log only from its
fetches. So the broker is queried for the end of each partition that is open, not paused, and has
not moved for a while. If records wait and none arrives, metadata is refreshed and the client seeks
to the current position of the partition.

A position may also be outside the log, after retention, DeleteRecords or a truncation
(`OutOfRange`). Records that were fetched are still handled and committed by this member. If only
the log's start has moved, the epoch continues there. If the log ends before the position, its
offsets mean other records now: when everything is handled, the partition restarts, and
`on_offset_lost` decides where.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from perkey.account.account import Unread
from perkey.core.commits import Found
from perkey.core.partition import Partition
from perkey.kafka.ports import KafkaUnavailable, Polled
from perkey.runtime.logs import event
from perkey.runtime.member.group_membership import GroupMembership, Reread
from perkey.runtime.member.member_config import MemberConfig
from perkey.runtime.member.rebalance import Waiting, names
from perkey.types import TopicPartition

LOOK_EVERY_S = 1.0
#: after this long without a record although the log grows, the fetch is restarted
STILL_S = 30.0
#: interval of queries for the end of the log
ASK_S = 20.0
#: how long an existing record may take to arrive
COMES_S = 10.0
#: while polls are full, a partition's records may wait this many times longer behind others
BUSY_TIMES = 10
ANSWER_S = 5.0
#: interval of queries to a leader that has not answered one
SILENT_ASK_S = 5.0
GROWS = "its log grows, and no record arrives"
SILENT = "its leader does not answer; what its log has is not known"


class Still(NamedTuple):
    """A partition that has not moved."""

    partition: Partition
    position: int
    since: float
    #: when the broker was queried for its end
    asked_at: float
    #: since when it is known that there is more to read
    ahead_since: float | None = None


class Watchdog:
    """Checks the partitions of one member. For the polling thread."""

    def __init__(
        self, membership: GroupMembership, paused: Callable[[], Collection[TopicPartition]]
    ) -> None:
        """`paused`: those that are not fetched on purpose, besides the engine's pauses."""
        self._membership = membership
        self._paused = paused
        self._still: dict[TopicPartition, Still] = {}
        self._look_at = 0.0
        #: when a poll may last have left records behind
        self._full_at = float("-inf")
        #: not fetched -> since when; replaced as a whole, any thread reads it
        self.stuck: dict[TopicPartition, float] = {}
        #: the leader has not answered two queries in a row -> since when; replaced as a whole
        self.silent: dict[TopicPartition, float] = {}
        self._unanswered: dict[TopicPartition, float] = {}
        #: ends of logs that the client does not know
        self.ends: dict[TopicPartition, int] = {}
        #: number of restarted fetches; any thread reads it
        self.refetched = 0

    def polled(self, polled: Polled, room: int) -> None:
        """Note a poll that was limited to `room` records."""
        if polled.batches and sum([len(batch.records) for batch in polled.batches]) >= room:
            self._full_at = self._membership.now()

    def tick(self, now: float) -> None:
        """Called often: query partitions that do not move, and restart fetches."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        self._note(now)
        times = BUSY_TIMES if now - self._full_at < COMES_S else 1
        stuck = {where for where, still in self._still.items() if is_stuck(still, now, times)}
        due = {
            where
            for where, still in self._still.items()
            if now - still.asked_at >= (SILENT_ASK_S if where in self._unanswered else ASK_S)
        } - stuck
        if stuck:
            for where in stuck:
                self._still[where] = self._still[where]._replace(asked_at=now, ahead_since=None)
            wanted = {where: self._still[where] for where in stuck}
            self._membership.background(partial(self._refresh, wanted))
        if due:
            for where in due:
                self._still[where] = self._still[where]._replace(asked_at=now)
            self._membership.background(partial(self._ask, sorted(due)))

    def _note(self, now: float) -> None:
        """Find the partitions that have not moved since the last check."""
        paused, before = self._paused(), self._still
        self._still = {}
        for where, still in self._membership.partitions.items():
            if still.gate.reasons or still.intake_paused or where in paused:
                continue
            was = before.get(where)
            moved = was is None or was.partition is not still or was.position != still.position
            if was is None or moved:
                self._answer([where])
                was = Still(still, still.position, now, now)
            self._still[where] = was
        self._answer(where for where in list(self._unanswered) if where not in self._still)
        still_s = {where: still.since for where, still in self._still.items()}
        kept = {w: since for w, since in self.stuck.items() if still_s.get(w, now) <= since}
        if len(kept) != len(self.stuck):
            self.stuck = kept
            self.ends = {where: end for where, end in self.ends.items() if where in kept}

    def _ask(self, where: Sequence[TopicPartition]) -> None:
        """On the background thread."""
        try:
            ends = self._membership.consumer.stable_ends(where, ANSWER_S)
        except KafkaUnavailable:
            ends = {}
        self._membership.on_poll_thread(partial(self._answered, where, ends))

    def _answer(self, where: Iterable[TopicPartition]) -> None:
        """The leaders of these partitions answer, or it no longer matters."""
        for place in where:
            self._unanswered.pop(place, None)
        if not self.silent.keys() <= self._unanswered.keys():
            self.silent = {w: at for w, at in self.silent.items() if w in self._unanswered}

    def _no_answer(self, where: Collection[TopicPartition]) -> None:
        now = self._membership.now()
        again = {w: self._unanswered[w] for w in where if w in self._unanswered}
        self._unanswered = {**dict.fromkeys(where, now), **self._unanswered}
        if fresh := sorted(again.keys() - self.silent.keys()):
            self.silent = {**self.silent, **again}
            event(
                "warning",
                "partitions are not read: their leaders do not answer",
                partitions=names(fresh),
                next="is the broker that leads them up?",
            )

    def _answered(
        self, asked: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> None:
        now = self._membership.now()
        self._answer(ends)
        self._no_answer([still for still in asked if still in self._still and still not in ends])
        for where, end in ends.items():
            still = self._still.get(where)
            if still is not None and end > still.position and still.ahead_since is None:
                self._still[where] = still._replace(ahead_since=now)
            if where in self.stuck:
                self.ends[where] = end

    def _refresh(self, wanted: Mapping[TopicPartition, Still]) -> None:
        """On the background thread: look up leaders and the ends of the logs."""
        consumer = self._membership.consumer
        try:
            consumer.refresh({topic for topic, _ in wanted}, ANSWER_S)
            ends = consumer.stable_ends(list(wanted), ANSWER_S)
        except KafkaUnavailable:
            return
        self._membership.on_poll_thread(partial(self._refetch, wanted, ends))

    def _refetch(
        self, wanted: Mapping[TopicPartition, Still], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Seek partitions that still do not move to their current position."""
        membership = self._membership
        self._note(membership.now())
        for where, asked in wanted.items():
            still = self._still.get(where)
            if still is None or (still.partition, still.since) != (asked.partition, asked.since):
                continue
            end = ends.get(where, still.position)
            if end <= still.position:
                continue
            membership.consumer.begin(where, still.position)
            self.refetched += 1
            self.stuck = {**self.stuck, where: still.since}
            self.ends[where] = end
            event(
                "warning",
                "partition was not fetched although its log grows: fetch restarted",
                topic=where[0],
                partition=where[1],
                seconds=round(membership.now() - still.since),
                position=still.position,
                log_end=end,
            )


def is_stuck(still: Still, now: float, times: int = 1) -> bool:
    """Whether there has been more to read for a while, and nothing came for `times` as long."""
    if still.ahead_since is None:
        return False
    return now - still.ahead_since >= COMES_S and now - still.since >= STILL_S * times


def unread(
    waiting: Mapping[TopicPartition, Waiting],
    stuck: Mapping[TopicPartition, float],
    silent: Mapping[TopicPartition, float],
    handler_of: Callable[[str], str],
) -> list[Unread]:
    """Every assigned partition that is not read, with its place."""
    return [
        Unread(*where, handler_of(where[0]), "start_unknown", partition.since, partition.reason)
        for where, partition in waiting.items()
    ] + [
        Unread(*where, handler_of(where[0]), "not_fetched", since, reason)
        for places, reason in ((stuck, GROWS), (silent, SILENT))
        for where, since in places.items()
        if places is stuck or where not in stuck
    ]


FIND_S = 5.0
AGAIN_S = 0.5


class OutOfRange:
    """The partitions that are not fetched until their position is known. For the polling thread."""

    def __init__(self, membership: GroupMembership, config: MemberConfig, reread: Reread) -> None:
        """`reread` restarts partitions."""
        self._membership = membership
        self._reread = reread
        self._config = config
        #: not to be looked up before this time
        self._later: dict[TopicPartition, tuple[Partition, float]] = {}
        #: truncated logs -> the epoch that ends, and its deadline
        self._ending: dict[TopicPartition, tuple[Partition, float]] = {}

    def held(self) -> set[TopicPartition]:
        """Partitions that are known to be out of range."""
        return {*self._later, *self._ending}

    def received(self, where: Sequence[TopicPartition]) -> None:
        """The consumer has stopped fetching these."""
        held = self._membership.partitions
        self._look({place: held[place] for place in where if place in held})

    def tick(self, now: float) -> None:
        """Called often."""
        if self._later:
            due = {where: p for where, (p, at) in self._later.items() if now >= at}
            for where in due:
                del self._later[where]
            self._look(due)
        for where, (partition, deadline) in list(self._ending.items()):
            busy = partition.in_flight or partition.sending or partition.retrying
            waits = busy or partition.claiming or partition.healthy > 0 or not partition.settled
            # Everything that can finish is committed; parked records remain.
            if now >= deadline or not waits:
                del self._ending[where]
                if self._ours(where, partition):
                    self._reread([where])

    def _look(self, wanted: Mapping[TopicPartition, Partition]) -> None:
        if wanted:
            self._membership.background(partial(self._find, wanted))

    def _find(self, wanted: Mapping[TopicPartition, Partition]) -> None:
        """On the background thread."""
        try:
            starts = self._membership.consumer.find(list(wanted), FIND_S)
        except Exception:  # of any kind: it is looked up again, or no longer fetched
            starts = {}
        self._membership.on_poll_thread(partial(self._proceed, wanted, starts))

    def _proceed(
        self, wanted: Mapping[TopicPartition, Partition], found: Mapping[TopicPartition, Found]
    ) -> None:
        now = self._membership.now()
        for where, partition in wanted.items():
            log = found.get(where)
            if not self._ours(where, partition):
                continue
            if log is None:
                self._later[where] = partition, now + AGAIN_S
            elif partition.position > log.log_end:
                event(
                    "warning",
                    "the log was truncated: records already read are finished first",
                    topic=where[0],
                    partition=where[1],
                    position=partition.position,
                    log_end=log.log_end,
                )
                self._ending[where] = partition, now + self._config.drain_timeout_s
            else:
                self._move(where, partition, log)

    def _move(self, where: TopicPartition, partition: Partition, log: Found) -> None:
        """Continue at the log's start, or at the current position if the error was temporary."""
        membership = self._membership
        if log.log_start > partition.position:
            event(
                "warning",
                "records were deleted before they were read",
                topic=where[0],
                partition=where[1],
                first=partition.position,
                last=log.log_start - 1,
            )
            membership.door.call(
                lambda engine, at: engine.reached(at, [(partition, log.log_start)])
            )
        membership.consumer.begin(where, partition.position)
        if partition.intake_paused:
            membership.consumer.pause([where])

    def _ours(self, where: TopicPartition, partition: Partition) -> bool:
        return self._membership.partitions.get(where) is partition
