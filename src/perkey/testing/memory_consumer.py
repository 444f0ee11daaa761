"""One group member on the in-memory broker, as the runtime's ConsumerPort.

It follows the rules of the real one (tests/contract runs both): callbacks inside `poll`, commits
reported by `poll`, positions outside the log are reported and not moved.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from confluent_kafka import KafkaError

from perkey.core.commits import Found
from perkey.kafka.consumer import reset_to
from perkey.kafka.ports import (
    POLL_RECORDS_MAX,
    CommitAnswer,
    KafkaUnavailable,
    LeftS,
    Polled,
    PolledBatch,
    RebalanceListener,
    ToCommit,
    no_hurry,
)
from perkey.kafka.verdicts import commit_verdict
from perkey.testing.crash import Crashed, Mortal
from perkey.testing.memory import Member, OffsetAndMetadata, Protocol, UnstableOffset
from perkey.testing.memory_cluster import MemoryCluster, record_of
from perkey.types import TopicPartition, content_bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """A member's group membership, for one transaction."""

    member_id: str
    generation: int

    def close(self) -> None:
        """Nothing to free; the real one has a pointer."""


class MemoryConsumer:
    """A ConsumerPort on a MemoryCluster."""

    assign_may_block = True

    def __init__(self, kafka: MemoryCluster, mortal: Mortal, config: Mapping[str, Any]) -> None:
        """`config`: librdkafka consumer properties, complete; only some have an effect."""
        self._kafka = kafka
        self._mortal = mortal
        self._config = config
        self.group = str(config["group.id"])
        self._reset = str(config.get("auto.offset.reset", "earliest"))
        self._reads_committed = config.get("isolation.level", "read_committed") == "read_committed"
        with kafka.changed:
            group = kafka.broker.group(self.group)
            if not group.members:
                group.protocol = protocol_of(config)
            self.member_id = f"{self.group}-{kafka.next_number()}"
        self._subscribed: list[str] = []
        self._listener: RebalanceListener | None = None
        self._assigned: set[TopicPartition] = set()
        #: positions of partitions with a start, in fetch order
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        #: ends that were reported, not to be reported again
        self._reported: dict[TopicPartition, int] = {}
        self._tokens = count(1)
        self._answers: deque[CommitAnswer] = deque()
        self._woken = False
        self._left = False

    # -- the group ---------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group."""
        self._listener = listener
        self._subscribed = list(topics)
        with self._kafka.changed:
            self._kafka.enter(self)
            self._join()

    def _join(self) -> None:
        self._kafka.broker.join(self.group, self.member_id, self._wanted())
        self._kafka.notify()

    def _wanted(self) -> frozenset[str]:
        names = {topic for topic in self._subscribed if not topic.startswith("^")}
        patterns = [re.compile(topic) for topic in self._subscribed if topic.startswith("^")]
        known = self._kafka.broker.partition_counts
        return frozenset(names | {t for t in known if any(p.match(t) for p in patterns)})

    def match_topics(self) -> None:
        """Topics were added or removed: match patterns again. The broker's lock is held."""
        member = self._member()
        wanted = self._wanted()
        if member is not None and member.topics != wanted:
            member.topics = wanted
            self._kafka.broker.group(self.group).rebalance(self._kafka.broker.partition_counts)

    def _member(self) -> Member | None:
        return self._kafka.broker.group(self.group).members.get(self.member_id)

    def membership(self) -> Membership:
        """This member's current membership of the group."""
        with self._kafka.changed:
            member = self._member()
            return Membership(self.member_id, -1 if member is None else member.generation)

    def _serve_group(self) -> None:
        """Perform the group's requests, one callback at a time, until there are none."""
        group = self._kafka.broker.group(self.group)
        while not self._left:
            with self._kafka.changed:
                self._die_if_dead()
                change = group.heartbeat(self.member_id)
            if change.lost:
                self._be_lost()
            elif change.revoke:
                self._give_up(change.revoke)
                with self._kafka.changed:
                    group.released(self.member_id, change.revoke)
                    self._kafka.notify()
            elif change.assign:
                self._take(change.assign)
            else:
                return

    def _take(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._listener is not None
        self._assigned.update(partitions)
        starts = self._listener.on_assigned(list(partitions))
        for where in partitions:
            if where in starts:
                self._positions[where] = starts[where]
        self._mortal.reach("assigned")

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        assert self._listener is not None
        self._forget(partitions)
        if not self._mortal.reach("revoked"):
            self._listener.on_revoked(list(partitions))

    def _be_lost(self) -> None:
        assert self._listener is not None
        lost = sorted(self._assigned)
        self._forget(lost)
        if lost:
            self._listener.on_lost(lost)
        with self._kafka.changed:
            self._join()

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        for where in partitions:
            self._assigned.discard(where)
            self._positions.pop(where, None)
            self._paused.discard(where)
            self._reported.pop(where, None)

    # -- records -----------------------------------------------------------------------------------

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from this offset on."""
        if partition in self._assigned:
            self._positions[partition] = offset
            self._paused.discard(partition)
            self._reported.pop(partition, None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these."""
        self._paused.update(self._assigned.intersection(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue to fetch these."""
        self._paused.difference_update(partitions)

    def wake(self) -> None:
        """Make `poll` return soon."""
        with self._kafka.changed:
            self._woken = True
            self._kafka.notify()

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> Polled:
        """Serve callbacks and fetch."""
        deadline = self._kafka.clock.now() + timeout_s
        while True:
            self._serve_group()
            with self._kafka.changed:
                self._die_if_dead()
                polled = self._collect(records_max)
                woken, self._woken = self._woken, False
                seen = self._kafka.changes
            has_news = polled.batches or polled.ends or polled.commits or polled.out_of_range
            if has_news or woken or self._kafka.clock.now() >= deadline:
                return polled
            self._kafka.rest(self, deadline, seen)

    def _collect(self, room: int) -> Polled:
        polled = Polled(commits=self._take_answers())
        for where in [where for where in self._positions if where not in self._paused]:
            log = self._kafka.broker.logs.get(where)
            if log is None:
                continue  # deleted; the group will report it
            if not log.start <= self._positions[where] <= log.end:
                self._paused.add(where)
                polled.out_of_range.append(where)
            elif room > 0:
                found, after = log.read(
                    self._positions[where], room, committed=self._reads_committed
                )
                # The next poll starts with another partition: none is always fetched last.
                del self._positions[where]
                self._positions[where] = after
                if found:
                    records = [record_of(where, stored) for stored in found]
                    sizes = [content_bytes(one.key, one.value, one.headers) for one in found]
                    polled.batches.append(PolledBatch(*where, records, sizes))
                end = log.stable_end() if self._reads_committed else log.end
                if after >= end and self._reported.get(where) != after:
                    self._reported[where] = after
                    polled.ends.append((*where, after))
                room -= len(found)
        return polled

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, offsets: Sequence[ToCommit]) -> int:
        """Send a commit."""
        token = next(self._tokens)
        with self._kafka.changed:
            if self._mortal.reach("before_commit"):
                return token
            kafka = self._kafka
            where = [(one.topic, one.partition) for one in offsets]
            fault = kafka.take_fault("commit")
            if fault:
                errors = dict.fromkeys(where, fault)
            else:
                there = {
                    (one.topic, one.partition): OffsetAndMetadata(one.offset, one.metadata)
                    for one in offsets
                    if (one.topic, one.partition) in kafka.broker.logs
                }
                member = self._member()
                generation = -1 if member is None else member.generation
                refused = kafka.broker.group(self.group).commit(self.member_id, generation, there)
                refused |= {one: "UNKNOWN_TOPIC_OR_PART" for one in where if one not in there}
                lost_answer = kafka.take_fault("commit_answer")
                errors = dict.fromkeys(where, lost_answer) if lost_answer else refused
            if not self._mortal.reach("commit_stored"):
                self._answer(token, errors)
                self._kafka.notify()
        return token

    def _answer(self, token: int, errors: Mapping[TopicPartition, str]) -> None:
        for where, error in errors.items():
            code = getattr(KafkaError, error) if error else 0
            self._answers.append(CommitAnswer(token, *where, commit_verdict(code), error))

    def _take_answers(self) -> list[CommitAnswer]:
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def commit_and_wait(self, offsets: Sequence[ToCommit], timeout_s: float) -> list[CommitAnswer]:
        """Send a commit and return its answer, which is always available here."""
        token = self.commit(offsets)
        answers = [answer for answer in self._answers if answer.token == token]
        self._answers = deque(answer for answer in self._answers if answer.token != token)
        return answers

    def commit_answers(self, timeout_s: float) -> list[CommitAnswer]:
        """Answers to commits sent before."""
        with self._kafka.changed:
            answers, seen = self._take_answers(), self._kafka.changes
        if not answers:
            self._kafka.rest(self, self._kafka.clock.now() + timeout_s, seen)
            answers = self._take_answers()
        return answers

    # -- what the broker knows ---------------------------------------------------------------------

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offsets with metadata, and both ends of the log."""
        kafka = self._kafka
        deadline = kafka.clock.now() + timeout_s
        with kafka.changed:
            self._die_if_dead()
            fault = kafka.take_fault("find")
            if fault:
                raise KafkaUnavailable(fault)
            while True:
                try:
                    there = [where for where in partitions if where in kafka.broker.logs]
                    found = {where: self._found(where) for where in there}
                except UnstableOffset as error:
                    left_s = deadline - kafka.clock.now()
                    if left_s <= 0:
                        raise KafkaUnavailable("UNSTABLE_OFFSET_COMMIT") from error
                    kafka.changed.wait(left_s)
                else:
                    if partitions and not found:
                        raise KafkaUnavailable("UNKNOWN_TOPIC_OR_PART")
                    return found

    def leader_of(self, partition: TopicPartition) -> str:
        """Nothing: there is one broker."""
        return ""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int | None, str]]:
        """Committed offsets with metadata."""
        found = self.find(partitions, timeout_s)
        if len(found) < len(partitions):
            raise KafkaUnavailable("UNKNOWN_TOPIC_OR_PART")
        return {where: (one.committed, one.metadata) for where, one in found.items()}

    def _found(self, where: TopicPartition) -> Found:
        log = self._kafka.broker.logs[where]
        held = self._kafka.broker.committed(self.group, where)
        latest = log.stable_end() if self._reads_committed else log.end
        reset = reset_to(self._reset, log.start, latest)
        if held is None:
            return Found(None, "", log.start, log.end, reset)
        return Found(held.offset, held.metadata, log.start, log.end, reset)

    def stable_ends(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Where open transactions start."""
        with self._kafka.changed:
            logs = self._kafka.broker.logs
            return {where: logs[where].stable_end() for where in partitions if where in logs}

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """A no-op: there is one broker, and it leads everything."""

    def log_ends(self) -> dict[TopicPartition, int]:
        """Ends of the assigned partitions."""
        with self._kafka.changed:
            logs = self._kafka.broker.logs
            return {where: logs[where].end for where in self._assigned if where in logs}

    # -- the end -----------------------------------------------------------------------------------

    def leave(self, timeout_s: float, left_s: LeftS = no_hurry) -> None:
        """Release everything and leave the group."""
        if self._left:
            return
        self._left = True
        try:
            if self._assigned and not self._mortal.dead:
                self._give_up(sorted(self._assigned))
                self._die_if_dead()
        finally:
            self.vanish()

    def vanish(self) -> None:
        """Disappear from the group without leaving. Thread-safe."""
        with self._kafka.changed:
            self._kafka.broker.leave(self.group, self.member_id)
            self._kafka.forget(self)

    def _die_if_dead(self) -> None:
        if self._mortal.dead:
            raise Crashed(f"killed at {self._mortal.dead}")


def protocol_of(config: Mapping[str, Any]) -> Protocol:
    """The group protocol for these properties."""
    if config.get("group.protocol") == "consumer":
        return "incremental"
    strategy = str(config.get("partition.assignment.strategy", ""))
    return "cooperative" if "cooperative" in strategy else "eager"
