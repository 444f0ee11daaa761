"""librdkafka's own functions through ctypes: commits with metadata, their answers, wake-ups.

confluent-kafka's public calls append a NUL to commit metadata when they write it and read
past the end of what others wrote, so everything that carries metadata goes through here
with explicit sizes. So does what Python has no call for: commits answered on a separate queue
(also inside a rebalance callback), and the signals of `WakeableQueue`.

If the library cannot be reached, ``library()`` reports what to install.
Names and types are those of librdkafka's public header, ``rdkafka.h``.
"""

import ctypes
import os
import select
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Self

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, cimpl

from perkey.errors import ConfigError
from perkey.kafka.ports import CommitReply, CommittedOffset, ToCommit

#: Type of the only event a commit queue gets: RD_KAFKA_EVENT_OFFSET_COMMIT.
_EVENT_OFFSET_COMMIT = 0x20

#: librdkafka's "no offset": nothing is committed.
_OFFSET_INVALID = -1001

#: Longest single wait in C, so that an interrupt is never delayed longer.
WAIT_MAX_S = 3600.0


class Partition(Structure):
    """rd_kafka_topic_partition_t."""

    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    )


class _PartitionList(Structure):
    """rd_kafka_topic_partition_list_t."""

    _fields_ = (("cnt", c_int), ("size", c_int), ("elems", POINTER(Partition)))


_ListPointer = POINTER(_PartitionList)

#: Every function used: its result type and its argument types.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_name": (c_char_p, (c_void_p,)),
    "rd_kafka_version": (c_int, ()),
    "rd_kafka_fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "rd_kafka_conf_properties_show": (None, (c_void_p,)),
    "rd_kafka_topic_partition_list_new": (_ListPointer, (c_int,)),
    "rd_kafka_topic_partition_list_add": (
        POINTER(Partition),
        (_ListPointer, c_char_p, c_int32),
    ),
    "rd_kafka_topic_partition_list_destroy": (None, (_ListPointer,)),
    "rd_kafka_topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "rd_kafka_topic_destroy": (None, (c_void_p,)),
    "rd_kafka_metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)),
    "rd_kafka_metadata_destroy": (None, (c_void_p,)),
    "rd_kafka_committed": (c_int, (c_void_p, _ListPointer, c_int)),
    "rd_kafka_commit_queue": (c_int, (c_void_p, _ListPointer, c_void_p, c_void_p, c_void_p)),
    "rd_kafka_queue_new": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_get_consumer": (c_void_p, (c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c_void_p,)),
    "rd_kafka_queue_length": (c_size_t, (c_void_p,)),
    "rd_kafka_queue_io_event_enable": (None, (c_void_p, c_int, c_char_p, c_size_t)),
    "rd_kafka_queue_poll": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_event_type": (c_int, (c_void_p,)),
    "rd_kafka_event_error": (c_int, (c_void_p,)),
    "rd_kafka_event_opaque": (c_void_p, (c_void_p,)),
    "rd_kafka_event_topic_partition_list": (_ListPointer, (c_void_p,)),
    "rd_kafka_event_destroy": (None, (c_void_p,)),
    "rd_kafka_consumer_group_metadata": (c_void_p, (c_void_p,)),
    "rd_kafka_consumer_group_metadata_generation_id": (c_int, (c_void_p,)),
    "rd_kafka_consumer_group_metadata_destroy": (None, (c_void_p,)),
    "rd_kafka_send_offsets_to_transaction": (
        c_void_p,
        (c_void_p, _ListPointer, c_void_p, c_int),
    ),
    "rd_kafka_error_code": (c_int, (c_void_p,)),
    "rd_kafka_error_string": (c_char_p, (c_void_p,)),
    "rd_kafka_error_is_fatal": (c_int, (c_void_p,)),
    "rd_kafka_error_is_retriable": (c_int, (c_void_p,)),
    "rd_kafka_error_txn_requires_abort": (c_int, (c_void_p,)),
    "rd_kafka_error_destroy": (None, (c_void_p,)),
}


def declared(loaded: Any, signatures: Mapping[str, tuple[Any, tuple[Any, ...]]]) -> Any:
    """The library, with the types of these functions: name -> (result, arguments)."""
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def library() -> Any:
    """The librdkafka that confluent-kafka loaded, with declared types.

    Raises ConfigError if it is out of reach: there is no fallback, as confluent-kafka's public
    calls write maps that the Java Parallel Consumer cannot read.
    """
    if not available():
        raise ConfigError(
            "librdkafka cannot be called inside this build of confluent-kafka: install its wheel "
            "(pip install --force-reinstall --only-binary :all: confluent-kafka), on Linux or macOS"
        )
    return _loaded()


@cache
def _loaded() -> Any:
    """The library, or None.

    Names are looked up through confluent-kafka's own extension module: the dynamic linker
    searches what that was linked with, so this is the very copy that made the handles,
    whether it came inside the wheel or with the system.
    """
    try:
        loaded = declared(ctypes.CDLL(cimpl.__file__), _SIGNATURES)
        same = loaded.rd_kafka_version() == confluent_kafka.libversion()[1]
    except (OSError, AttributeError):
        return None
    return loaded if same else None


#: the C library's: librdkafka frees metadata with the matching free
_malloc = declared(ctypes.CDLL(None), {"malloc": (c_void_p, (c_size_t,))}).malloc


def version() -> str:
    """The version of librdkafka."""
    return str(confluent_kafka.libversion()[0])


def available() -> bool:
    """Whether librdkafka can be called."""
    return os.name == "posix" and _loaded() is not None


@cache
def properties_table() -> str:
    """The table of properties as librdkafka prints it, in Markdown.

    It prints to a C stream only, so it is given one that collects into memory.
    """
    show = library().rd_kafka_conf_properties_show
    libc, text, size = ctypes.CDLL(None), c_void_p(), c_size_t()
    libc.open_memstream.restype = c_void_p
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    if not stream:
        raise MemoryError("no memory for librdkafka's table of properties")
    show(stream)
    libc.fclose(c_void_p(stream))
    try:
        return ctypes.string_at(text, size.value).decode()
    finally:
        libc.free(text)


def handle(client: Consumer | Producer) -> int:
    """The ``rd_kafka_t`` pointer of a client; RuntimeError when it is closed.

    confluent-kafka keeps it as the first field behind the object header. It is read again for
    every call, because closing a client sets it to NULL.
    """
    rk = c_void_p.from_address(id(client) + object.__basicsize__).value
    if rk is None:
        raise RuntimeError("the Kafka client is closed")
    kind = library().rd_kafka_name(rk).rpartition(b"#")[2].partition(b"-")[0]
    assert kind in (b"consumer", b"producer"), "confluent-kafka's object layout has changed"
    return rk


def fatal_error(client: Consumer | Producer) -> KafkaError | None:
    """The fatal error of a client, if it has one; elsewhere it is only reported as "_FATAL"."""
    text = ctypes.create_string_buffer(512)
    code = library().rd_kafka_fatal_error(handle(client), text, len(text))
    return KafkaError(code, text.value.decode("utf-8", "replace"), True) if code else None


def _ms(timeout_s: float) -> int:
    """Milliseconds for C, rounded up so that a short wait does not become a busy loop."""
    return -int(-min(max(timeout_s, 0.0), WAIT_MAX_S) * 1000 // 1)


@contextmanager
def partition_list(size: int) -> Iterator[Any]:
    """An empty partition list, destroyed (with its metadata) on exit."""
    partitions = library().rd_kafka_topic_partition_list_new(size)
    try:
        yield partitions
    finally:
        library().rd_kafka_topic_partition_list_destroy(partitions)


def _add(partitions: Any, offset: ToCommit) -> None:
    add = library().rd_kafka_topic_partition_list_add
    element = add(partitions, offset.topic.encode(), offset.partition).contents
    element.offset = offset.offset
    data = offset.metadata.encode()
    if not data:
        return
    # The NUL behind is not counted in the size: the broker must not see it, but paths
    # back through confluent-kafka's Python objects read on to the first NUL.
    memory = _malloc(len(data) + 1)
    if memory is None:
        raise MemoryError(f"no {len(data) + 1} bytes for commit metadata")
    ctypes.memmove(memory, data + b"\x00", len(data) + 1)
    element.metadata, element.metadata_size = memory, len(data)


def _read(partitions: Any) -> tuple[CommittedOffset, ...]:
    """The elements of a partition list (which may be NULL) as plain data."""
    if not partitions:
        return ()
    content, offsets = partitions.contents, []
    for place in range(content.cnt):
        element, data = content.elems[place], b""
        if (
            element.metadata and element.metadata_size
        ):  # by its stated size, never by a search for its end
            data = ctypes.string_at(element.metadata, element.metadata_size)
        topic, metadata = element.topic.decode(), data.decode("utf-8", "replace")
        offset = None if element.offset < 0 else element.offset
        offsets.append(CommittedOffset(topic, element.partition, offset, metadata, element.err))
    return tuple(offsets)


def committed(
    consumer: Consumer, partitions: Sequence[tuple[str, int]], timeout_s: float
) -> list[CommittedOffset]:
    """What the consumer's group has committed for these partitions, metadata exact.

    Blocks, up to ``timeout_s``: not for the polling thread. Raises KafkaException when the
    whole request failed; a single partition's error is in its ``error``.
    """
    rk = handle(consumer)
    with partition_list(len(partitions)) as asked:
        for topic, partition in partitions:
            _add(asked, ToCommit(topic, partition, _OFFSET_INVALID))
        error = library().rd_kafka_committed(rk, asked, _ms(timeout_s))
        if error:
            raise KafkaException(KafkaError(error))
        return list(_read(asked))


def refresh_metadata(client: Consumer, topic: str | None, timeout_s: float) -> None:
    """Make the client look up the leaders of a topic, or of all topics. Raises KafkaException.

    Blocks, up to ``timeout_s``. Also within a rebalance callback: ``list_topics()`` there takes the
    thread's state from the ``consume()`` that runs the callback, and the next callback of that
    ``consume()`` aborts the process (confluent-kafka 2.16: ``CallState_get: Assertion``).
    """
    calls, rk, leader = library(), handle(client), c_void_p()
    topic_handle = None if topic is None else calls.rd_kafka_topic_new(rk, topic.encode(), None)
    try:
        every = int(topic is None)
        error = calls.rd_kafka_metadata(
            rk, every, topic_handle, ctypes.byref(leader), _ms(timeout_s)
        )
    finally:
        if topic_handle is not None:
            calls.rd_kafka_topic_destroy(topic_handle)
    if error:
        raise KafkaException(KafkaError(error))
    calls.rd_kafka_metadata_destroy(leader)


class CommitQueue:
    """Asynchronous commits of one consumer, answered on a separate queue.

    Works inside a rebalance callback too, where confluent-kafka's ``on_commit`` is not
    served. Not thread-safe. Close it before the consumer.
    """

    def __init__(self, consumer: Consumer) -> None:
        """A queue for this consumer's commits."""
        self._consumer = consumer
        self._queue: int | None = library().rd_kafka_queue_new(handle(consumer))
        self._token = 0

    def send(self, offsets: Sequence[tuple[str, int, int, str]]) -> int:
        """Start a commit and return immediately with the token of its answer.

        Raises KafkaException if librdkafka does not even queue it, RuntimeError after a
        close.
        """
        assert offsets, "a commit of nothing would commit librdkafka's own stored offsets"
        rk, queue = handle(self._consumer), self._open()
        token = self._token + 1
        with partition_list(len(offsets)) as to_commit:
            for offset in offsets:
                _add(to_commit, ToCommit(*offset))
            error = library().rd_kafka_commit_queue(rk, to_commit, queue, None, token)
        if error:
            raise KafkaException(KafkaError(error))
        self._token = token
        return token

    def signal(self, wakeable: Any) -> None:
        """Make an answer end the wait on this WakeableQueue."""
        wakeable.also(self._open())

    def poll(self, timeout_s: float) -> list[CommitReply]:
        """All available answers; waits up to ``timeout_s`` for the first."""
        answers: list[CommitReply] = []
        wait_ms = _ms(timeout_s)
        while event := library().rd_kafka_queue_poll(self._open(), wait_ms):
            wait_ms = 0
            # An event that is not destroyed makes Consumer.close() hang for ever.
            try:
                if library().rd_kafka_event_type(event) == _EVENT_OFFSET_COMMIT:
                    # A commit event as plain data; it points into the event, so copy before
                    # destroying.
                    calls = library()
                    partitions = _read(calls.rd_kafka_event_topic_partition_list(event))
                    error = calls.rd_kafka_event_error(event)
                    first_failed = next(
                        (partition.error for partition in partitions if partition.error), 0
                    )
                    token = calls.rd_kafka_event_opaque(event) or 0
                    answers.append(CommitReply(token, error or first_failed, partitions))
            finally:
                library().rd_kafka_event_destroy(event)
        return answers

    def close(self) -> None:
        """Destroy the queue with its unread answers. May be called again."""
        queue, self._queue = self._queue, None
        if queue is not None:
            library().rd_kafka_queue_destroy(queue)

    def _open(self) -> int:
        if self._queue is None:
            raise RuntimeError("the commit queue is closed")
        return self._queue


class GroupMetadata:
    """A consumer's membership (member id, generation) at one moment, for one transaction.

    It must be taken together with the snapshot whose offsets the transaction carries: one taken
    later would not be fenced for partitions lost in between.
    """

    def __init__(self, consumer: Consumer) -> None:
        """The membership now."""
        pointer = library().rd_kafka_consumer_group_metadata(handle(consumer))
        if not pointer:
            raise RuntimeError("the consumer is not a member of a group")
        self.pointer: int | None = pointer

    @property
    def generation(self) -> int:
        """The group's generation as the consumer knows it; -1 if unknown."""
        return int(library().rd_kafka_consumer_group_metadata_generation_id(self.pointer))

    def close(self) -> None:
        """Free it. May be called again."""
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            library().rd_kafka_consumer_group_metadata_destroy(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Free it if the last owner did not."""
        if getattr(self, "pointer", None) is not None:
            self.close()


def send_offsets_to_transaction(
    producer: Producer,
    offsets: Sequence[tuple[str, int, int, str]],
    membership: GroupMetadata,
    timeout_s: float,
) -> None:
    """Put offsets and metadata into the producer's open transaction.

    Blocks, up to ``timeout_s``. Raises KafkaException whose KafkaError has the flags: retriable,
    abort required, or fatal.
    """
    if membership.pointer is None:
        raise RuntimeError("the group metadata is closed")
    rk = handle(producer)
    with partition_list(len(offsets)) as to_commit:
        for offset in offsets:
            _add(to_commit, ToCommit(*offset))
        send = library().rd_kafka_send_offsets_to_transaction
        error = send(rk, to_commit, membership.pointer, _ms(timeout_s))
    if error:
        raise KafkaException(take_error(error))


def take_error(error: int) -> KafkaError:
    """confluent-kafka's KafkaError with the flags of a rd_kafka_error_t, which is freed."""
    calls = library()
    try:
        return KafkaError(
            calls.rd_kafka_error_code(error),
            calls.rd_kafka_error_string(error).decode("utf-8", "replace"),
            bool(calls.rd_kafka_error_is_fatal(error)),
            bool(calls.rd_kafka_error_is_retriable(error)),
            bool(calls.rd_kafka_error_txn_requires_abort(error)),
        )
    finally:
        calls.rd_kafka_error_destroy(error)


class WakeableQueue:
    """One wait for events of librdkafka and wake-ups of Perkey's threads.

    The polling thread calls ``wait(timeout_s)`` and then ``consumer.consume(n, 0)``; any
    thread may call ``wake()``. Close it before the consumer.
    """

    def __init__(self, consumer: Consumer) -> None:
        """Make librdkafka write to a pipe when the consumer's queue gets work."""
        work: int = library().rd_kafka_queue_get_consumer(handle(consumer))
        self._closing = threading.Lock()
        self._readable, self._writable = os.pipe()
        # Not select(): it refuses descriptors from 1,024 on, and handlers may hold thousands.
        self._poller = select.poll()
        self._poller.register(self._readable, select.POLLIN)
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._queue: int | None = work
        library().rd_kafka_queue_io_event_enable(self._queue, self._writable, b"k", 1)

    def also(self, queue: int) -> None:
        """Make another queue of this client, such as that of commit answers, end a wait too."""
        library().rd_kafka_queue_io_event_enable(queue, self._writable, b"w", 1)

    def wake(self) -> None:
        """Make the waiting thread return, or its next wait. Thread-safe, never blocks.

        After a close it does nothing: without the lock, the descriptor could be closed and
        reused for another file between the check and the write.
        """
        with self._closing, suppress(BlockingIOError):  # Full of unread wake-ups.
            if self._queue is not None:
                os.write(self._writable, b"w")

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to consume or a wake-up; True if so.

        librdkafka signals only when its queue was empty. So the pipe is emptied first and the
        queue's length read afterwards: earlier records show in the length, later ones in the
        pipe, and none is missed.
        """
        if self._drain() or library().rd_kafka_queue_length(self._queue):
            return True
        return bool(self._poller.poll(max(timeout_s, 0.0) * 1000))

    def close(self) -> None:
        """Stop the signals and free the queue. May be called again.

        Queues given to ``also`` must be closed before: they would continue writing.
        """
        with self._closing:
            queue, self._queue = self._queue, None
            if queue is None:
                return
            library().rd_kafka_queue_io_event_enable(queue, -1, None, 0)
            library().rd_kafka_queue_destroy(queue)
            os.close(self._readable)
            os.close(self._writable)

    def _drain(self) -> bool:
        """Empty the pipe; whether one of Perkey's own wake-ups was in it."""
        woken = False
        while True:
            try:
                signals = os.read(self._readable, 4096)
            except BlockingIOError:
                return woken
            woken = woken or b"w" in signals
