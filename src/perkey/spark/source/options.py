"""The options of the Kafka source, read and checked before the job starts.

The names, meanings and defaults are those of Spark's own connector; `columns` is Perkey's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from perkey.errors import ConfigError, did_you_mean
from perkey.spark.source.bounds import (
    EARLIEST,
    LATEST,
    LONG_MAX,
    Bound,
    assigned_partitions,
    is_digits,
    offsets_bound,
    shown,
    timestamp_bound,
    timestamps_bound,
    topic_name,
)
from perkey.spark.source.javanames import librdkafka_properties
from perkey.spark.source.secrets import resolved
from perkey.types import TopicPartition

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

TOPICS = ("subscribe", "subscribePattern", "assign")
STARTING = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingGroup")
ENDING = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
BATCH_GROUP_PREFIX, STREAM_GROUP_PREFIX = "spark-kafka-relation", "spark-kafka-source"
DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
DEFAULT_POLL_TIMEOUT_S = 120.0
DEFAULT_RECONNECT_S = 10 * 60.0
#: Java takes 500. More per call cost less each; queued.max.messages.kbytes bounds their bytes.
POLL_RECORDS = 2_000
POLL_RECORDS_MAX = 100_000


# -- one value each --------------------------------------------------------------------------------


def positive(option: str, text: str) -> int:
    """Read a whole number above 0."""
    digits = text.strip()
    if not is_digits(digits) or not 0 < int(digits) <= LONG_MAX:
        raise ConfigError(f"option {option}={shown(text)}: write a whole number above 0")
    return int(digits)


def milliseconds_s(option: str, text: str) -> float:
    """Read milliseconds as seconds."""
    return positive(option, text) / 1000


def word(option: str, text: str, one: str, other: str) -> str:
    """Read one of two words."""
    found = text.strip().lower()
    if found not in (one, other):
        raise ConfigError(f"option {option}={shown(text)}: write {one} or {other}")
    return found


def flag(option: str, text: str) -> bool:
    """Read true or false."""
    return word(option, text, "true", "false") == "true"


def error_or_latest(option: str, text: str) -> str:
    """Parse what to do if no record is as late as a timestamp."""
    return word(option, text, "error", "latest")


def not_empty(option: str, text: str) -> str:
    """Read a name."""
    if not text.strip():
        raise ConfigError(f"option {option} is empty: write a name or remove it")
    return text.strip()


#: Spark's units of time, in seconds; a bare number is milliseconds.
UNITS_S = {
    "us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0,
    "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip


def duration_s(option: str, text: str) -> float:
    """Read Spark's "15m", "10s", "500ms", "2h", "1d" or a bare number of milliseconds."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS_S:
        raise ConfigError(f"option {option}={shown(text)}: write a time such as 15m, 10s or 500ms")
    return int(match[1]) * UNITS_S[match[2]]


Reader = Callable[[str, str], object]
#: The options that are one field each -> the field, and how its text is read.
STREAM_FIELDS: dict[str, tuple[str, Reader]] = {
    "maxOffsetsPerTrigger": ("max_offsets", positive),
    "minOffsetsPerTrigger": ("min_offsets", positive),
    "maxTriggerDelay": ("max_trigger_delay_s", duration_s),
    "reconnectTimeout": ("reconnect_s", duration_s),
    "commitGroup": ("commit_group", not_empty),
}
FIELDS: dict[str, tuple[str, Reader]] = {
    **STREAM_FIELDS,
    "startingOffsetsByTimestampStrategy": ("on_no_timestamp", error_or_latest),
    "minPartitions": ("min_partitions", positive),
    "maxRecordsPerPartition": ("max_records_per_partition", positive),
    "failOnDataLoss": ("fail_on_data_loss", flag),
    "groupIdPrefix": ("group_prefix", not_empty),
    "kafkaConsumer.pollTimeoutMs": ("poll_timeout_s", milliseconds_s),
    "fetchOffset.numRetries": ("offset_attempts", positive),
    "fetchOffset.retryIntervalMs": ("offset_retry_s", milliseconds_s),
}
KNOWN = (*TOPICS, *STARTING, *ENDING, *FIELDS, "includeHeaders", "columns")


def fields_of(given: Mapping[str, str], table: Mapping[str, tuple[str, Reader]]) -> dict[str, Any]:
    """The fields of a table whose options were given; the others keep their default."""
    return {
        field: read(option, given[option])
        for option, (field, read) in table.items()
        if option in given
    }


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: one of topics by name, topics by pattern, listed partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, checked. `kafka` may hold secrets, so it is left out of the repr."""

    subscription: Subscription
    kafka: Mapping[str, str] = field(repr=False)
    starting: Bound | None = None
    ending: Bound | None = None
    on_no_timestamp: Literal["error", "latest"] = "error"
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    #: The group whose offsets show the progress of a stream; None for none.
    commit_group: str | None = None
    #: How long brokers that have answered once may be away; 0 in a batch.
    reconnect_s: float = 0.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS
    group_prefix: str | None = None
    poll_timeout_s: float = DEFAULT_POLL_TIMEOUT_S
    poll_records: int = POLL_RECORDS
    offset_attempts: int = 3
    offset_retry_s: float = 1.0
    #: The names of the given options, for messages.
    given: frozenset[str] = frozenset()

    @property
    def reads_committed(self) -> bool:
        """Whether ends are those of finished transactions; the value may be in any case."""
        return self.kafka.get("isolation.level", "").strip().lower() == "read_committed"

    def for_batch(self) -> SourceOptions:
        """These options for a batch read; ConfigError if one does not apply to it."""
        for name in STREAM_FIELDS:
            if name in self.given:
                raise ConfigError(
                    f"option {name} is for streaming reads: remove it from this batch"
                )
        starting = self.starting or Bound("earliest", "startingOffsets")
        ending = self.ending or Bound("latest", "endingOffsets")
        refuse_bound(starting, "latest", LATEST, "a batch that starts at the end reads nothing")
        refuse_bound(ending, "earliest", EARLIEST, "a batch that ends at the start reads nothing")
        check_order(starting, ending)
        return replace(self, starting=starting, ending=ending)

    def for_stream(self) -> SourceOptions:
        """These options for a streaming read; ConfigError if one does not apply to it."""
        for name in ENDING:
            if name in self.given:
                raise ConfigError(
                    f"option {name} is for batch reads: a stream has no end (to stop at the"
                    " present end use trigger(availableNow=True))"
                )
        starting = self.starting or Bound("latest", "startingOffsets")
        reconnect_s = self.reconnect_s if "reconnectTimeout" in self.given else DEFAULT_RECONNECT_S
        poll_s = self.poll_timeout_s
        if "kafkaConsumer.pollTimeoutMs" not in self.given:
            poll_s = max(poll_s, reconnect_s)
        return replace(self, starting=starting, reconnect_s=reconnect_s, poll_timeout_s=poll_s)


def source_options(raw: Mapping[str, str]) -> SourceOptions:
    """Parse the values of `.option(...)`. Raises ConfigError naming the option and the fix."""
    given, kafka = split_options(raw, KNOWN)
    check_together(given, kafka)
    return SourceOptions(
        subscription=subscription(given),
        poll_records=poll_records(kafka.pop("max.poll.records", None)),
        kafka=librdkafka_properties(resolved(kafka)),
        starting=bound(given, STARTING),
        ending=bound(given, ENDING),
        given=frozenset(given),
        columns=columns(given),
        **fields_of(given, FIELDS),
    )


def split_options(
    raw: Mapping[str, str], known: Iterable[str], ignored: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """The options under their documented names, and those of Kafka without `kafka.`.

    Spark passes names in lower case; `ignored` are its own.
    """
    spelled = {name.lower(): name for name in known}
    options = {name.lower(): str(value) for name, value in raw.items()}
    kafka = {n.removeprefix("kafka."): options.pop(n) for n in list(options) if n[:6] == "kafka."}
    for name in options:
        if name not in spelled and name not in ignored:
            raise unknown_option(name, spelled)
    return {spelled[name]: text for name, text in options.items() if name in spelled}, kafka


def check_brokers_given(kafka: Mapping[str, str]) -> None:
    """ConfigError if no broker is named."""
    if not kafka.get("bootstrap.servers", "").strip():
        raise ConfigError("no broker: give option kafka.bootstrap.servers, such as localhost:9092")


def unknown_option(name: str, spelled: Mapping[str, str]) -> ConfigError:
    """The error for an unknown name, with the nearest known one."""
    if name == "path":
        return ConfigError(
            "perkey reads and writes no path: call load(), save() or start() without one and set"
            " subscribe or topic"
        )
    if name == "bootstrap.servers":
        return ConfigError("unknown option bootstrap.servers: write kafka.bootstrap.servers")
    if name == "maxbytespertrigger":
        return ConfigError(
            "option maxBytesPerTrigger is impossible: brokers report no sizes before records are"
            " read: use maxOffsetsPerTrigger"
        )
    known = f"there are {', '.join(spelled.values())}, kafka.*"
    cure = did_you_mean(name, spelled.values(), known)
    return ConfigError(f"unknown option {shown(name)}: {cure}")


def check_together(given: Mapping[str, str], kafka: Mapping[str, str]) -> None:
    """ConfigError for options that contradict each other or need one that is missing."""
    for names in (TOPICS, STARTING, ENDING):
        both = [name for name in names if name in given]
        if len(both) > 1:
            raise ConfigError(f"options {' and '.join(both)} contradict each other: give one")
    if not any(name in given for name in TOPICS):
        raise ConfigError(f"no topic: give one of the options {', '.join(TOPICS)}")
    check_brokers_given(kafka)
    if "groupIdPrefix" in given and "group.id" in kafka:
        raise ConfigError(
            "options groupIdPrefix and kafka.group.id contradict each other: give one"
        )
    if not kafka.get("group.id", "a group").strip():
        raise ConfigError("option kafka.group.id is empty: write a name or remove it")
    needs(given, "maxTriggerDelay", ("minOffsetsPerTrigger",))
    needs(given, "startingOffsetsByTimestampStrategy", STARTING[1:3])
    low, high = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    if low is None or high is None:
        return
    if positive("minOffsetsPerTrigger", low) > positive("maxOffsetsPerTrigger", high):
        raise ConfigError(
            f"options minOffsetsPerTrigger={low} and maxOffsetsPerTrigger={high} contradict each"
            " other: the least must not be more than the most"
        )


def needs(given: Mapping[str, str], name: str, others: tuple[str, ...]) -> None:
    """ConfigError if an option has no effect because another is missing."""
    if name in given and not any(other in given for other in others):
        raise ConfigError(f"option {name} does nothing without {' or '.join(others)}: add it")


def subscription(given: Mapping[str, str]) -> Subscription:
    """What is read, from whichever of the three options was given."""
    if "assign" in given:
        return Subscription(assigned=assigned_partitions(given["assign"]))
    if "subscribePattern" in given:
        pattern = given["subscribePattern"].strip()
        if not pattern:
            raise ConfigError("subscribePattern: it is empty: write a pattern such as gps\\..*")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"subscribePattern: {shown(pattern)} is no pattern ({error})"
            ) from None
        return Subscription(pattern=pattern)
    names = given["subscribe"].split(",")
    topics = [topic_name("subscribe", name) for name in names if name.strip()]
    if not topics:
        raise ConfigError("subscribe: no topic in it: write topicA or topicA,topicB")
    return Subscription(topics=tuple(dict.fromkeys(topics)))


def bound(given: Mapping[str, str], names: tuple[str, ...]) -> Bound | None:
    """The start or the end, from whichever of its options was given."""
    offsets, timestamp, by_partition, *group = names
    if timestamp in given:
        return timestamp_bound(timestamp, given[timestamp])
    if by_partition in given:
        return timestamps_bound(by_partition, given[by_partition])
    if offsets in given:
        return offsets_bound(offsets, given[offsets])
    for option in group:
        if option in given:
            return Bound("group", option, group=not_empty(option, given[option]))
    return None


def refuse_bound(bound: Bound, word: str, sentinel: int, why: str) -> None:
    """ConfigError if a batch starts at `latest` or ends at `earliest`, as word or as number."""
    if bound.kind == word:
        raise ConfigError(f"{bound.option}={word} is not possible in a batch read: {why}")
    if bound.kind != "offsets":
        return
    for (topic, partition), offset in bound.by_partition.items():
        if offset == sentinel:
            raise ConfigError(
                f"{bound.option}: {topic}-{partition} has {sentinel} ({word}), which is not"
                f" possible in a batch read: {why}"
            )


def check_order(starting: Bound, ending: Bound) -> None:
    """ConfigError if the user's own numbers put the end before the start."""
    if starting.kind == ending.kind == "timestamp" and starting.timestamp_ms > ending.timestamp_ms:
        raise ConfigError(
            f"{starting.option}={starting.timestamp_ms} is after"
            f" {ending.option}={ending.timestamp_ms}: swap them"
        )
    if starting.kind != ending.kind or starting.kind not in ("offsets", "timestamps"):
        return
    if set(starting.by_partition) != set(ending.by_partition):
        raise ConfigError(f"{starting.option} and {ending.option} name different partitions")
    for (topic, partition), low in starting.by_partition.items():
        high = ending.by_partition[topic, partition]
        if 0 <= high < low:
            raise ConfigError(
                f"{topic}-{partition}: {starting.option} has {low}, after {high} of"
                f" {ending.option}: swap them"
            )


def columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns to read: all of them, or those that `columns` names, in that order."""
    with_headers = flag("includeHeaders", given.get("includeHeaders", "false"))
    every = (*COLUMNS, HEADERS) if with_headers else COLUMNS
    if "columns" not in given:
        return every
    by_lower = {name.lower(): name for name in every}
    asked = [name.strip() for name in given["columns"].split(",") if name.strip()]
    for name in asked:
        if name.lower() == HEADERS and not with_headers:
            raise ConfigError("columns: headers are read with includeHeaders=true: add it")
        if name.lower() not in by_lower:
            raise ConfigError(f"columns: no column {shown(name)}: there are {', '.join(every)}")
    chosen = tuple(by_lower[name.lower()] for name in asked)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError("columns: name at least one column, each once, such as value,offset")
    if with_headers and HEADERS not in chosen:
        raise ConfigError("options includeHeaders=true and columns contradict: add headers to it")
    return chosen


def poll_records(text: str | None) -> int:
    """How many records one call to librdkafka takes: Java's `max.poll.records`."""
    if text is None:
        return POLL_RECORDS
    return min(positive("kafka.max.poll.records", text), POLL_RECORDS_MAX)
