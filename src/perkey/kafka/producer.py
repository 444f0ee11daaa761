"""The idempotent producer for outputs and dead letters, as the runtime's ProducerPort.

A fatal error ends a librdkafka producer. confluent-kafka then raises from the next `poll` or
`flush`, once, and delivery callbacks in that same call run with the exception set: any C function
that they call may fail with SystemError. So each message is kept here until it is answered, and
messages that a failed producer has not reported go to the next one, in the same order.

A broker accepts or refuses whole batches, and librdkafka never splits one: a message that is too
large fails its whole batch. Messages that may have failed because of others are sent once more, one
per batch, and only those that fail then are refused.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from perkey import guard
from perkey.kafka.clientlog import Sparse
from perkey.kafka.failures import Refusals
from perkey.kafka.ports import Delivery, OutMessage
from perkey.kafka.verdicts import delivery_verdict
from perkey.types import ErrorInfo, Sent

_log = logging.getLogger("perkey.kafka")

SERVE_S = 0.05
RENEW_S = 1.0  # least time between two producers: one that breaks immediately must not spin
LOG_EVERY_S = 60.0
PURGE_S = 0.5
#: errors that a message may have because of others in its batch
IN_COMPANY = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001  # a public constant
    }
)
ALONE = {"batch.num.messages": 1, "linger.ms": 0}
LIVES = 3  # a message that was in this many broken producers has failed
#: what `poll` and `flush` raise after a fatal error, and never otherwise
FATAL = (KafkaException, SystemError)
_NOTHING: tuple[tuple[()]] = ((),)


class _Waiting(NamedTuple):
    """A message that is not answered yet."""

    message: OutMessage
    on_delivery: Callable[[Delivery], None]
    lives: int
    alone: bool = False


class _Life:
    """One librdkafka producer, and its unanswered messages."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.refusals = Refusals(config)
        self.producer = Producer({**config, **self.refusals.callbacks})
        self.numbers = itertools.count()
        self.waiting: dict[int, _Waiting] = {}
        #: messages that fail from now on go to the next producer
        self.over = False


class KafkaProducer:
    """Produces from any thread; a separate thread serves the acknowledgements."""

    def __init__(
        self,
        config: Mapping[str, Any],
        on_served: Callable[[], None] = lambda: None,
        on_failed: Callable[[str], None] = _log.critical,
        *,
        renew_s: float = RENEW_S,
    ) -> None:
        """`on_served` is called after each round of acknowledgements, on the producer's thread.

        `on_failed` gets the reason when producing is no longer possible. `renew_s`: the least time
        between two producers, in seconds.
        """
        self._on_failed, self._renew_s = on_failed, renew_s
        self._config = dict(config)
        self._life = _Life(self._config)
        #: for messages sent alone; created when needed
        self._solo: _Life | None = None
        self._fell: deque[_Waiting] = deque()
        self._on_served = on_served
        self._closed = threading.Event()
        #: messages were refused without being queued, so no poll reports them
        self._refused = False
        self._broken = threading.Event()
        self._reason: Exception | None = None
        self._renewed_at = float("-inf")
        self._renewals = Sparse(LOG_EVERY_S)
        self._lock = threading.Lock()
        self._thread = guard.thread("perkey-producer", self._serve, self._died)
        self._thread.start()

    def send(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue one message. Raises BufferError when the queue is full."""
        with self._lock:
            self._queue(self._life, _Waiting(message, on_delivery, LIVES))

    def _queue(self, life: _Life, entry: _Waiting) -> None:
        number = next(life.numbers)
        life.waiting[number] = entry
        try:
            produce(life.producer, entry.message, partial(self._delivered, life, number))
        except BufferError:
            del life.waiting[number]
            raise
        except KafkaException as error:
            del life.waiting[number]
            inner = error.args[0]
            if inner.fatal() or inner.code() == KafkaError._FATAL:  # noqa: SLF001  # a public constant
                self._broken.set()
                raise BufferError("the producer is being recreated") from None
            # Refused immediately, such as a message that is too large: reported like an answer.
            self._refused = True
            entry.on_delivery(refused(inner, entry.message.topic))

    def _delivered(
        self, life: _Life, number: int, error: KafkaError | None, stored: Message
    ) -> None:
        delivery = delivery_of(error, stored)
        if error is None:
            life.refusals.served()
        if life.over and delivery.error is not None:
            return
        entry = life.waiting.pop(number, None)
        if entry is None:
            return
        if error is not None and not entry.alone and error.code() in IN_COMPANY:
            self._fell.append(entry._replace(alone=True))
        else:
            entry.on_delivery(delivery)

    # -- on the producer's thread ------------------------------------------------------------------

    def _died(self, thread: str, error: BaseException) -> None:
        guard.log_death(thread, error)
        self._on_failed(f"thread {thread} died: {type(error).__name__}: {error}")

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                served = self._life.producer.poll(SERVE_S)
            except FATAL as error:
                served, self._reason = 0, error
                self._broken.set()
            if self._fell or self._solo is not None:
                # Resend, one per batch, what failed because of others.
                with self._lock:
                    if self._solo is None:
                        self._solo = _Life({**self._config, **ALONE})
                    solo = self._solo
                    for _ in range(len(self._fell)):
                        self._again(solo, self._fell.popleft())
                before = len(solo.waiting)
                try:
                    solo.producer.poll(0)
                except FATAL as error:
                    self._reason = error
                    with self._lock:
                        self._solo = None
                        solo.over = True
                        purge(solo.producer, PURGE_S)
                        self._fell.extend(solo.waiting.values())
                served += before - len(solo.waiting)
            if refusal := self._life.refusals.lasting():
                self._life.refusals.served()  # reported once
                self._on_failed(f"{refusal[0]}: {refusal[1]}")
            if served or self._refused:
                self._refused = False  # before it is served: later refusals count separately
                self._on_served()
            if self._broken.is_set():
                self._renew()

    def _renew(self) -> None:
        """Create another producer and continue with the unreported messages of the old one."""
        self._closed.wait(self._renewed_at + self._renew_s - time.monotonic())
        with self._lock:
            self._renewed_at = time.monotonic()
            self._broken.clear()
            old = self._life
            old.over = True
            purge(old.producer, PURGE_S)
            self._life = _Life(self._config)
            before = self._renewals.left_out()
            if before is not None:
                _log.warning(
                    "producer recreated (%d times since the last line), with %d messages: %s",
                    before + 1,
                    len(old.waiting),
                    self._reason,
                )
            for entry in list(old.waiting.values()):  # a flush may answer some meanwhile
                self._again(self._life, entry)
        self._on_served()

    def _again(self, life: _Life, waiting: _Waiting) -> None:
        if waiting.lives > 1:
            try:
                self._queue(life, waiting._replace(lives=waiting.lives - 1))
            except BufferError:
                pass
            else:
                return
        error = KafkaError(KafkaError._FATAL, str(self._reason))  # noqa: SLF001  # a public constant
        waiting.on_delivery(refused(error, waiting.message.topic))

    # -- the end -----------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty; returns how many messages remain."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                self._life.producer.flush(left_s)
            except FATAL as error:
                self._reason = error
                self._broken.set()
            solo = self._solo  # the serving thread may remove it if it breaks
            alone = 0 if solo is None else len(solo.waiting)
            left = len(self._life.waiting) + len(self._fell) + alone
            if not left or time.monotonic() >= deadline:
                return left
            self._closed.wait(min(SERVE_S, left_s))

    def close(self, timeout_s: float) -> None:
        """Stop; messages that are still queued fail."""
        self.flush(timeout_s)
        self._closed.set()
        self._thread.join(SERVE_S * 4)
        with self._lock:
            for life in (self._life, self._solo):
                if life is not None and life.waiting:
                    purge(life.producer, PURGE_S)
        self._on_served()


def produce(
    producer: Producer,
    message: OutMessage,
    on_delivery: Callable[[KafkaError | None, Message], None],
) -> None:
    """Queue one message. Raises BufferError or KafkaException."""
    options: dict[str, Any] = {}
    if message.partition is not None:
        options["partition"] = message.partition
    if message.timestamp_ms is not None and message.timestamp_ms >= 0:
        options["timestamp"] = message.timestamp_ms
    producer.produce(
        message.topic,
        value=message.value,
        key=message.key,
        headers=list(message.headers) if message.headers else None,
        on_delivery=on_delivery,
        **options,
    )


def flushed(producer: Producer, timeout_s: float) -> int:
    """Flush; returns how many messages remain, 1 if the producer broke during it."""
    try:
        return producer.flush(timeout_s)
    except FATAL:
        return 1


def purge(producer: Producer, timeout_s: float) -> None:
    """Fail every unanswered message."""
    deadline = time.monotonic() + timeout_s
    producer.purge()
    # The first flush of a failed producer raises before it has reported all.
    while flushed(producer, max(0.0, deadline - time.monotonic())) and time.monotonic() < deadline:
        pass


def delivery_of(error: KafkaError | None, stored: Message) -> Delivery:
    """The report that librdkafka makes of one message, as plain data."""
    try:
        # Called through a tuple, Python checks whether a C function left an exception set, and
        # finds one that was set before. Raising and catching it clears it.
        len(*_NOTHING)
    except SystemError:
        return delivery_of(error, stored)
    topic, partition, offset = stored.topic(), stored.partition(), stored.offset()
    if error is not None:
        return refused(error, topic)
    return Delivery(
        Sent(
            topic or "",
            -1 if partition is None else partition,
            -1 if offset is None else offset,
            stored.key(),
        ),
        None,
    )


def refused(error: KafkaError, topic: str | None = None) -> Delivery:
    """A failed delivery, named by Kafka's error code."""
    where = "" if topic is None else f"output to {topic}: "
    again = delivery_verdict(error.code()) == "retry"
    return Delivery(None, ErrorInfo(error.name(), where + error.str()), again)
