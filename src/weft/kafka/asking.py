"""Query committed offsets and log ends over a consumer's own connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from weft.core.epochs import Found
from weft.kafka import clib, clib_offsets, ports
from weft.kafka.ports import KafkaUnavailable
from weft.types import TopicPartition

#: librdkafka's names for the two places that auto.offset.reset can point to
EARLIEST = ("earliest", "smallest", "beginning")
LATEST = ("latest", "largest", "end")


class Asking:
    """The questions of one consumer; any thread."""

    def __init__(self, consumer: Consumer, config: Mapping[str, Any]) -> None:
        self._consumer = consumer
        self._reset = str(config.get("auto.offset.reset", "earliest"))
        self._reads_committed = config.get("isolation.level") == "read_committed"
        #: held while the client must stay open
        self.lock = threading.Lock()
        #: the client is being closed: it answers no more
        self.over = False

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offsets with metadata, and both ends of the log."""
        deadline = time.monotonic() + timeout_s
        with self._open_to_ask():
            held = [one for one in self._held(partitions, timeout_s) if not one.error]
            where = [(one.topic, one.partition) for one in held]
            latest = self._reset in LATEST and any(one.offset is None for one in held)
            specs: list[clib_offsets.Spec] = ["start", "end"]
            if latest and self._reads_committed:
                specs.append("stable_end")
            left_s = max(0.1, deadline - time.monotonic())
            logs = clib_offsets.bounds_soon(self._consumer, where, specs, left_s)
        if partitions and not logs:
            raise KafkaUnavailable("no partition has a leader that answers")
        return {
            place: self._found(one, logs[place])
            for place, one in zip(where, held, strict=True)
            if place in logs
        }

    def _found(self, held: ports.CommittedOffset, log: clib_offsets.Bounds) -> Found:
        # The high watermark is the log's end, also for who reads what is committed: offsets past
        # an open transaction are no lost log.
        latest = log.end if log.stable_end < 0 else log.stable_end
        reset = {**dict.fromkeys(EARLIEST, log.start), **dict.fromkeys(LATEST, latest)}
        return Found(held.offset, held.metadata, log.start, log.end, reset.get(self._reset))

    def stable_ends(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Up to where no transaction is open, of those whose leader answers."""
        with self._open_to_ask():
            logs = clib_offsets.bounds_soon(self._consumer, partitions, ["stable_end"], timeout_s)
        if partitions and not logs:
            raise KafkaUnavailable("no partition has a leader that answers")
        return {where: log.stable_end for where, log in logs.items()}

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """Look up these topics' leaders."""
        with self._open_to_ask():
            clib_offsets.refresh(self._consumer, topics, timeout_s)

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last known ends of these, of those that are known; sends no request."""
        ends = {}
        for where in partitions:
            try:
                _, high = self._consumer.get_watermark_offsets(Place(*where), cached=True)
            except KafkaException:
                continue  # not known yet
            if high >= 0:
                ends[where] = high
        return ends

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int | None, str]]:
        """Committed offsets with metadata."""
        with self._open_to_ask():
            held = self._held(partitions, timeout_s)
        for one in held:
            if one.error:
                raise KafkaUnavailable(KafkaError(one.error).str())
        return {(one.topic, one.partition): (one.offset, one.metadata) for one in held}

    @contextmanager
    def _open_to_ask(self) -> Iterator[None]:
        """The client stays open meanwhile."""
        with self.lock:
            if self.over:
                raise KafkaUnavailable("the consumer is closed")
            yield

    def _held(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> list[ports.CommittedOffset]:
        try:
            return clib.committed(self._consumer, list(partitions), timeout_s)
        except KafkaException as error:
            raise KafkaUnavailable(error.args[0].str()) from error
