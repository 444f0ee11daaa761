"""Kafka transactions, one after another: outputs and offsets together, or neither.

The producer's id is the same for every run of the same member, so that a successor ends what a dead
one left open (with a random id it would wait for the transaction's time-out). After an indefinite
error the outcome is unknown and the producer cannot be trusted any more (Jepsen, bufstream 0.1.0: a
late EndTxn can end a later transaction): a new producer is created under the same id, which commits
or aborts the open transaction; the group's offsets then show which.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from perkey.kafka import clib
from perkey.kafka.failures import Refusals, root_cause
from perkey.kafka.ports import (
    Delivery,
    OutMessage,
    ReadBack,
    ToCommit,
    TransactionEnd,
    which_way,
)
from perkey.kafka.producer import ALONE, FATAL, IN_COMPANY, delivery_of, flushed, produce, refused
from perkey.kafka.verdicts import (
    delivery_verdict,
    maps_too_large,
    of_content,
    transaction_reason,
    transaction_verdict,
)
from perkey.types import ErrorInfo

_log = logging.getLogger("perkey.kafka")

TRANSACTION_TIMEOUT_S = 10.0
INIT_S = 30.0
PROPAGATION_MS = 3_000  # librdkafka's default is three times a message's time-out
#: A producer that sends offsets to a coordinator that was restarted waits until the state of any
#: connection changes, and checks no time-out (librdkafka 2.16, issues 5456 and 5511): to close an
#: idle connection is such a change, after which it asks for the coordinator again.
IDLE_MS = 5_000
RETRY_S = 0.1
FLUSH_S = 0.05
SLOW_END_S = 1.0  # ten times the usual duration
COMPANY_NAMES = frozenset(KafkaError(code).name() for code in IN_COMPANY)


class KafkaTransactions:
    """A TransactionsPort on a real broker. Not thread-safe."""

    def __init__(
        self, config: Mapping[str, Any], transactional_id: str, *, own_id: bool = False
    ) -> None:
        """`config`: librdkafka producer properties; `own_id`: see KafkaConsumer."""
        self._own_id = own_id
        self._config = {
            "connections.max.idle.ms": IDLE_MS,
            **config,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            # A message must time out before its transaction does.
            "message.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
            # A missing topic must be reported before the message times out: otherwise only a
            # time-out is visible, and its output is unknown.
            "topic.metadata.propagation.max.ms": PROPAGATION_MS,
        }
        self._config.pop("delivery.timeout.ms", None)
        self._producer: Producer | None = None
        #: why the current transaction was aborted, if no message has the reason
        self._reported: KafkaError | None = None
        #: of every producer created here: each starts without errors, except for a refused login
        self._refusals = Refusals(self._config)

    def open(self) -> None:
        """Create the producer and end what a predecessor with this id left open.

        Raises KafkaException if that does not succeed within 30 s.
        """
        self._open({})

    def _open(self, extra: Mapping[str, Any]) -> None:
        self._discard()
        producer = Producer({**self._config, **extra, **self._refusals.callbacks})
        deadline = time.monotonic() + INIT_S
        while True:
            try:
                producer.init_transactions(max(1.0, deadline - time.monotonic()))
            except KafkaException as error:
                timed_out: int = KafkaError._TIMED_OUT  # noqa: SLF001  # a public constant
                retriable = error.args[0].retriable() or error.args[0].code() == timed_out
                if not retriable or time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)
            else:
                self._producer = producer
                return

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Produce, send the offsets, commit. Never raises for a broker's response."""
        end = self._transact(messages, offsets, membership, read_back)
        if end.outcome == "committed":
            self._refusals.served()
        elif refusal := self._refusals.lasting():
            return TransactionEnd("fenced", end.deliveries, ": ".join(refusal))
        return end

    def _transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        deliveries: list[Delivery | None] = [None] * len(messages)
        began, self._reported = time.monotonic(), None
        try:
            if self._producer is None:
                self.open()
            committed = self._attempt(messages, offsets, membership, deliveries)
            fell = [delivery.error.type for delivery in deliveries if delivery and delivery.error]
            if not committed and sum(name in COMPANY_NAMES for name in fell) > 1:
                # Whole batches were refused: which message is at fault shows when each is alone.
                began, deliveries = time.monotonic(), [None] * len(messages)
                self._open(ALONE)
                committed = self._attempt(messages, offsets, membership, deliveries)
                self._discard()
        except FATAL as error:
            cause = self._cause(error)
            timed_out = time.monotonic() - began >= TRANSACTION_TIMEOUT_S
            return self._broken(cause, offsets, deliveries, read_back, timed_out=timed_out)
        if committed:
            return TransactionEnd("committed", deliveries)
        return self._aborted("aborted", deliveries)

    def _aborted(
        self,
        outcome: Literal["committed", "aborted"],
        deliveries: Sequence[Delivery | None],
        error: KafkaError | None = None,
        why: str = "",
    ) -> TransactionEnd:
        """The aborted end, with its reason if known. The abort itself may fail, too."""
        why, error = "" if self._reported else why, self._reported or error
        if error is not None:
            # Reported while producing: a delivery report could have contained it as well.
            lasts = error is self._reported and delivery_verdict(error.code()) == "refused"
            content = ErrorInfo(error.name(), error.str()) if of_content(error.code()) else None
            return TransactionEnd(
                outcome,
                deliveries,
                why or _why(error),
                content,
                lasts=lasts,
                maps_too_large=maps_too_large(error.code()),
            )
        errors = (
            delivery.error
            for delivery in deliveries
            if delivery is not None and delivery.error is not None
        )
        return TransactionEnd(outcome, deliveries, next((e.message for e in errors), ""))

    def _attempt(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        deliveries: list[Delivery | None],
    ) -> bool:
        producer = self._producer
        assert producer is not None
        producer.begin_transaction()
        for index, message in enumerate(messages):
            self._produce(producer, message, deliveries, index)
        # Wait until all messages are answered; returns how many are not.
        until = time.monotonic() + TRANSACTION_TIMEOUT_S
        while left := producer.flush(FLUSH_S):
            failed = any(
                delivery is not None and delivery.error is not None for delivery in deliveries
            )
            if failed or time.monotonic() >= until:
                break
        if left or any(delivery is None or delivery.error is not None for delivery in deliveries):
            self._reported = _reported(producer)
            self._abort(producer)
            # A refused message has left a gap in the sequence: this producer's next message to
            # that partition would fail. The next transaction starts with a new producer.
            self._discard()
            return False
        deadline = time.monotonic() + TRANSACTION_TIMEOUT_S
        if offsets:
            _again(
                lambda left_s: clib.send_offsets_to_transaction(
                    producer, list(offsets), membership, left_s
                ),
                deadline,
            )
        self._end(lambda: _again(producer.commit_transaction, deadline))
        return True

    def _produce(
        self,
        producer: Producer,
        message: OutMessage,
        deliveries: list[Delivery | None],
        index: int,
    ) -> None:
        def delivered(error: KafkaError | None, stored: Message) -> None:
            deliveries[index] = delivery_of(error, stored)

        while True:
            try:
                produce(producer, message, delivered)
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                deliveries[index] = refused(error.args[0], message.topic)
                return
            else:
                return

    def _abort(self, producer: Producer) -> None:
        producer.purge(in_queue=True, in_flight=False)
        self._end(lambda: producer.abort_transaction(TRANSACTION_TIMEOUT_S))

    def _end(self, call: Callable[[], None]) -> None:
        """End the transaction; after a slow end the next one starts with a new producer.

        On a broken connection librdkafka repeats the request by itself while the first one may be
        in flight: that one would end a later transaction (librdkafka 2.16 does not know
        KIP-890). A new producer's epoch fences it.
        """
        began = time.monotonic()
        call()
        if time.monotonic() - began > SLOW_END_S:
            self._discard()

    def _cause(self, error: Exception) -> KafkaError:
        """The error of a failed call; for "_FATAL" the error that broke the client."""
        inner = error.args[0] if isinstance(error, KafkaException) else None
        if not isinstance(inner, KafkaError):
            inner = KafkaError(KafkaError._FATAL, str(error))  # noqa: SLF001  # a public constant
        return inner if self._producer is None else root_cause(self._producer, inner)

    def _broken(
        self,
        error: KafkaError,
        offsets: Sequence[ToCommit],
        deliveries: list[Delivery | None],
        read_back: ReadBack,
        *,
        timed_out: bool,
    ) -> TransactionEnd:
        """Handle a failed transaction; find out how it ended if the outcome is unknown."""
        verdict = transaction_verdict(error, timed_out=timed_out, own_id=self._own_id)
        is_over = verdict in ("fenced", "fatal")  # its caller ends, with this reason
        level = logging.DEBUG if is_over else logging.WARNING
        _log.log(level, "transaction: %s (%s)", error.str(), verdict)
        if is_over:
            return TransactionEnd("fenced", deliveries, _why(error))
        if verdict == "abort" and self._producer is not None:
            try:
                self._abort(self._producer)
            except FATAL as worse:
                error = self._cause(worse)
            else:
                why = _why(error, timed_out=timed_out, own_id=self._own_id)
                return self._aborted("aborted", deliveries, error, why)
        # A new producer ends the open transaction; the group's offsets show how.
        verdict = transaction_verdict(error, timed_out=timed_out, own_id=self._own_id)
        if verdict == "fenced":  # the abort reports it
            return TransactionEnd("fenced", deliveries, _why(error))
        try:
            self.open()
        except KafkaException as worse:
            cause = worse.args[0]
            verdict = transaction_verdict(cause, timed_out=timed_out)
            outcome: Literal["fenced", "unknown"] = (
                "fenced" if verdict in ("fenced", "fatal") else "unknown"
            )
            return TransactionEnd(outcome, deliveries, _why(cause))
        held = read_back(offsets)
        if held is None:
            return TransactionEnd("unknown", deliveries, error.str())
        why = _why(error, timed_out=timed_out, own_id=self._own_id)
        return self._aborted(which_way(offsets, held), deliveries, error, why)

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """Whether the broker will never accept this message; other failures concern all of them."""
        return is_refusal(delivery)

    def close(self) -> None:
        """Abort an open transaction and stop."""
        self._discard()

    def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            flushed(producer, 0.1)


def _why(error: KafkaError, *, timed_out: bool = False, own_id: bool = False) -> str:
    """The broker's error and its meaning: fenced, or a missing permission."""
    return f"{error.str()}: {transaction_reason(error, timed_out=timed_out, own_id=own_id)}"


def _reported(producer: Producer) -> KafkaError | None:
    """The error if the open transaction can only be aborted; else None.

    librdkafka returns it to the next call on the transaction. A second start is refused in any
    case, and changes nothing.
    """
    try:
        producer.begin_transaction()
    except KafkaException as error:
        kafka_error: KafkaError = error.args[0]
        return kafka_error if kafka_error.txn_requires_abort() else None
    return None


def _again(call: Callable[[float], Any], deadline: float) -> None:
    """Repeat the call while librdkafka's error is retriable, until the deadline."""
    while True:
        left_s = deadline - time.monotonic()
        try:
            call(max(0.1, left_s))
        except KafkaException as error:
            kafka_error: KafkaError = error.args[0]
            if (
                not kafka_error.retriable()
                or kafka_error.txn_requires_abort()
                or kafka_error.fatal()
                or left_s <= 0
            ):
                raise
            time.sleep(RETRY_S)
        else:
            return


def is_refusal(delivery: Delivery | None) -> bool:
    """Whether the broker will never accept this message; other failures concern all of them."""
    if delivery is None or delivery.error is None:
        return False
    code = getattr(KafkaError, delivery.error.type.removeprefix("KafkaError."), None)
    return code is not None and delivery_verdict(code) == "refused"
