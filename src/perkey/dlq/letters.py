"""The headers of a dead letter, as Perkey and other programs write them; pure.

Perkey and Kafka's own brokers (KIP-1191) share names; Spring Kafka, Kafka Connect and Kafka Streams
(KIP-1034) have their own. A record with the headers of two counts as a letter of the last writer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perkey.kafka.ports import OutMessage
from perkey.types import Headers, Record
from perkey.where import HEADER, OWN, Value, own_field, text_of

#: headers that a replay adds
REPLAY = "__dlq.errors.replay."
#: the letter of a replayed record: its topic, partition and offset
LETTER = "__dlq.errors.replay.letter"
#: the record's original offset; a replayed record has another
POSITION = "__dlq.errors.replay.offset"
REPLAYS = "__dlq.errors.replay.count"
OMITTED = "__dlq.errors.value.omitted"
CUT = ("__dlq.errors.headers.omitted", "__dlq.errors.key.size")
NUMBER_MAX = 2**63 - 1
_ENCODED_AS_NUMBER = (4, 8)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names of headers; the first existing one counts."""

    name: str
    #: prefixes of all headers that the writer of the letter added
    prefixes: tuple[str, ...]
    topic: tuple[str, ...]
    partition: tuple[str, ...]
    offset: tuple[str, ...]
    type: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    handler: tuple[str, ...] = ()
    attempts: tuple[str, ...] = ()
    #: numbers are 4 or 8 bytes, big-endian
    binary: bool = False


def _spring(name: str) -> tuple[str, ...]:
    return f"kafka_dlt-{name}", f"kafka_{name}"


DIALECTS = (
    Dialect(
        "perkey",
        ("__dlq.errors.",),
        ("__dlq.errors.topic",),
        ("__dlq.errors.partition",),
        ("__dlq.errors.offset",),
        message=("__dlq.errors.message",),
        group=("__dlq.errors.group",),
        handler=("__dlq.errors.handler",),
        attempts=("__dlq.errors.delivery.count",),
    ),
    Dialect(
        "spring",
        (*_spring("original-"), *_spring("exception-"), *_spring("key-exception-"), "retry_topic-"),
        _spring("original-topic"),
        _spring("original-partition"),
        _spring("original-offset"),
        # The first is inside the listener's own wrapper.
        type=(*_spring("exception-cause-fqcn"), *_spring("exception-fqcn")),
        message=_spring("exception-message"),
        group=_spring("original-consumer-group"),
        attempts=("retry_topic-attempts",),
        binary=True,
    ),
    Dialect(
        "connect",
        ("__connect.errors.",),
        ("__connect.errors.topic",),
        ("__connect.errors.partition",),
        ("__connect.errors.offset",),
        type=("__connect.errors.exception.class.name",),
        message=("__connect.errors.exception.message",),
        group=("__connect.errors.connector.name",),
        handler=("__connect.errors.class.name",),
    ),
    Dialect(
        "streams",
        ("__streams.errors.",),
        ("__streams.errors.topic",),
        ("__streams.errors.partition",),
        ("__streams.errors.offset",),
        type=("__streams.errors.exception",),
        message=("__streams.errors.message",),
    ),
)  # fmt: skip


class Place(NamedTuple):
    """The place of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A record of a dead-letter topic, without its value."""

    #: its own place, as a letter
    at: Place
    time_ms: int
    key: bytes | None
    headers: Headers
    #: its dialect; None: then nothing else is known of it
    dialect: Dialect | None = None
    #: the original place of the record
    source: Place | None = None
    #: the record's offset before it was ever replayed
    position: int = -1
    error_type: str | None = None
    error_message: str | None = None
    group: str | None = None
    handler: str | None = None
    attempts: int | None = None
    #: how often the record was replayed from here before
    replays: int = 0
    #: the letter is incomplete: a part was too large, or copying was disabled
    is_cut: bool = False
    #: size of its value in bytes
    size: int = 0

    def field(self, name: str) -> Value:
        """A field by name, for `--where`."""
        if name in OWN or name.startswith(HEADER):
            return own_field(name, self.key, self.time_ms, self.headers)
        source = self.source
        if name in ("topic", "partition", "offset"):
            return None if source is None else getattr(source, name)
        return {
            "group": self.group,
            "handler": self.handler,
            "error.type": self.error_type,
            "error.message": self.error_message,
            "attempts": self.attempts,
            "replays": self.replays,
        }[name]

    @property
    def own_headers(self) -> Headers:
        """The record's own headers, without those of the letter."""
        added = () if self.dialect is None else self.dialect.prefixes
        return without(self.headers, (*added, REPLAY))


def without(headers: Headers, prefixes: tuple[str, ...]) -> Headers:
    """The headers whose names start with none of these."""
    return tuple(header for header in headers if not header[0].startswith(prefixes))


def letter_of(record: Record[bytes | None]) -> Letter:
    """Parse a record of a dead-letter topic."""
    at = Place(record.topic, record.partition, record.offset)
    size = len(record.value or b"")
    plain = Letter(at, record.timestamp_ms, record.key, record.headers, size=size)
    # Those whose topic is named, the one that was written last first.
    named = (d for name, _ in reversed(record.headers) for d in DIALECTS if name in d.topic)
    for dialect in named:
        headers = dict(record.headers)  # of duplicate names the last one counts
        topic = _text(headers, dialect.topic)
        partition = _number(headers, dialect.partition, dialect)
        offset = _number(headers, dialect.offset, dialect)
        if topic and partition is not None and offset is not None:
            source = Place(topic, partition, offset)
            kind, message = _text(headers, dialect.type), _text(headers, dialect.message)
            if not dialect.type and message is not None:  # "Timeout: after 5 s"
                match = re.fullmatch(r"([A-Za-z_][\w.]*)(?:: (.*))?", message, re.DOTALL)
                kind, message = (match[1], match[2] or "") if match else (None, message)
            position = _digits(headers.get(POSITION))
            replays = _digits(headers.get(REPLAYS)) or 0
            return Letter(
                plain.at,
                plain.time_ms,
                plain.key,
                plain.headers,
                dialect,
                source,
                # Bytes after the source's offset would belong to another record.
                position if position is not None and position <= source.offset else source.offset,
                re.split(r"[.$]", kind)[-1] if kind else None,
                message,
                _text(headers, dialect.group),
                _text(headers, dialect.handler),
                _number(headers, dialect.attempts, dialect),
                # Perkey removes this one when it counts the replay; other programs keep it.
                replays + (LETTER in headers),
                OMITTED in headers
                or any(name in headers for name in CUT)
                or (record.key is None and record.value is None),
                plain.size,
            )
    return plain


def _first(headers: dict[str, bytes | None], names: Sequence[str]) -> bytes | None:
    return next((value for name in names if (value := headers.get(name)) is not None), None)


def _text(headers: dict[str, bytes | None], names: Sequence[str]) -> str | None:
    value = _first(headers, names)
    return None if value is None else text_of(value)


def _number(headers: dict[str, bytes | None], names: Sequence[str], dialect: Dialect) -> int | None:
    value = _first(headers, names)
    if value is not None and dialect.binary and len(value) in _ENCODED_AS_NUMBER:
        number = int.from_bytes(value, "big", signed=True)
        return number if number >= 0 else None
    return _digits(value)


def _digits(value: bytes | None) -> int | None:
    """A number written as text; None for anything else."""
    if value is None or not re.fullmatch(rb"[0-9]{1,19}", value):
        return None
    number = int(value)
    return number if number <= NUMBER_MAX else None


def origin_of(record: Record[bytes | None]) -> tuple[str | None, int]:
    """For a record of the source: the letter that it was replayed from, and its first offset."""
    if not record.headers:
        return None, record.offset
    headers = dict(record.headers)
    letter, position = headers.get(LETTER), _digits(headers.get(POSITION))
    if letter is None:
        return None, record.offset
    first = position if position is not None and position <= record.offset else record.offset
    return text_of(letter), first


def homeward(letter: Letter, topic: str, record: Record[bytes | None]) -> OutMessage:
    """The message to replay, for its letter's own partition; its headers name the letter."""
    assert letter.source is not None
    provenance: list[tuple[str, bytes | None]] = [
        (LETTER, str(letter.at).encode()),
        (POSITION, str(letter.position).encode()),
    ]
    if letter.replays:
        provenance.append((REPLAYS, str(letter.replays).encode()))
    return OutMessage(
        topic,
        record.value,
        record.key,
        (*record.headers, *provenance),
        letter.source.partition,
        record.timestamp_ms if record.timestamp_ms >= 0 else None,
    )
