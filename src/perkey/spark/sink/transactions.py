"""Transactions in Kafka, for the steps of `protocol`.

Each task has a transactional id, and a consumer group of the same name, whose offset is its marker:
the number of the batch, and what was written. The query has one of both, too, without a number: its
group has the shared marker, with the place of the repeated rows in every partition.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from random import uniform
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from perkey.kafka.admin import list_offsets
from perkey.spark.sink import protocol as p
from perkey.spark.sink.columns import Packed, Rows, hashes_of, packed_of, rows_of
from perkey.spark.sink.options import SinkOptions
from perkey.spark.sink.plain import TOPIC_WAIT_S, Sending, until
from perkey.spark.sink.protocol import Place, SinkError
from perkey.spark.source.cluster import (
    LATE_S,
    LOG_END,
    admin_client,
    committed_of,
    consumer_of,
    error_text,
    may_come_back,
    request_timeout_s,
)
from perkey.spark.source.errors import FENCED, MISSING_TOPIC
from perkey.spark.source.fetch import FetchSettings, open_fetch
from perkey.spark.source.ranges import OffsetRange

log = logging.getLogger("perkey.spark.sink")

#: how long one task tries to reach the brokers for one step
STEP_S = 300.0
PAUSE_S = 0.25
#: the broker aborts a transaction that is open for longer; tasks may take long
TRANSACTION_TIMEOUT_MS = 300_000
#: the shared marker cannot be read while a transaction with it is open
MARKER_TIMEOUT_MS = 20_000
#: the topic for markers if the rows' topics are in a column
ANY_TOPIC = "__consumer_offsets"
#: brokers store 4,096 characters of metadata
MARKER_CHARS_MAX = 4_000
RETIRE_THREADS = 8
#: rows read while the brokers open a transaction, which takes 40 ms
AHEAD_BYTES = 16 * 2**20
T = TypeVar("T")


class Chunk:
    """The rows of an Arrow batch, for the protocol."""

    def __init__(self, batch: pa.RecordBatch, options: SinkOptions) -> None:
        self._batch, self._options = batch, options

    @cached_property
    def rows(self) -> Rows:
        """Their columns."""
        return rows_of(self._batch, self._options.topic)

    @property
    def topics(self) -> set[str]:
        """Their topics."""
        given = self._options.topic
        return set(self.rows.topics) if given is None else {given}

    @cached_property
    def sums(self) -> p.Sums:
        """Their sums."""
        count = self._batch.num_rows
        hashes = np.zeros(count, np.uint64)
        keys = None
        for name in ("key", "value") if count else ():
            if name in self._batch.schema.names:
                hashes = hashes_of(self._batch.column(name), hashes)
                keys = int(hashes.sum()) if keys is None else keys
        return p.Sums(count, keys or 0, int(hashes.sum()))

    @property
    def size_bytes(self) -> int:
        """Their size in memory."""
        size: int = self._batch.nbytes
        return size

    def sendable(self) -> Packed | Rows:
        """As they are sent fastest."""
        return packed_of(self._batch, self._options) or self.rows

    def digests(self) -> list[int]:
        """One per row; a partition counts if the row chose it."""
        return digests_of(self.rows)

    def without(self, known: Sequence[bool]) -> Chunk:
        """The rows that are not known."""
        return Chunk(self._batch.filter(pc.invert(pa.array(known))), self._options)


class Chunks(Iterator[Chunk]):
    """The chunks of a task."""

    def __init__(self, batches: Iterable[pa.RecordBatch], options: SinkOptions) -> None:
        self._all = (Chunk(batch, options) for batch in batches if batch.num_rows)
        self._ahead: deque[Chunk] = deque()
        self._ahead_bytes = 0

    def __next__(self) -> Chunk:
        return self._ahead.popleft() if self._ahead else next(self._all)

    def read_ahead(self) -> bool:
        """Read the next one and add up its rows; False if there is none, or they are enough."""
        chunk = next(self._all, None) if self._ahead_bytes < AHEAD_BYTES else None
        if chunk is None:
            return False
        self._ahead.append(chunk)
        self._ahead_bytes += chunk.size_bytes
        return bool(chunk.sums.rows)


def digests_of(rows: Rows) -> list[int]:
    """A digest of each row."""
    none = [None] * len(rows.topics)
    partitions, headers = rows.partitions or [-1] * len(none), rows.headers or none
    columns = rows.topics, rows.values, rows.keys, partitions, headers
    return list(map(digest, *columns))


def digest(topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any) -> int:
    """A 64-bit digest of a row."""
    parts = [topic.encode(), b"%d" % partition, key, value]
    for name, content in headers or ():
        parts += [name.encode(), content]
    text = b"".join([b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts])
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def write_transaction(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, query: str, task: p.Task
) -> p.Written:
    """Write the rows of one task that are not in Kafka yet, in one transaction."""
    chunks = Chunks(batches, options)
    with clients(options, query, task, chunks.read_ahead) as client:
        written: p.Written = client.run(p.write_steps(task, chunks))
    if written.new < written.rows:
        log.warning(
            "batch %d: %d of %d rows of task %d were in Kafka before",
            task.batch, written.rows - written.new, written.rows, task.number,
        )  # fmt: skip
    return written


def finish_batch(options: SinkOptions, query: str, batch: int, tasks: Iterable[p.Written]) -> None:
    """On the driver, after all tasks: the batch is in Kafka."""
    with clients(options, query, p.Task(0, batch, "")) as client:
        client.run(p.finish_steps(batch, tasks))


@contextmanager
def clients(
    options: SinkOptions, query: str, task: p.Task, *meanwhile: Callable[[], bool]
) -> Iterator[Client]:
    """The clients of one task or hook."""
    client = Client(options, query, task, *meanwhile)
    try:
        yield client
    except BaseException:
        client.close(failed=True)
        raise
    client.close()


class Client:
    """Performs the steps of one task, or of the end of a batch."""

    def __init__(
        self,
        options: SinkOptions,
        query: str,
        task: p.Task,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options, self._query, self._task = options, query, task
        #: called again and again while the brokers open a transaction, until it returns False
        self._meanwhile = meanwhile
        self._marker_topic = options.topic or ANY_TOPIC
        self._sending: Sending | None = None
        self._has_begun = False
        self._holder: Sending | None = None
        self._readers: dict[str, Consumer] = {}
        self._kept_admin: AdminClient | None = None
        self._last_error = ""

    def run(self, steps: p.Steps[T]) -> T:
        """Run all of the steps."""
        answer: Any = None
        while True:
            try:
                ask = steps.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = self._answer(ask)

    def close(self, *, failed: bool = False) -> None:
        """Close; an open transaction is left to the next attempt, or to its time-out."""
        for sending in (self._sending, self._holder):
            if sending is not None and failed:
                sending.give_up()
        for reader in self._readers.values():
            reader.close()

    def _answer(self, ask: Any) -> Any:  # one line for each step
        match ask:
            case p.Open():
                id_ = self._task_id(self._task.number)
                with ThreadPoolExecutor(1, "perkey-open") as pool:
                    opening = pool.submit(self._opened, id_)
                    while not opening.done() and self._meanwhile():
                        pass
                self._sending, self._has_begun = opening.result(), False
            case p.Lock():
                self._admin()  # connects meanwhile
                self._holder = self._opened(self._query, MARKER_TIMEOUT_MS)
            case p.ReadOwn():
                mark = (self._marker_topic, 0)
                return own_of(self._committed(self._task_id(self._task.number), [mark])[0])
            case p.ReadShared(spans):
                return self._shared(spans=spans)
            case p.Save(shared, extra):
                return self._saved(shared, extra)
            case p.Retire(slots):
                return self._retired(slots)
            case p.Ends(topics):
                return self._ends(topics)
            case p.ReadWindow(shared):
                found = [digests for *digests, _ in self._window(shared)]
                return p.Window(chain.from_iterable(found), len(found))
            case p.ReadRows(shared, copies):
                return self._rows(shared, copies)
            case p.Send(chunk):
                assert self._sending is not None, "opened first"
                if not self._has_begun:
                    self._sending.producer.begin_transaction()
                    self._has_begun = True
                self._sending.send(chunk.sendable())
            case p.Commit(own):
                assert self._sending is not None, "opened first"
                text = f"{own.era} {own.wrote} {own.sums.rows} {own.sums.keys} {own.sums.whole};"
                end = TopicPartition(self._marker_topic, 0, own.batch + 1, metadata=text)
                self._end(self._sending, self._task_id(self._task.number), [end])
            case p.Pause():
                time.sleep(uniform(0.5, 1.5) * PAUSE_S)
        return None

    # -- producers ---------------------------------------------------------------------------------

    def _task_id(self, number: int) -> str:
        return f"{self._query}-{number}"

    def _opened(self, id_: str, timeout_ms: int | None = None) -> Sending:
        config: dict[str, Any] = {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        config |= self._options.kafka
        if timeout_ms is not None:
            config |= {
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "socket.timeout.ms": timeout_ms,
            }
        sending = Sending(self._options, **config, **{"transactional.id": id_})
        for group in {id_, self._query} if self._task.session is not None else {id_}:
            self._reader(group)  # connects meanwhile
        # A producer without a connection looks for its coordinator again after 500 ms. The first
        # answer comes from a connection to a bootstrap server, which is closed then.
        for _ in range(2):
            self._again(lambda left: sending.producer.list_topics(self._marker_topic, left))
        self._again(sending.producer.init_transactions)
        return sending

    def _end(self, sending: Sending, group: str, marks: list[TopicPartition]) -> None:
        """Commit the transaction with these offsets."""
        metadata = self._reader(group).consumer_group_metadata()
        send = sending.producer.send_offsets_to_transaction
        self._again(lambda timeout_s: send(marks, metadata, timeout_s))
        sending.flush()
        self._again(sending.producer.commit_transaction)

    def _saved(self, shared: p.Shared, extra: Rows | None) -> bool:
        assert self._holder is not None, "locked first"
        marks = marks_of(shared, self._marker_topic)
        try:
            self._holder.producer.begin_transaction()
            if extra:
                self._holder.send(extra)
            self._end(self._holder, self._query, marks)
        except FencedError:
            return False
        except KafkaException as error:
            if error.args[0].code() in FENCED:
                return False
            raise self._failed(error) from None
        return True

    def _retired(self, slots: int) -> list[p.Own]:
        def retire(number: int) -> p.Own:
            task = self._task._replace(number=number, session=None)
            with clients(self._options, self._query, task) as other:
                other.run(_steps(p.Open()))
                own: p.Own = other.run(_steps(p.ReadOwn()))
                return own

        with ThreadPoolExecutor(RETIRE_THREADS, "perkey-retire") as pool:
            return list(pool.map(retire, range(slots)))

    # -- markers -----------------------------------------------------------------------------------

    def _reader(self, group: str) -> Consumer:
        """A consumer that reads the offsets of a group; it does not join."""
        if group not in self._readers:
            committed = {"isolation.level": "read_committed", "log_level": 0}
            self._readers[group] = consumer_of(group, self._options.kafka, committed)
        return self._readers[group]

    def _committed(self, group: str, places: Iterable[Place]) -> list[TopicPartition]:
        """Committed offsets; waits for open transactions with offsets of this group."""
        asked, reader = list(places), self._reader(group)
        found: list[TopicPartition] = self._again(lambda left: committed_of(reader, asked, left))
        return found

    def _shared(self, *, spans: bool) -> p.Shared:
        places: list[Place] = [(self._marker_topic, 0)]
        while True:
            found = self._committed(self._query, places)
            shared, needed = shared_of(found, self._marker_topic)
            if not spans or needed.issubset(places):
                return shared
            places = sorted({*needed, *places})

    # -- logs --------------------------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        if self._kept_admin is None:
            self._kept_admin = admin_client(self._options.kafka, self._on_error)
        return self._kept_admin

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()

    def _ends(
        self, topics: Iterable[str], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[Place, int]:
        places = [place for topic in sorted(topics) for place in self._partitions(topic)]
        if not places:
            return {}
        timeout_s = request_timeout_s(self._options.kafka)

        def asked(_: float) -> dict[Place, int]:
            ends = dict.fromkeys(places, LOG_END)
            return list_offsets(self._admin(), ends, isolation, timeout_s, late_s=LATE_S)

        ends: dict[Place, int] = self._again(asked)
        return ends

    def _partitions(self, topic: str) -> list[Place]:
        """Empty if the topic does not exist, and querying it does not create it."""

        def asked(timeout_s: float) -> list[Place]:
            ask = self._sending.producer if self._sending else self._admin()
            found = ask.list_topics(topic, timeout_s).topics[topic]
            if found.error is not None and found.error.code() not in MISSING_TOPIC:
                raise KafkaException(found.error)
            return [(topic, partition) for partition in found.partitions]

        deadline = time.monotonic() + TOPIC_WAIT_S
        while not (places := self._again(asked)) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return list(places)

    def _window(self, shared: p.Shared) -> Iterator[tuple[int, int, Message]]:
        """The committed rows in the marker's spans; as rows with and without a chosen partition."""
        self._wait_for_others(shared)
        kafka = {**self._options.kafka, "isolation.level": "read_committed", "log_level": "0"}
        settings = FetchSettings(
            kafka, self._query, fail_on_data_loss=False, poll_timeout_s=120, poll_records=10_000
        )
        for (topic, partition), (start, end) in shared.spans.items():
            if start >= end:
                continue
            with open_fetch(OffsetRange(topic, partition, start, end), settings) as fetch:
                while messages := fetch.next_batch():
                    for message in messages:
                        row = topic, message.value(), message.key()
                        headers = message.headers()
                        yield digest(*row, -1, headers), digest(*row, partition, headers), message

    def _wait_for_others(self, shared: p.Shared) -> None:
        """Wait until no open transaction, of any producer, hides rows in the spans."""
        deadline = time.monotonic() + STEP_S
        while True:
            ends = self._ends(shared.topics, IsolationLevel.READ_COMMITTED)
            open_ = [
                at for at, (start, end) in shared.spans.items() if start < end > ends.get(at, 0)
            ]
            if not open_:
                return
            if time.monotonic() > deadline:
                raise SinkError(
                    f"batch {shared.batch} waits for a transaction of another producer that is open"
                    f" in {open_[0][0]}-{open_[0][1]} for {STEP_S:g} s: end that producer"
                )
            time.sleep(PAUSE_S)

    def _rows(self, shared: p.Shared, copies: Mapping[int, int]) -> Rows:
        found = {d: row for *both, row in self._window(shared) for d in both if d in copies}
        again = [found[d] for d, more in copies.items() for _ in range(more)]
        return Rows(
            [m.topic() or "" for m in again],
            [m.value() for m in again],
            [m.key() for m in again],
            [m.partition() or 0 for m in again],
            [m.headers() for m in again],
        )

    # -- errors ------------------------------------------------------------------------------------

    def _again(self, step: Callable[[float], Any]) -> Any:
        """The step's answer; repeated as long as that may help."""
        deadline = time.monotonic() + STEP_S
        while True:
            try:
                return step(min(30.0, until(deadline)))
            except (KafkaException, TimeoutError) as error:
                helps = isinstance(error, TimeoutError) or (
                    not error.args[0].fatal()
                    and (error.args[0].retriable() or may_come_back(error))
                )
                if time.monotonic() > deadline or not helps:
                    raise self._failed(error) from None
            self._kept_admin = None  # librdkafka's keeps the leaders it knows (`errors.NOT_READY`)
            time.sleep(PAUSE_S)

    def _failed(self, error: Exception) -> SinkError:
        where = f"batch {self._task.batch} ({self._task_id(self._task.number)})"
        kind = SinkError
        if isinstance(error, KafkaException) and error.args[0].code() in FENCED:
            kind = FencedError
        return kind(f"the transaction of {where} failed: {error_text(error)}")


class FencedError(SinkError):
    """Another client has opened the transactional id."""


def _steps(ask: Any) -> p.Steps[Any]:
    return (yield ask)


# -- markers as offsets ----------------------------------------------------------------------------


def marks_of(shared: p.Shared, marker_topic: str) -> list[TopicPartition]:
    """One offset per partition: the start of its span, with the end as metadata.

    The first offset of the marker's topic holds the rest. Each text has an end mark, as
    confluent-kafka may read past it.
    """
    sizes: dict[str, int] = {}
    for topic, partition in shared.spans:
        sizes[topic] = max(sizes.get(topic, 0), partition + 1)
    main = (marker_topic, 0)
    start, end = shared.spans.get(main, (0, 0))
    text = json.dumps([*shared._replace(spans={})[:-1], sizes, end], separators=(",", ":"))
    if len(text) > MARKER_CHARS_MAX:
        raise SinkError(
            f"one query writes to {len(sizes)} topics, more than its marker can hold: split the"
            " query, or write without transactional=true"
        )
    marks = [TopicPartition(*main, start, metadata=text)]
    for place, (first, last) in shared.spans.items():
        if place != main:
            marks.append(TopicPartition(*place, first, metadata=f"{last};"))
    return marks


def shared_of(marks: Iterable[TopicPartition], marker_topic: str) -> tuple[p.Shared, set[Place]]:
    """The marker, with the spans that were stored, and the places of all of them."""
    by_place = {(m.topic, m.partition): m for m in marks}
    main = by_place[marker_topic, 0]
    text = main.metadata or ""
    if main.offset < 0 or not text.startswith("["):
        return p.Shared(), set()
    *fields, sizes, end = json.JSONDecoder().raw_decode(text)[0]
    needed = {(topic, number) for topic, size in sizes.items() for number in range(size)}
    spans = dict.fromkeys(needed, (0, 0))
    for place in needed & by_place.keys():
        mark = by_place[place]
        if place == (marker_topic, 0):
            spans[place] = (mark.offset, end)
        elif mark.offset >= 0:
            spans[place] = (mark.offset, int((mark.metadata or "0").partition(";")[0]))
    return p.Shared._make([*fields, spans])._replace(past=tuple(fields[2])), needed


def own_of(mark: TopicPartition) -> p.Own:
    """The marker of a task."""
    if mark.offset < 0:
        return p.Own()
    era, wrote, *sums = map(int, (mark.metadata or "").partition(";")[0].split())
    return p.Own(mark.offset - 1, era, wrote, p.Sums(*sums))
