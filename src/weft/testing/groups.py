"""Consumer groups of the in-memory broker: members, assignment, generations, offsets.

Pull, not push: a member asks with `heartbeat` what it must do, does it, and confirms with
`released`. Nothing here waits, so every interleaving of several members can be played.

Rules taken from the real broker (reference: ClassicGroup and ConsumerGroup of Kafka):
a commit is checked for member and generation, never for ownership of the partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from weft.types import TopicPartition

Protocol = Literal["eager", "cooperative", "incremental"]

METADATA_CHARS_MAX = 4096  # offset.metadata.max.bytes, the broker's default

# Error names as Kafka writes them; "" is success.
OK = ""
UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"
METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"


class OffsetAndMetadata(NamedTuple):
    """What the group holds for one partition."""

    offset: int
    metadata: str = ""


class Change(NamedTuple):
    """What a member must do now. `lost`: it was thrown out and owns nothing any more."""

    revoke: tuple[TopicPartition, ...] = ()
    assign: tuple[TopicPartition, ...] = ()
    lost: bool = False


@dataclass(slots=True)
class Member:
    """One member as the coordinator sees it."""

    topics: frozenset[str]
    #: what a commit of it must carry
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
        #: owned when the last change came and not given back since (eager: all of it must be)
        self._to_release: dict[str, set[TopicPartition]] = {}

    # -- membership --------------------------------------------------------------------------------

    def join(self, member_id: str, topics: frozenset[str], known: dict[str, int]) -> None:
        """A member comes in; `known` are all topics with their partition counts."""
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
            self._spread(topic, known[topic])
        for member_id, member in self.members.items():
            moving = member.owned - self.target[member_id]
            self._to_release[member_id] = set(member.owned if self.protocol == "eager" else moving)

    def _spread(self, topic: str, count: int) -> None:
        takers = sorted(m for m, member in self.members.items() if topic in member.topics)
        if not takers:
            return
        free = [(topic, number) for number in range(count)]
        quota = -(-count // len(takers))
        for member_id in takers:
            kept = [tp for tp in free if tp in self.members[member_id].owned][:quota]
            self.target[member_id].update(kept)
            free = [tp for tp in free if tp not in self.target[member_id]]
        for tp in free:
            poorest = min(takers, key=lambda m: (sum(t[0] == topic for t in self.target[m]), m))
            self.target[poorest].add(tp)

    def heartbeat(self, member_id: str) -> Change:
        """What this member must do now; assigning is done by the answer itself."""
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
        """The member has given these back: its revoke callback has returned."""
        member = self.members.get(member_id)
        if member is None:
            return
        member.owned.difference_update(partitions)
        self._to_release.get(member_id, set()).difference_update(partitions)
        # It rejoins, or acknowledges its new epoch: what it sent before is fenced from here on.
        self.generation += 1
        member.generation = self.generation

    def owner(self, tp: TopicPartition) -> str | None:
        """Who owns the partition now, for checks."""
        return next((m for m, member in self.members.items() if tp in member.owned), None)

    # -- offsets -----------------------------------------------------------------------------------

    def fence(self, member_id: str, generation: int) -> str:
        """Whether the group takes a commit of this member: the error's name, or OK."""
        if not member_id and generation < 0 and not self.members:
            return OK  # offsets of a group that nobody joins
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID
        if generation != member.generation:
            return STALE_MEMBER_EPOCH if self.protocol == "incremental" else ILLEGAL_GENERATION
        return OK

    def commit(
        self, member_id: str, generation: int, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, str]:
        """Store what is allowed; each partition's error name."""
        error = self.fence(member_id, generation)
        if error:
            return dict.fromkeys(offsets, error)
        return {tp: self.store(tp, value) for tp, value in offsets.items()}

    def store(self, tp: TopicPartition, value: OffsetAndMetadata) -> str:
        """Store without asking who it is: an admin, or a transaction that was checked before."""
        if not self.fits(value):
            return METADATA_TOO_LARGE
        self.committed[tp] = value
        return OK

    def fits(self, value: OffsetAndMetadata) -> bool:
        """The broker stores metadata of this length."""
        return len(value.metadata) <= self.metadata_chars_max
