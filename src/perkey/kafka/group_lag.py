"""The true lag of a group from Kafka alone: its commits, their offset maps, the logs.

For any group, also of the Java Parallel Consumer: the commit's metadata lists what is done beyond
the committed offset. It joins no group and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from perkey.codec import OffsetMap, UnreadableMap, decode
from perkey.errors import FatalError
from perkey.kafka import clib_offsets
from perkey.kafka.clib_offsets import Bounds
from perkey.kafka.group_offsets import ANSWER_S, GroupOffsets
from perkey.kafka.log_reader import UNGROUPED, RangeReader
from perkey.kafka.ports import CommittedOffset, KafkaUnavailable
from perkey.types import TopicPartition as TopicAndPartition  # the client has one, too

#: how long to wait for the records whose age is requested; those that do not come have none
AGES_S = 5.0
#: records read at a time: each may bring a whole batch with it
AGES_AT_A_TIME = 200
FETCH_BYTES = 64 * 2**10
#: runs of undone offsets from which on Perkey starts nothing further out: 8 bytes each, and three
#: quarters of the 4,096 characters that the broker stores
RUNS_FULL = 287
#: an open transaction is reported once its records are this old: healthy ones are brief
OPEN_TOO_LONG_S = 30.0


#: fields that are not part of the contract
INNER = ("holes", "full", "parked", "held")


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition, with the field names of `perkey lag --json`; None means unknown."""

    topic: str
    partition: int
    #: one past the last record of the log
    end: int | None = None
    committed: int | None = None
    done_beyond: int = 0
    #: end - committed - done_beyond; an upper bound where the log has gaps
    remaining: int | None = None
    #: the lowest offset that is not done, if any record remains
    oldest_not_done: int | None = None
    oldest_age_s: float | None = None
    map_chars: int = 0
    problem: str | None = None
    #: offsets not done before the highest one that is done; not in the contract
    holes: int = 0
    #: the offset map is full: nothing further out starts; not in the contract
    full: bool = False
    #: as far as the commit remembers them; not in the contract
    parked: int = 0
    held: int = 0

    def row(self) -> dict[str, Any]:
        """The JSON of `perkey lag`."""
        return {name: value for name, value in asdict(self).items() if name not in INNER}


def lag_of(stored: CommittedOffset, log: Bounds | None) -> PartitionLag:
    """One partition's lag, from its commit and the bounds of its log; without the age."""
    where = (stored.topic, stored.partition)
    if stored.error:
        return PartitionLag(*where, problem=f"may not be read: {KafkaError(stored.error).str()}")
    if log is None:
        return PartitionLag(
            *where,
            committed=stored.offset,
            problem="its log cannot be read: check that it has a leader",
        )
    if stored.offset is None:
        left = log.end - log.start
        problem = "no commit: counted from the start of the log" if left else None
        return _row(stored, log, OffsetMap("none", log.start, log.start - 1, ()), problem)
    if stored.offset > log.end:
        problem = (
            f"committed {stored.offset} is beyond the end of the log: was the topic recreated?"
        )
        return _row(stored, log, OffsetMap("none", log.start, log.start - 1, ()), problem)
    try:
        return _row(stored, log, decode(stored.offset, stored.metadata, log_end=log.end), None)
    except UnreadableMap as reason:
        plain = OffsetMap("none", stored.offset, stored.offset - 1, ())
        return _row(stored, log, plain, f"its metadata is not an offset map: {reason}")


def _waits_long(lag: PartitionLag) -> bool:
    return lag.problem is None and (lag.oldest_age_s or 0) > OPEN_TOO_LONG_S


def behind_transaction(lag: PartitionLag, log: Bounds | None) -> PartitionLag:
    """The same, with a problem if a read_committed reader cannot see the oldest record."""
    oldest = lag.oldest_not_done
    if log is None or oldest is None or not 0 <= log.stable_end <= oldest or not _waits_long(lag):
        return lag
    problem = (
        f"records from offset {log.stable_end} wait behind an open transaction of another "
        "producer: see kafka-transactions.sh describe-producers"
    )
    return replace(lag, problem=problem)


def _row(
    committed: CommittedOffset, log: Bounds, known: OffsetMap, problem: str | None
) -> PartitionLag:
    frontier = max(known.frontier, log.start)
    holes = [offset for offset in known.not_done if offset >= frontier]
    beyond = max(0, known.highest_seen - frontier + 1 - len(holes))
    if frontier > known.frontier:  # the log starts past the commit
        undone = sum(offset < frontier for offset in known.not_done)
        undone += max(0, frontier - 1 - max(known.highest_seen, known.frontier - 1))
        gone = f"retention deleted {known.frontier} to {frontier - 1}, {undone:,} of them"
        problem = problem or f"{gone} unhandled"
        frontier = holes[0] if holes else max(frontier, known.highest_seen + 1)
        beyond = max(0, known.highest_seen - frontier + 1 - len(holes))
    remaining = max(0, log.end - frontier - beyond)
    runs = 1 + sum(after - before > 1 for before, after in pairwise(holes))
    full = beyond > 0 and runs >= RUNS_FULL
    return PartitionLag(
        committed.topic,
        committed.partition,
        log.end,
        committed.offset,
        beyond,
        remaining,
        frontier if remaining else None,
        None,
        len(committed.metadata),
        problem,
        len(holes),
        full,
        sum(entry.parked and not entry.held for entry in known.rider.entries),
        sum(entry.held for entry in known.rider.entries),
    )


class GroupLag(GroupOffsets):
    """Measures one group repeatedly; close it, or use it as a context manager.

    Every method raises ConfigError if the brokers refuse, or do not answer.
    """

    def __init__(self, bootstrap: str, group: str, properties: Mapping[str, str]) -> None:
        super().__init__(bootstrap, group, properties)
        self._properties = properties
        self._reader: Consumer | None = None
        self._allowed = False
        #: (topic, partition) -> the offset whose record was read, and its timestamp
        self._stamps: dict[TopicAndPartition, tuple[int, int | None]] = {}

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
        super().__exit__()

    def measure(self) -> list[PartitionLag]:
        """Every partition of the topics in which the group has committed anything."""
        partitions = self.partitions()
        if not self._allowed:  # once: without permission to see the group its commits only time out
            with suppress(KafkaUnavailable):  # the next query reports the error
                self._admin.group_members(self.group, ANSWER_S)
            self._allowed = True
        try:
            stored = self.committed(partitions) if partitions else []
        except KafkaException as failure:
            reason = failure.args[0].str()
            text = f"the commits of group {self.group} cannot be read: {reason}"
            raise FatalError(text) from None
        topics = {one.topic for one in stored if one.offset is not None or one.error}
        rows = [one for one in stored if one.topic in topics]
        logs = self._logs([(one.topic, one.partition) for one in rows if not one.error])
        lags = [lag_of(one, logs.get((one.topic, one.partition))) for one in rows]
        return self._with_causes(self._with_ages(lags))

    def _logs(self, partitions: Sequence[TopicAndPartition]) -> Mapping[TopicAndPartition, Bounds]:
        try:
            return clib_offsets.bounds_soon(self._consumer, partitions, ("start", "end"), ANSWER_S)
        except KafkaException:
            return {}  # each row reports that its log is unreadable

    def _with_causes(self, lags: Sequence[PartitionLag]) -> list[PartitionLag]:
        """The same; partitions that have waited long are checked for an open transaction."""
        old = [(one.topic, one.partition) for one in lags if _waits_long(one)]
        if not old:
            return list(lags)
        try:
            logs = clib_offsets.bounds_soon(self._consumer, old, ("stable_end",), ANSWER_S)
        except KafkaException:
            return list(lags)  # causes are optional
        return [behind_transaction(one, logs.get((one.topic, one.partition))) for one in lags]

    # -- ages --------------------------------------------------------------------------------------

    def _with_ages(self, lags: Iterable[PartitionLag]) -> list[PartitionLag]:
        """The same with the ages of the oldest records, by their timestamps."""
        rows = list(lags)
        wanted = {
            (row.topic, row.partition): row.oldest_not_done
            for row in rows
            if row.oldest_not_done is not None
        }
        known = {where: self._stamps.get(where, (-1, None)) for where in wanted}
        self._stamps = {where: known[where] for where in wanted if known[where][0] == wanted[where]}
        missing = [where for where in wanted if where not in self._stamps]
        deadline = time.monotonic() + AGES_S
        for start in range(0, len(missing), AGES_AT_A_TIME):
            batch = missing[start : start + AGES_AT_A_TIME]
            self._read_stamps({where: wanted[where] for where in batch}, deadline)
        now_ms = time.time() * 1e3
        for index, row in enumerate(rows):
            _, stamp_ms = self._stamps.get((row.topic, row.partition), (-1, None))
            if stamp_ms is not None and row.oldest_not_done is not None:
                age_s = round(max(0.0, now_ms - stamp_ms) / 1e3, 3)
                rows[index] = replace(row, oldest_age_s=age_s)
        return rows

    def _read_stamps(self, wanted: Mapping[TopicAndPartition, int], deadline: float) -> None:
        """Read one record of each; after a gap, the next existing one."""
        if self._reader is None:
            config: dict[str, str | int | bool] = {
                "log_level": "0",
                **self._properties,
                "bootstrap.servers": self.bootstrap,
                **UNGROUPED,
                "group.id": self.group,  # never joined
                "max.partition.fetch.bytes": FETCH_BYTES,
                "queued.max.messages.kbytes": 16 * 1024,
            }
            self._reader = Consumer(config)
        reader = RangeReader(self._reader, lambda *_: True)
        ranges = {where: (offset, offset + 1) for where, offset in wanted.items()}
        try:
            for messages in reader.read(ranges, until=deadline):
                for message in messages:
                    topic, number = message.topic(), message.partition()
                    where = (topic or "", -1 if number is None else number)
                    kind, stamp_ms = message.timestamp()
                    if where in wanted:
                        stamp = (wanted[where], stamp_ms if kind else None)
                        self._stamps.setdefault(where, stamp)
        except KafkaException:
            return  # ages are optional: the rest is still valid
        for where in wanted.keys() - reader.left.keys():  # an end, or an error: no age
            self._stamps.setdefault(where, (wanted[where], None))
