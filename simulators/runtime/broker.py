"""The in-memory broker behind a network: responses arrive late, out of order, or never."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from perkey.core.commits import Found
from perkey.kafka.connect import MEMORY
from perkey.kafka.ports import (
    CommitAnswer,
    Delivery,
    KafkaUnavailable,
    OutMessage,
    Polled,
    Problem,
    ReadBack,
    ToCommit,
    TransactionEnd,
)
from perkey.testing.memory import OffsetAndMetadata
from perkey.testing.memory_connection import MemoryConnection, MemoryKafka
from perkey.testing.memory_consumer import MemoryConsumer
from perkey.testing.memory_producer import MemoryTransactions
from perkey.types import ErrorInfo, TopicPartition
from simulators.runtime.oracle import Oracle
from simulators.runtime.setup import Setup
from simulators.runtime.stage import Stage

#: at most so long after the first time, a commit that was refused is sent again
AGAIN_S = 1.5
#: and one whose connection broke; longer than Perkey waits for an answer
BROKEN_S = 8.0
#: so often, before the client answers that it could not be sent
TRIES = 3


class _Commit(NamedTuple):
    """A request of the client's."""

    token: int
    #: among all that were sent
    number: int
    offsets: Sequence[ToCommit]
    generation: int


class Network:
    """Does things later, those of one lane in their order."""

    def __init__(self, world: Stage) -> None:
        self._sim = world.sim
        self._made = world.made
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._ends: dict[object, float] = {}
        self._changed = world.made.event()
        self._thread = world.sim.spawn(self._run, "network")

    def send(self, delay_s: float, lane: object, action: Callable[[], None]) -> None:
        """Do this after the delay, and after what this lane was sent before."""
        when = max(self._sim.now + delay_s, self._ends.get(lane, 0.0))
        self._ends[lane] = when
        heapq.heappush(self._later, (when, next(self._numbers), action))
        self._changed.set()

    def _run(self) -> None:
        while True:
            while self._later and self._later[0][0] <= self._sim.now:
                heapq.heappop(self._later)[2]()
            self._changed.clear()
            left = self._later[0][0] - self._sim.now if self._later else None
            if left is None or left > 0:
                self._changed.wait(left)


class SimKafka(MemoryKafka):
    """A MemoryKafka whose members are simulated."""

    def __init__(self, world: Stage, oracle: Oracle, network: Network) -> None:
        super().__init__()
        self.world = world
        self.oracle = oracle
        self.network = network
        self.connections: dict[str, SimConnection] = {}
        self.clock = world.clock  # type: ignore[assignment]  # a Clock like the two it may be
        MEMORY[self.bootstrap] = lambda settings: SimConnection(self, settings)
        #: consumers of killed members that are in their group still
        self.lingering: list[SimConsumer] = []

    def time_out(self) -> None:
        """End the sessions that are over."""
        for one in [one for one in self.lingering if self.world.sim.now >= one.gone_at]:
            self.lingering.remove(one)
            one.vanish()


class SimConnection(MemoryConnection):
    """The clients of one run."""

    def __init__(self, kafka: SimKafka, settings: Any) -> None:
        super().__init__(kafka, settings)
        self.kafka = kafka
        self.world = kafka.world
        self.oracle = kafka.oracle
        self.member = kafka.world.starting
        #: when its group no longer waits for it, once it was killed
        self.gone_at = 0.0
        kafka.connections[self.member] = self

    def kill(self) -> None:
        """Die as by kill -9: the group waits for a session, or until it is pushed out."""
        with self._kafka.changed:
            self.dead = "killed"
            self.gone_at = self.world.sim.now + self.world.setup.lingers_s
            for consumer in self._consumers:
                consumer.vanish()

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Handlers know themselves when they are dead."""
        return handler

    def consumer(self) -> MemoryConsumer:
        """A new consumer."""
        made = SimConsumer(self)
        self._consumers.append(made)
        return made

    def producer(self, on_served: Callable[[], None], on_died: Callable[[str], None]) -> Any:
        """A new producer."""
        return SimProducer(self, on_served)

    def transactions(self, transactional_id: str) -> MemoryTransactions:
        """Transactions under this id."""
        return SimTransactions(self, transactional_id)

    @property
    def member_id(self) -> str:
        """Its name in the group."""
        return self._consumers[-1].member_id if self._consumers else ""

    @property
    def config(self) -> Any:
        """The consumer's properties."""
        return self.settings.consumer


class SimConsumer(MemoryConsumer):
    """A consumer whose answers take time."""

    def __init__(self, connection: SimConnection) -> None:
        super().__init__(connection.kafka, connection, connection.config)
        self._of, self.kafka = connection, connection.kafka
        self.world = connection.world
        self.oracle = connection.oracle
        self.network = connection.kafka.network
        self.member = connection.member
        self._revoking: set[TopicPartition] = set()
        #: their leader has moved, and this client does not know it: not fetched, not found
        self._stale: set[TopicPartition] = set()
        #: a request of the membership that it has lost was sent again, and refused
        self._fenced = False
        self.assign_may_block = connection.world.setup.assign_may_block

    @property
    def _setup(self) -> Setup:
        return self.world.setup

    # -- the group ---------------------------------------------------------------------------------

    @property
    def gone_at(self) -> float:
        """See SimConnection."""
        return self._of.gone_at

    def vanish(self) -> None:
        """Be gone from the group; a killed member is in it until its time is over."""
        if self.world.sim.now >= self.gone_at:
            super().vanish()
        elif self not in self.kafka.lingering:
            self.oracle.stats["lingered"] += 1
            self.kafka.lingering.append(self)

    def _serve_group(self) -> None:
        with self.kafka.changed:
            self.kafka.time_out()
        super()._serve_group()

    def _take(self, partitions: Sequence[TopicPartition]) -> None:
        self.oracle.assigned(self.member, partitions)
        self._move_leaders(partitions)
        super()._take(partitions)
        self._move_leaders(partitions)

    def _move_leaders(self, partitions: Sequence[TopicPartition]) -> None:
        odds = self.world.odds.leader_moved
        self._stale.update(where for where in partitions if self.world.chance(odds))

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        self._revoking.update(partitions)
        try:
            super()._give_up(partitions)
        finally:
            self._revoking.difference_update(partitions)
        self.oracle.given_up(self.member, partitions)

    def _be_lost(self) -> None:
        self.oracle.taken_away(self.member, sorted(self._assigned))
        super()._be_lost()
        if self.world.chance(self.world.odds.fenced):
            self._woken = self._fenced = True

    # -- records -----------------------------------------------------------------------------------

    def _collect(self, room: int) -> Polled:
        unknown = self._stale - self._paused
        self._paused |= unknown
        polled = super()._collect(min(room, self._setup.poll_max))
        self._paused -= unknown
        self.oracle.fetched(polled)
        if self._fenced:
            self.oracle.stats["fenced"] += 1
            polled.problems.append(Problem("recreate", "FENCED_INSTANCE_ID", "a former membership"))
        return polled

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, offsets: Sequence[ToCommit]) -> int:
        """Send a commit: stored a little later, answered later still, or lost on the way.

        Where it or its answer is lost, or it is refused at first, the client sends it again by
        itself, whatever was sent meanwhile; in the end it answers.
        """
        world = self.world
        token = next(self._tokens)
        mine = self._assigned | self._revoking
        number = self.oracle.commit_sent(self.member, offsets, mine)
        member = self._member()
        generation = -1 if member is None else member.generation
        again = world.chance(world.odds.commit_again)
        delay_s = world.delay() + (AGAIN_S * world.sim.rng.random() if again else 0.0)
        commit = _Commit(token, number, offsets, generation)
        self.network.send(delay_s, object() if again else self, lambda: self._arrives(commit))
        return token

    def _arrives(self, commit: _Commit, tries: int = 1) -> None:
        world, odds = self.world, self.world.odds
        with self._kafka.changed:
            if self._mortal.dead:
                return
            lost = world.chance(odds.commit_lost)
            where = [(one.topic, one.partition) for one in commit.offsets]
            errors = dict.fromkeys(where, "_TRANSPORT") if lost else self._stored(commit)
            broken = lost or world.chance(odds.answer_lost)
        if not broken or tries == TRIES:
            self.network.send(world.delay(), self, lambda: self._answered(commit.token, errors))
        else:
            later_s = BROKEN_S * world.sim.rng.random()
            self.network.send(later_s, object(), lambda: self._arrives(commit, tries + 1))

    def _stored(self, commit: _Commit) -> dict[TopicPartition, str]:
        kafka, world, offsets = self._kafka, self.world, commit.offsets
        where = [(one.topic, one.partition) for one in offsets]
        if world.chance(world.odds.commit_refused):
            return dict.fromkeys(where, "COORDINATOR_LOAD_IN_PROGRESS")
        held = {(o.topic, o.partition): OffsetAndMetadata(o.offset, o.metadata) for o in offsets}
        group = kafka.broker.group(self.group)
        errors = group.commit(self.member_id, commit.generation, held)
        stored = {tp: value for tp, value in held.items() if not errors[tp]}
        self.oracle.stored(self.member, stored, commit.number)
        return errors

    def _answered(self, token: int, errors: dict[TopicPartition, str]) -> None:
        with self._kafka.changed:
            self._answer(token, errors)
            self._kafka.notify()

    def commit_and_wait(self, offsets: Sequence[ToCommit], timeout_s: float) -> list[CommitAnswer]:
        """Send a commit and wait for its answer."""
        token = self.commit(offsets)
        self.oracle.was_last(self.member, offsets)
        until = self._kafka.clock.now() + timeout_s
        with self._kafka.changed:
            while not (mine := [one for one in self._answers if one.token == token]):
                left_s = until - self._kafka.clock.now()
                if left_s <= 0 or self._mortal.dead:
                    break
                self._kafka.changed.wait(min(left_s, 0.5))
            self._answers = deque(one for one in self._answers if one.token != token)
        return mine

    # -- what the broker knows ---------------------------------------------------------------------

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Read at some moment between the call and its return."""
        world = self.world
        world.sim.sleep(world.delay())
        if world.chance(world.odds.find_fails):
            raise KafkaUnavailable("REQUEST_TIMED_OUT")
        known = [where for where in partitions if where not in self._stale]
        self.refresh({topic for topic, _ in partitions}, timeout_s)
        if partitions and not known:
            raise KafkaUnavailable("NOT_LEADER_FOR_PARTITION")
        found = super().find(known, timeout_s)
        world.sim.sleep(world.delay(slow=world.odds.find_slow))
        return found

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """Learn of the leaders."""
        self._stale = {where for where in self._stale if where[0] not in topics}


class SimProducer:
    """A ProducerPort with a short queue; what is in it is written one by one."""

    def __init__(self, connection: SimConnection, on_served: Callable[[], None]) -> None:
        self.world = connection.world
        self.oracle = connection.oracle
        self._connection = connection
        self._on_served = on_served
        self._queue: deque[tuple[OutMessage, Callable[[Delivery], None]]] = deque()
        self._changed = self.world.made.condition()
        self._closed = False
        self.world.sim.spawn(self._serve, "perkey-producer")

    def send(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue one message. Raises BufferError when the queue is full."""
        with self._changed:
            if len(self._queue) >= self.world.setup.queue_max:
                raise BufferError("the producer's queue is full")
            self._queue.append((message, on_delivery))
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
            self.world.sim.sleep(self.world.setup.store_s * self.world.sim.rng.random())
            for message, on_delivery in self._taken():
                delivery = self._write(message)
                if delivery is not None:
                    on_delivery(delivery)
            self._on_served()

    def _taken(self) -> Iterator[tuple[OutMessage, Callable[[Delivery], None]]]:
        """Some of the queue, each still in it until it is answered."""
        for _ in range(1 + int(self.world.sim.rng.random() * 4)):
            if self._queue:
                yield self._queue[0]
                with self._changed:
                    self._queue.popleft()
                    self._changed.notify_all()

    def _write(self, message: OutMessage) -> Delivery | None:
        world = self.world
        with self._connection.kafka.changed:
            if self._connection.dead:
                return None
            if world.chance(world.odds.output_refused):
                self.oracle.refused(message)
                return Delivery(None, ErrorInfo("_MSG_TIMED_OUT", "the broker did not answer"))
            delivery = self._connection.kafka.store(message)
        if delivery.error is None:  # else its topic has no such partition
            self.oracle.produced(self._connection.member, message)
        return delivery

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty; how many messages are left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue, timeout_s)
            return len(self._queue)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, and stop."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class SimTransactions(MemoryTransactions):
    """Transactions that take time and may end without a word."""

    def __init__(self, connection: SimConnection, transactional_id: str) -> None:
        group = str(connection.config["group.id"])
        super().__init__(connection.kafka, connection, group, transactional_id)
        self.world = connection.world
        self.oracle = connection.oracle
        self._connection = connection

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Produce all messages and commit the offsets with them, or neither."""
        world, odds = self.world, self.world.odds
        world.sim.sleep(world.delay(slow=odds.transaction_slow))
        if world.chance(odds.transaction_lost):
            for message in messages:  # twice so, and alone, is a failed attempt of its record
                self.oracle.refused(message)
            return TransactionEnd("unknown", [None] * len(messages), "no answer")
        end = super().transact(messages, offsets, membership, read_back)
        if end.outcome == "committed":
            held = {
                (o.topic, o.partition): OffsetAndMetadata(o.offset, o.metadata) for o in offsets
            }
            for message in messages:
                self.oracle.produced(self._connection.member, message)
            self.oracle.stored(self._connection.member, held)
        world.sim.sleep(world.delay())
        if end.outcome == "committed" and world.chance(odds.transaction_unheard):
            return TransactionEnd("unknown", end.deliveries, "no answer")
        return end
