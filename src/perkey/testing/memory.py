"""A deterministic Kafka in memory: logs with gaps, groups, commits, transactions.

No thread, no clock, no randomness: the caller decides what happens when. The simulator runs every
race on it; the port for tests of whole apps wraps it.

Groups never push: a member calls `heartbeat` for its next step, performs it, and confirms with
`released`. As on a real broker (reference: ClassicGroup and ConsumerGroup of Kafka) a commit is
checked for member and generation, never for ownership of the partition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from perkey.types import Headers, TopicPartition

Protocol = Literal["eager", "cooperative", "incremental"]

METADATA_CHARS_MAX = 4096  # offset.metadata.max.bytes, the broker's default

# Error names as Kafka writes them; "" is success.
OK = ""
UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"
METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"


class OffsetAndMetadata(NamedTuple):
    """What the group stores for one partition."""

    offset: int
    metadata: str = ""


class Change(NamedTuple):
    """A member's next step. `lost`: it was removed and owns nothing any more."""

    revoke: tuple[TopicPartition, ...] = ()
    assign: tuple[TopicPartition, ...] = ()
    lost: bool = False


@dataclass(slots=True)
class Member:
    """One member as the coordinator sees it."""

    topics: frozenset[str]
    #: what its commits must carry
    generation: int
    owned: set[TopicPartition] = field(default_factory=set)


class Group:
    """One consumer group."""

    def __init__(self, protocol: Protocol = "cooperative") -> None:
        self.protocol = protocol
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.target: dict[str, set[TopicPartition]] = {}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.metadata_chars_max = METADATA_CHARS_MAX
        #: owned at the last change and not released since (eager: all of it must be)
        self._to_release: dict[str, set[TopicPartition]] = {}

    # -- membership --------------------------------------------------------------------------------

    def join(self, member_id: str, topics: frozenset[str], known: dict[str, int]) -> None:
        """A member joins; `known` are all topics with their partition counts."""
        self.members[member_id] = Member(topics, self.generation)
        self.rebalance(known)

    def leave(self, member_id: str, known: dict[str, int]) -> None:
        """A member leaves, or its session has timed out: its partitions are free immediately."""
        if self.members.pop(member_id, None) is not None:
            self._to_release.pop(member_id, None)
            self.rebalance(known)

    def rebalance(self, known: dict[str, int]) -> None:
        """Compute a new assignment: fair, and sticky except for eager."""
        self.generation += 1
        self.target = {member_id: set() for member_id in self.members}
        for topic in sorted(known):
            count = known[topic]
            takers = sorted(m for m, member in self.members.items() if topic in member.topics)
            if not takers:
                continue
            free = [(topic, number) for number in range(count)]
            quota = -(-count // len(takers))
            for member_id in takers:
                kept = [tp for tp in free if tp in self.members[member_id].owned][:quota]
                self.target[member_id].update(kept)
                free = [tp for tp in free if tp not in self.target[member_id]]
            for tp in free:
                poorest = min(takers, key=lambda m: (sum(t[0] == topic for t in self.target[m]), m))
                self.target[poorest].add(tp)
        for member_id, member in self.members.items():
            moving = member.owned - self.target[member_id]
            self._to_release[member_id] = set(member.owned if self.protocol == "eager" else moving)

    def heartbeat(self, member_id: str) -> Change:
        """This member's next step; an assignment takes effect with the answer."""
        member = self.members.get(member_id)
        if member is None:
            return Change(lost=True)
        if self._to_release.get(member_id):
            return Change(revoke=tuple(sorted(self._to_release[member_id])))
        if self.protocol == "eager" and any(self._to_release.values()):
            return Change()  # the others have not rejoined yet
        member.generation = self.generation
        held = {tp for other in self.members.values() for tp in other.owned}
        gained = tuple(sorted(self.target[member_id] - held))
        member.owned.update(gained)
        return Change(assign=gained)

    def released(self, member_id: str, partitions: tuple[TopicPartition, ...]) -> None:
        """The member has released these: its revoke callback has returned."""
        member = self.members.get(member_id)
        if member is None:
            return
        member.owned.difference_update(partitions)
        self._to_release.get(member_id, set()).difference_update(partitions)
        # It rejoins, or acknowledges its new epoch: earlier requests are fenced from here on.
        self.generation += 1
        member.generation = self.generation

    def owner(self, tp: TopicPartition) -> str | None:
        """The current owner of the partition, for checks."""
        return next((m for m, member in self.members.items() if tp in member.owned), None)

    # -- offsets -----------------------------------------------------------------------------------

    def fence(self, member_id: str, generation: int) -> str:
        """Whether the group accepts a commit of this member: the error's name, or OK."""
        if not member_id and generation < 0 and not self.members:
            return OK  # offsets of a group without members
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID
        if generation != member.generation:
            return STALE_MEMBER_EPOCH if self.protocol == "incremental" else ILLEGAL_GENERATION
        return OK

    def commit(
        self, member_id: str, generation: int, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, str]:
        """Store what is allowed; returns each partition's error name."""
        error = self.fence(member_id, generation)
        if error:
            return dict.fromkeys(offsets, error)
        return {tp: self.store(tp, value) for tp, value in offsets.items()}

    def store(self, tp: TopicPartition, value: OffsetAndMetadata) -> str:
        """Store without a check of the member: for an admin, or a transaction checked before."""
        if not self.fits(value):
            return METADATA_TOO_LARGE
        self.committed[tp] = value
        return OK

    def fits(self, value: OffsetAndMetadata) -> bool:
        """Whether the broker stores metadata of this length."""
        return len(value.metadata) <= self.metadata_chars_max


class Fenced(Exception):
    """A newer producer with this transactional id exists."""


class UnstableOffset(Exception):
    """An open transaction has an offset for this partition: retry later."""


class Stored(NamedTuple):
    """One record in a log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    #: the transaction that wrote it; None outside of one
    transaction: int | None = None


class Log:
    """One partition: records at ascending offsets, with gaps for missing ones."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.records: list[Stored] = []
        self.open: dict[int, int] = {}  # transaction -> its first offset here
        self.aborted: set[int] = set()

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        transaction: int | None = None,
    ) -> int:
        """Write one record; returns its offset."""
        offset = self.end
        self.records.append(Stored(offset, timestamp_ms, key, value, headers, transaction))
        self.end += 1
        if transaction is not None:
            self.open.setdefault(transaction, offset)
        return offset

    def gap(self, count: int = 1) -> None:
        """Skip offsets without a record, as transaction markers and aborted batches do."""
        self.end += count

    def close_transaction(self, transaction: int, *, committed: bool) -> None:
        """Write the marker of a transaction that touched this log."""
        if self.open.pop(transaction, None) is None:
            return
        if not committed:
            self.aborted.add(transaction)
        self.gap()

    def compact(self, offsets: Iterable[int]) -> None:
        """Remove single records; their offsets stay used."""
        gone = set(offsets)
        self.records = [record for record in self.records if record.offset not in gone]

    def delete_before(self, offset: int) -> None:
        """Retention: delete everything before `offset`."""
        self.start = max(self.start, min(offset, self.end))
        self.records = self.records[self._place(self.start) :]

    def stable_end(self) -> int:
        """The end for a read_committed reader."""
        return min(self.open.values(), default=self.end)

    def _place(self, offset: int) -> int:
        return bisect_left(self.records, offset, key=lambda record: record.offset)

    def read(
        self, position: int, records_max: int, *, committed: bool = False
    ) -> tuple[list[Stored], int]:
        """Records from `position` on, and the reader's position after them."""
        end = self.stable_end() if committed else self.end
        place = self._place(position)
        readable = [r for r in self.records[place : place + records_max] if r.offset < end]
        at_end = place + records_max >= len(self.records) or len(readable) < records_max
        after = end if at_end else readable[-1].offset + 1
        if committed:
            readable = [r for r in readable if r.transaction not in self.aborted]
        return readable, max(position, after)


@dataclass(slots=True)
class Transaction:
    """One open transaction of a producer."""

    number: int
    logs: dict[TopicPartition, None] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicPartition], OffsetAndMetadata] = field(default_factory=dict)


class ProducerId(NamedTuple):
    """A producer with a transactional id; a later one with the same id has a higher epoch."""

    transactional_id: str
    epoch: int


class MemoryBroker:
    """Topics, groups and transactional producers."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, Log] = {}
        self.partition_counts: dict[str, int] = {}
        self.groups: dict[str, Group] = {}
        self._epochs: dict[str, int] = {}
        self._transactions: dict[str, Transaction] = {}
        self._transaction_count = 0

    # -- topics ------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, or add partitions to it; its groups are rebalanced."""
        for number in range(self.partition_counts.get(topic, 0), partitions):
            self.logs[topic, number] = Log()
        self.partition_counts[topic] = partitions
        for group in self.groups.values():
            if any(topic in member.topics for member in group.members.values()):
                group.rebalance(self.partition_counts)

    def delete_topic(self, topic: str) -> None:
        """Remove a topic with all its committed offsets."""
        for number in range(self.partition_counts.pop(topic, 0)):
            del self.logs[topic, number]
            for group in self.groups.values():
                group.committed.pop((topic, number), None)
        for group in self.groups.values():
            group.rebalance(self.partition_counts)

    # -- groups ------------------------------------------------------------------------------------

    def group(self, name: str, protocol: Protocol = "cooperative") -> Group:
        """The group of this name; created by the first call, which fixes its protocol."""
        if name not in self.groups:
            self.groups[name] = Group(protocol)
        return self.groups[name]

    def join(self, group: str, member_id: str, topics: Iterable[str]) -> None:
        """A member subscribes."""
        self.group(group).join(member_id, frozenset(topics), self.partition_counts)

    def leave(self, group: str, member_id: str) -> None:
        """A member leaves, or its session times out."""
        self.group(group).leave(member_id, self.partition_counts)

    def committed(self, group: str, tp: TopicPartition) -> OffsetAndMetadata | None:
        """The group's commit. Raises UnstableOffset while a transaction may change it."""
        if any((group, tp) in open_.offsets for open_ in self._transactions.values()):
            raise UnstableOffset(f"{group} {tp}")
        return self.group(group).committed.get(tp)

    # -- transactions ------------------------------------------------------------------------------

    def init_producer(self, transactional_id: str) -> ProducerId:
        """A new producer under this id: fences older ones and aborts their open transactions."""
        if transactional_id in self._transactions:
            self._end(transactional_id, committed=False)
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1
        return ProducerId(transactional_id, self._epochs[transactional_id])

    def begin(self, producer: ProducerId) -> None:
        """Open a transaction."""
        self._fence(producer)
        self._transaction_count += 1
        self._transactions[producer.transactional_id] = Transaction(self._transaction_count)

    def produce(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        *,
        timestamp_ms: int = 0,
        producer: ProducerId | None = None,
    ) -> int:
        """Write one record, in the producer's open transaction if one is given; its offset."""
        if producer is None:
            return self.logs[tp].append(timestamp_ms, key, value, headers)
        transaction = self._open(producer)
        transaction.logs[tp] = None
        return self.logs[tp].append(timestamp_ms, key, value, headers, transaction.number)

    def send_offsets(
        self,
        producer: ProducerId,
        group: str,
        member_id: str,
        generation: int,
        offsets: dict[TopicPartition, OffsetAndMetadata],
    ) -> dict[TopicPartition, str]:
        """Offsets that are stored when the transaction commits; each partition's error name."""
        transaction = self._open(producer)
        error = self.group(group).fence(member_id, generation)
        if error:
            return dict.fromkeys(offsets, error)
        answers = {}
        for tp, value in offsets.items():
            fits = self.group(group).fits(value)
            answers[tp] = OK if fits else METADATA_TOO_LARGE
            if fits:
                transaction.offsets[group, tp] = value
        return answers

    def commit(self, producer: ProducerId) -> None:
        """Commit the transaction: its records and offsets count."""
        self._open(producer)
        self._end(producer.transactional_id, committed=True)

    def abort(self, producer: ProducerId) -> None:
        """Abort the transaction: nothing of it counts."""
        self._open(producer)
        self._end(producer.transactional_id, committed=False)

    def expire_transaction(self, transactional_id: str) -> None:
        """transaction.timeout.ms is over: the broker aborts and fences the producer."""
        if transactional_id in self._transactions:
            self._end(transactional_id, committed=False)
            self._epochs[transactional_id] += 1

    def _fence(self, producer: ProducerId) -> None:
        if self._epochs.get(producer.transactional_id) != producer.epoch:
            raise Fenced(f"{producer.transactional_id} epoch {producer.epoch}")

    def _open(self, producer: ProducerId) -> Transaction:
        self._fence(producer)
        return self._transactions[producer.transactional_id]

    def _end(self, transactional_id: str, *, committed: bool) -> None:
        transaction = self._transactions.pop(transactional_id)
        for tp in transaction.logs:
            if tp in self.logs:
                self.logs[tp].close_transaction(transaction.number, committed=committed)
        if committed:
            for (group, tp), value in transaction.offsets.items():
                self.group(group).store(tp, value)
