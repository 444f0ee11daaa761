"""Where a read starts or ends: the values of `startingOffsets`, `endingTimestamp` and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perkey.errors import ConfigError
from perkey.numeric import is_whole
from perkey.policies import is_topic
from perkey.types import TopicPartition

#: An offset (or a timestamp in ms) for each partition.
PartitionMap = Mapping[TopicPartition, int]

#: How Spark writes "latest" and "earliest" in its JSON of offsets.
LATEST, EARLIEST = -1, -2
#: Kafka's offsets and timestamps are signed 64-bit numbers, partitions 32-bit ones.
LONG_MAX, PARTITION_MAX = 2**63 - 1, 2**31 - 1

OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMESTAMPS_EXAMPLE = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
ASSIGN_EXAMPLE = '{"topicA":[0,1],"topicB":[2,4]}'


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read, as the user gave it; resolved to offsets when the job is planned.

    `option` is the option it came from; `by_partition` holds offsets (kind "offsets", -1 latest,
    -2 earliest) or milliseconds (kind "timestamps"); `timestamp_ms` belongs to kind "timestamp".
    """

    kind: Literal["earliest", "latest", "offsets", "timestamp", "timestamps", "group"]
    option: str
    by_partition: PartitionMap = field(default_factory=dict)
    timestamp_ms: int = 0
    #: kind "group": the group whose offsets are used; a partition without one starts at its start
    group: str = ""


def offsets_bound(option: str, text: str) -> Bound:
    """Read `earliest`, `latest` or Spark's JSON of offsets."""
    word = text.strip().lower()
    if word == "earliest":
        return Bound("earliest", option)
    if word == "latest":
        return Bound("latest", option)
    example = f"earliest, latest or JSON such as {OFFSETS_EXAMPLE}"
    return Bound("offsets", option, partition_map(option, text, EARLIEST, example))


def timestamps_bound(option: str, text: str) -> Bound:
    """Read Spark's JSON of a timestamp in milliseconds for each partition."""
    example = f"JSON such as {TIMESTAMPS_EXAMPLE}"
    return Bound("timestamps", option, partition_map(option, text, 0, example))


def timestamp_bound(option: str, text: str) -> Bound:
    """Read one timestamp in milliseconds for all partitions."""
    digits = text.strip()
    if not is_digits(digits) or int(digits) > LONG_MAX:
        raise ConfigError(
            f"{option}: {shown(text)} is not a time in milliseconds: write 1700000000000"
        )
    return Bound("timestamp", option, timestamp_ms=int(digits))


def partition_map(option: str, text: str, lowest: int, example: str) -> PartitionMap:
    """Read `{"topic": {"partition": number}}`; numbers are at least `lowest`."""
    result: dict[TopicPartition, int] = {}
    for topic, partitions in topic_object(option, text, example).items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"{option}: topic {topic!r} needs an object: write {example}")
        for name, number in partitions.items():
            partition = partition_number(option, topic, name, example)
            if not is_whole(number, lowest, LONG_MAX):
                raise ConfigError(
                    f"{option}: {topic}-{name} has {shown(number)}, which is no whole number"
                    f" >= {lowest}: write {example}"
                )
            result[topic, partition] = number
    return result


def assigned_partitions(text: str) -> tuple[TopicPartition, ...]:
    """Read the value of `assign`: `{"topic": [partitions]}`."""
    example = f"JSON such as {ASSIGN_EXAMPLE}"
    found: list[TopicPartition] = []
    for topic, partitions in topic_object("assign", text, example).items():
        if not isinstance(partitions, list) or not partitions:
            raise ConfigError(f"assign: topic {topic!r} needs a list: write {example}")
        for number in partitions:
            if not is_whole(number, 0, PARTITION_MAX):
                raise ConfigError(
                    f"assign: {shown(number)} of {topic!r} is no partition: write {example}"
                )
            found.append((topic, number))
    if len(set(found)) != len(found):
        raise ConfigError("assign: a partition is listed twice: list each once")
    return tuple(sorted(found))


def topic_object(option: str, text: str, example: str) -> dict[str, Any]:
    """The JSON object of topics in `text`; not empty, no name twice."""
    try:
        parsed = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{option}: {shown(text)} is not valid ({error}): write {example}"
        ) from None
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(f"{option}: {shown(text)} names no topic: write {example}")
    for name in parsed:
        topic_name(option, name)
    return parsed


def topic_name(option: str, text: str) -> str:
    """Parse a topic's name."""
    if not is_topic(text.strip()):
        raise ConfigError(f"option {option}={shown(text)}: it cannot be a topic of Kafka: give one")
    return text.strip()


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names must differ; ValueError otherwise."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"{name!r} occurs twice")
        result[name] = value
    return result


def partition_number(option: str, topic: str, name: str, example: str) -> int:
    """The number of a partition, which JSON has as a name."""
    # "00" would be the same partition as "0".
    plain = name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name
    if not plain or int(name) > PARTITION_MAX:
        raise ConfigError(f"{option}: {shown(name)} of {topic!r} is no partition: write {example}")
    return int(name)


def is_digits(text: str) -> bool:
    """Whether `text` is a whole number >= 0 of no more digits than a long has."""
    return text.isascii() and text.isdigit() and len(text) <= 19


def shown(value: object) -> str:
    """`value` for an error message: quoted, on one line, cut at 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
