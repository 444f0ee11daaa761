"""One group member on confluent-kafka, as the runtime's ConsumerPort.

All of it runs on the polling thread, except the queries that any thread may make (ports.py).
Rebalance callbacks run inside `consume`, on that same thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from perkey import guard
from perkey.core.commits import Found
from perkey.errors import ConfigError
from perkey.kafka import clib, clib_offsets, ports
from perkey.kafka.batches import batches_of
from perkey.kafka.clientlog import ClientLog
from perkey.kafka.failures import Refusals, root_cause
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import is_incremental
from perkey.kafka.verdicts import commit_verdict, error_text, poll_verdict

_log = logging.getLogger("perkey.kafka")

#: how long to wait for a join in progress before closing anyway
JOIN_END_S = 4.0
#: how long the client may take to close, even after a leave used its time
CLOSE_LEAST_S = 0.5


#: time limit for naming the leader of a partition whose log was not answered for
LEADER_S = 0.5
NO_LEADER = "no partition has a leader that answers"

#: librdkafka's names for the two places that auto.offset.reset can point to
EARLIEST = ("earliest", "smallest", "beginning")
LATEST = ("latest", "largest", "end")


def reset_to(policy: str, start: int, end: int) -> int | None:
    """Where auto.offset.reset points to in this log; None: nowhere."""
    return start if policy in EARLIEST else end if policy in LATEST else None


class _Asking:
    """A consumer's queries to the brokers over its own connections. Thread-safe."""

    def __init__(self, consumer: Consumer, config: Mapping[str, Any]) -> None:
        self._consumer = consumer
        self._reset = str(config.get("auto.offset.reset", "earliest"))
        self._reads_committed = config.get("isolation.level") == "read_committed"
        #: how many queries run: the client must stay open. They do not wait for each other: one is
        #: sent inside a rebalance callback
        self._queries = 0
        self._asking = threading.Condition()
        #: the client is being closed: no more queries
        self._closing = False

    def find(
        self, partitions: Sequence[ports.TopicPartition], timeout_s: float
    ) -> dict[ports.TopicPartition, Found]:
        """Committed offsets with metadata, and both ends of the log."""
        deadline = time.monotonic() + timeout_s
        with self._open_to_ask():
            try:
                held = [stored for stored in self._held(partitions, timeout_s) if not stored.error]
            except KafkaUnavailable as error:
                raise KafkaUnavailable(
                    f"the group's coordinator has not returned its commits: {error}"
                ) from error
            where = [(stored.topic, stored.partition) for stored in held]
            latest = self._reset in LATEST and any(stored.offset is None for stored in held)
            specs: list[clib_offsets.Spec] = ["start", "end"]
            if latest and self._reads_committed:
                specs.append("stable_end")
            left_s = max(0.1, deadline - time.monotonic())
            logs = clib_offsets.bounds_soon(self._consumer, where, specs, left_s)
        if partitions and not logs:
            soon = f"the ends of their logs were not answered within {timeout_s:g} s"
            raise KafkaUnavailable(
                self.leader_of(where[0]) if where and timeout_s > LEADER_S else soon
            )
        starts = {}
        for place, stored in zip(where, held, strict=True):
            if (log := logs.get(place)) is not None:
                # The high watermark is the log's end, also for a read_committed reader: offsets
                # past an open transaction are no lost log.
                stable = log.end if log.stable_end < 0 else log.stable_end
                reset = reset_to(self._reset, log.start, stable)
                starts[place] = Found(stored.offset, stored.metadata, log.start, log.end, reset)
        return starts

    def leader_of(self, partition: ports.TopicPartition) -> str:
        """The broker that leads this partition and has not answered."""
        topic, number = partition
        try:
            with self._open_to_ask():
                known = self._consumer.list_topics(topic, timeout=LEADER_S)
        except (KafkaException, KafkaUnavailable):
            return NO_LEADER
        shown = known.topics.get(topic)
        shown_partition = None if shown is None else shown.partitions.get(number)
        broker = None if shown_partition is None else known.brokers.get(shown_partition.leader)
        if broker is None:
            return NO_LEADER
        return f"its leader, broker {broker.id} ({broker.host}:{broker.port}), does not answer"

    def stable_ends(
        self, partitions: Sequence[ports.TopicPartition], timeout_s: float
    ) -> dict[ports.TopicPartition, int]:
        """The end of the last closed transaction, for partitions whose leader answers."""
        with self._open_to_ask():
            logs = clib_offsets.bounds_soon(self._consumer, partitions, ["stable_end"], timeout_s)
        if partitions and not logs:
            raise KafkaUnavailable(NO_LEADER)
        return {where: log.stable_end for where, log in logs.items()}

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """Look up these topics' leaders."""
        with self._open_to_ask():
            clib_offsets.refresh(self._consumer, topics, timeout_s)

    def committed(
        self, partitions: Sequence[ports.TopicPartition], timeout_s: float
    ) -> dict[ports.TopicPartition, tuple[int | None, str]]:
        """Committed offsets with metadata."""
        with self._open_to_ask():
            held = self._held(partitions, timeout_s)
        for stored in held:
            if stored.error:
                raise KafkaUnavailable(KafkaError(stored.error).str())
        return {
            (stored.topic, stored.partition): (stored.offset, stored.metadata) for stored in held
        }

    @contextmanager
    def _open_to_ask(self) -> Iterator[None]:
        """Keeps the client open during a query."""
        with self._asking:
            if self._closing:
                raise KafkaUnavailable("the consumer is closed")
            self._queries += 1
        try:
            yield
        finally:
            with self._asking:
                self._queries -= 1
                self._asking.notify_all()

    def _held(
        self, partitions: Sequence[ports.TopicPartition], timeout_s: float
    ) -> list[ports.CommittedOffset]:
        try:
            return clib.committed(self._consumer, list(partitions), timeout_s)
        except KafkaException as error:
            raise KafkaUnavailable(error.args[0].str()) from error


class KafkaConsumer(_Asking):
    """A ConsumerPort on a real broker."""

    def __init__(self, config: Mapping[str, Any], *, own_id: bool = False) -> None:
        """`config`: librdkafka consumer properties, complete (see `settings`).

        `own_id`: no other process uses its `group.instance.id`, so a fencing concerns a former
        membership of this run: after an outage librdkafka resends a commit of its lost one.
        """
        self._own_id = own_id
        # Perkey decides these: the start of a partition is always given, and a position that falls
        # out of the log must be reported, not silently moved.
        self._refusals = Refusals(config)
        consumer = Consumer({**config, "auto.offset.reset": "error", **self._refusals.callbacks})
        super().__init__(consumer, config)
        self._incremental = is_incremental(config)
        self._kip848 = config.get("group.protocol") == "consumer"
        self.assign_may_block = config.get("group.protocol") != "consumer"
        self._instance_id = config.get("group.instance.id")
        self._log = config.get("logger")
        self._wakeable = clib.WakeableQueue(self._consumer)
        self._commits = clib.CommitQueue(self._consumer)
        self._commits.signal(self._wakeable)
        self._unanswered = 0
        #: answers that arrived while waiting for another one
        self._early: list[ports.CommitAnswer] = []
        self._listener: ports.RebalanceListener | None = None
        #: the subscribed topic if there is exactly one, and no pattern
        self._only_topic: str | None = None
        self._assigned: set[ports.TopicPartition] = set()
        #: partition -> its start offset; partitions that wait for `begin` are missing
        self._begun: dict[ports.TopicPartition, int] = {}
        self._paused: set[ports.TopicPartition] = set()
        #: revoked while paused: librdkafka still has them paused when they are assigned again
        self._left_paused: set[ports.TopicPartition] = set()
        #: the first error raised inside a callback, which librdkafka would swallow
        self._failure: BaseException | None = None
        self._left = False
        #: a join was sent and no assignment has come: the broker has not answered the join
        self._joining = False
        self._leaving = False

    # -- the group -------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], listener: ports.RebalanceListener) -> None:
        """Join the group."""
        self._listener = listener
        self._joining = True
        patterns = [topic for topic in topics if topic.startswith("^")]
        if not patterns and len(topics) == 1:
            self._only_topic = topics[0]
        try:
            self._consumer.subscribe(
                [
                    (f"^({topic[1:]}).*" if self._kip848 else topic) if topic in patterns else topic
                    for topic in topics
                ],
                on_assign=self._on_assign,
                on_revoke=lambda _, gone: self._give_up(gone, lost=False),
                on_lost=lambda _, gone: self._give_up(gone, lost=True),
            )
        except KafkaException as error:
            if not patterns or error.args[0].code() != KafkaError._INVALID_ARG:  # noqa: SLF001  # public; the underscore means "local"
                raise
            raise ConfigError(
                f"librdkafka does not take the pattern {' or '.join(map(repr, patterns))}: write a "
                "POSIX extended regular expression, without (?...)"
            ) from error

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert self._listener is not None
        self._joining = False
        if self._leaving:
            # Accepted while leaving, so that librdkafka can revoke them with the rest: it refuses
            # to unassign if one of them was never assigned, and the poll then breaks.
            if not self._incremental:
                consumer.assign([])
                return
            none = [TopicPartition(p.topic, p.partition, 0) for p in partitions]
            consumer.incremental_assign(none)
            if partitions:
                consumer.pause(partitions)
            return
        where = [(p.topic, p.partition) for p in partitions]
        self._assigned.update(where)
        try:
            starts = self._listener.on_assigned(where) if where else {}
        except BaseException as error:
            self._failure, starts = error, {}
        # Partitions without a start are assigned paused; `begin` seeks them later. They get a real
        # offset: a pending look-up of a logical one would silently override the seek (librdkafka
        # 2.16, every fourth time), and skip records.
        begin = [TopicPartition(*tp, starts.get(tp, 0)) for tp in where]
        if self._incremental:
            consumer.incremental_assign(begin)
        else:
            consumer.assign(begin)
        self._begun.update(starts)
        waiting = [TopicPartition(*tp) for tp in where if tp not in starts]
        if waiting:
            consumer.pause(waiting)
        again = self._left_paused & starts.keys()
        if again:
            consumer.resume([TopicPartition(*tp) for tp in again])
        self._left_paused.difference_update(where)

    def _give_up(self, partitions: list[TopicPartition], *, lost: bool) -> None:
        assert self._listener is not None
        # The eager protocol gives up everything before each join; so does a member that lost all.
        self._joining = lost or not self._incremental
        named = [(p.topic, p.partition) for p in partitions]
        where = [tp for tp in named if tp in self._assigned]
        self._assigned.difference_update(where)
        self._left_paused |= {tp for tp in where if tp in self._paused or tp not in self._begun}
        self._paused.difference_update(where)
        for partition in where:
            self._begun.pop(partition, None)
        try:
            (self._listener.on_lost if lost else self._listener.on_revoked)(where)
        except BaseException as error:
            self._failure = error

    def begin(self, partition: ports.TopicPartition, offset: int) -> None:
        """Fetch from this offset on."""
        if partition not in self._assigned:
            return
        self._begun[partition] = offset
        self._paused.discard(partition)
        try:
            self._consumer.seek(TopicPartition(*partition, offset))
        except KafkaException:
            # It is not being fetched (yet, or since its position fell out of the log), so a seek is
            # not possible: assign it again with its offset.
            self._assign_again(partition, offset)
        self._consumer.resume([TopicPartition(*partition)])

    def _assign_again(self, partition: ports.TopicPartition, offset: int) -> None:
        if self._incremental:
            self._consumer.incremental_unassign([TopicPartition(*partition)])
            self._consumer.incremental_assign([TopicPartition(*partition, offset)])
            return
        # The eager protocol assigns all partitions together: the others continue at their position.
        others = [TopicPartition(*tp) for tp in self._assigned if tp != partition]
        places = [TopicPartition(*partition, offset)]
        for other in self._consumer.position(others):
            where = (other.topic, other.partition)
            begun = self._begun.get(where, OFFSET_END)
            # A negative position: nothing has been read yet.
            places.append(TopicPartition(*where, other.offset if other.offset >= 0 else begun))
        self._consumer.assign(places)
        still = self._paused | (self._assigned - self._begun.keys())
        if still:
            self._consumer.pause([TopicPartition(*tp) for tp in still])

    def pause(self, partitions: Sequence[ports.TopicPartition]) -> None:
        """Stop fetching these."""
        ours = [tp for tp in partitions if tp in self._assigned]
        self._paused.update(ours)
        if ours:
            self._consumer.pause([TopicPartition(*tp) for tp in ours])

    def resume(self, partitions: Sequence[ports.TopicPartition]) -> None:
        """Continue to fetch these."""
        ours = [tp for tp in partitions if tp in self._assigned]
        self._paused.difference_update(ours)
        if ours:
            self._consumer.resume([TopicPartition(*tp) for tp in ours])

    # -- records ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `poll` return soon."""
        self._wakeable.wake()

    def poll(self, timeout_s: float, records_max: int = ports.POLL_RECORDS_MAX) -> ports.Polled:
        """Serve callbacks and fetch."""
        self._wakeable.wait(timeout_s)
        messages = self._consumer.consume(records_max, 0)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        refusals = self._refusals
        polled = ports.Polled(coordinator=refusals.coordinator, connection=refusals.connection)
        refusals.coordinator = refusals.connection = ""
        if messages:
            self._refusals.served()
            if any(map(Message.error, messages)):
                errors = [message for message in messages if message.error()]
                messages = [message for message in messages if not message.error()]
                for message in errors:
                    self._take_error(message, polled)
            if messages:
                polled.batches = batches_of(messages, self._only_topic)
        elif refusal := self._refusals.lasting():
            self._refusals.served()  # so that it is reported once
            polled.problems.append(ports.Problem("stop", *refusal))
        if self._unanswered or self._early:
            polled.commits += self._answers(0.0)
        return polled

    def _take_error(self, message: Message, polled: ports.Polled) -> None:
        error = message.error()
        assert error is not None
        code, topic, partition = error.code(), message.topic(), message.partition()
        if topic is not None and partition is not None and partition >= 0:
            if code == KafkaError._PARTITION_EOF:  # noqa: SLF001  # a public constant
                polled.ends.append((topic, partition, message.offset() or 0))
                return
            if code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # a public constant
                self.pause([(topic, partition)])
                polled.out_of_range.append((topic, partition))
                return
        where = f"{topic}[{partition}]: " if topic else ""
        cause = root_cause(self._consumer, error)
        text = where + self._reason(cause)
        verdict = poll_verdict(cause.code())
        action: ports.Action = "stop" if verdict == "stop" or cause.fatal() else "log"
        # That a place is free again soon outweighs "fatal".
        if verdict == "rejoin" or self._of_former(cause.code()):
            action = "recreate"
        polled.problems.append(ports.Problem(action, cause.name(), text))

    def _of_former(self, code: int) -> bool:
        """Whether it fences a former membership of this run, which the consumer replaces."""
        return self._own_id and code == KafkaError.FENCED_INSTANCE_ID

    def _reason(self, error: KafkaError) -> str:
        """The error's text, with the instance id if it is about that."""
        if error.code() != KafkaError.FENCED_INSTANCE_ID:
            return error_text(error)
        return (
            f"group.instance.id={self._instance_id!r} is in use by another member: give each "
            f"member its own ({error.str()})"
        )

    # -- commits -----------------------------------------------------------------------------------

    def commit(self, offsets: Sequence[ports.ToCommit]) -> int:
        """Send a commit."""
        token = self._commits.send(offsets)
        self._unanswered += 1
        return token

    def commit_and_wait(
        self, offsets: Sequence[ports.ToCommit], timeout_s: float
    ) -> list[ports.CommitAnswer]:
        """Send a commit and wait for its answer, and for no other."""
        token = self.commit(offsets)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            answers = self._answered(left_s)
            self._early += [answer for answer in answers if answer.token != token]
            if own := [answer for answer in answers if answer.token == token]:
                return own
        return []

    def commit_answers(self, timeout_s: float) -> list[ports.CommitAnswer]:
        """Answers to commits sent before, for use inside a rebalance callback."""
        return self._answers(timeout_s)

    def _answers(self, timeout_s: float) -> list[ports.CommitAnswer]:
        early, self._early = self._early, []
        return early + self._answered(0.0 if early else timeout_s)

    def _answered(self, timeout_s: float) -> list[ports.CommitAnswer]:
        answers: list[ports.CommitAnswer] = []
        for answer in self._commits.poll(timeout_s):
            # Failed as a whole: no partition has its own result.
            whole = 0 if any(one.error for one in answer.partitions) else answer.error
            self._unanswered -= 1
            if not answer.error:
                self._refusals.served()
            for one in answer.partitions:
                code = one.error or whole
                verdict = "gone" if self._of_former(code) else commit_verdict(code)
                reason = "" if verdict == "stored" else self._reason(KafkaError(code))
                answers.append(
                    ports.CommitAnswer(answer.token, one.topic, one.partition, verdict, reason)
                )
        return answers

    # -- what the broker knows ---------------------------------------------------------------------

    def membership(self) -> clib.GroupMetadata:
        """This member's current membership of the group."""
        return clib.GroupMetadata(self._consumer)

    def log_ends(self) -> dict[ports.TopicPartition, int]:
        """Last known ends of the assigned partitions."""
        ends = {}
        for where in self._assigned:
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*where), cached=True)
            except KafkaException:
                continue  # not known yet
            if high >= 0:
                ends[where] = high
        return ends

    # -- the end -----------------------------------------------------------------------------------

    def leave(self, timeout_s: float, left_s: ports.LeftS = ports.no_hurry) -> None:
        """Leave the group and close; only closing would leave a dead member if it is static."""
        if self._left:
            return
        deadline = time.monotonic() + timeout_s

        def waits(until: float = deadline) -> bool:
            return time.monotonic() < min(until, deadline) and left_s() > 0

        try:
            # Wait until the broker has answered a join, because until then a member cannot leave.
            until = time.monotonic() + JOIN_END_S
            self._leaving = self._joining  # so what the join brings is given up immediately
            while self._joining and waits(until):
                # Under KIP-848 a member without partitions gets no assignment, but an epoch.
                if self._kip848 and self.membership().generation > 0:
                    break
                self.poll(0.05)
            self._leaving = True
            self._consumer.unsubscribe()
            # A classic member loses its id when it leaves; if closed earlier, it may stay.
            member = (lambda: None) if self._kip848 else self._consumer.memberid
            while (self._assigned or member()) and waits():
                self.poll(0.02)
        except (KafkaException, RuntimeError) as error:
            _log.warning("leaving the group failed: %s", error)
        self._left = True
        self._closing = True
        self._assigned.clear()
        self._commits.close()
        self._wakeable.close()
        # Without brokers, close() may wait for its own time-outs: not within this deadline.
        closing = guard.thread("perkey-close", self._close)
        closing.start()
        closing.join(CLOSE_LEAST_S)
        while closing.is_alive() and waits():
            closing.join(0.05)
        if closing.is_alive():
            _log.warning("the Kafka consumer did not close in time; left behind")
            if isinstance(self._log, ClientLog):
                self._log.muted = True  # it would log its lost connections forever

    def _close(self) -> None:
        with self._asking:  # no query may run while the client closes
            self._asking.wait_for(lambda: not self._queries)
        self._consumer.close()
