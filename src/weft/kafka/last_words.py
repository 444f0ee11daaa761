"""Read a compacted topic from start to end: the latest record of each key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from weft.errors import ConfigError, FatalError
from weft.kafka.following import stamped

#: key, value, and when it was written, as `following.stamped` has it
Line = tuple[bytes | None, bytes | None, float]

ANSWER_S = 10.0
READ_S = 15.0
MESSAGES_AT_A_TIME = 500


def words_of(bootstrap: str, properties: Mapping[str, Any], topic: str) -> list[Line]:
    """Key, value and time of every record, in their order within each partition.

    Raises ConfigError when there is no such topic, FatalError when no broker answers.
    """
    consumer = Consumer(
        {
            "log_level": 0,
            **properties,
            "bootstrap.servers": bootstrap,
            "group.id": "weft-reader",  # never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        return _read(consumer, bootstrap, topic)
    except KafkaException as error:
        raise FatalError(f"topic {topic} cannot be read: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _read(consumer: Consumer, bootstrap: str, topic: str) -> list[Line]:
    known = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if known.error is not None:
        raise ConfigError(
            f"topic {topic} cannot be read at {bootstrap} ({known.error.str()}): give --reports "
            'the topic of App(reports="…")'
        )
    consumer.assign([TopicPartition(topic, number, 0) for number in known.partitions])
    left = set(known.partitions)
    words: list[Line] = []
    deadline = time.monotonic() + READ_S
    while left and time.monotonic() < deadline:
        for message in consumer.consume(MESSAGES_AT_A_TIME, 0.5):
            error = message.error()
            if error is None:
                at, _ = stamped(message, time.time())
                words.append((_bytes(message.key()), _bytes(message.value()), at))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # a public constant
                left.discard(message.partition())
    return words


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)
