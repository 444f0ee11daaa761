"""librdkafka's local error codes under names of their own: its names begin with an underscore."""

from __future__ import annotations

from confluent_kafka import KafkaError

# ruff: noqa: SLF001  # public constants; the underscore says "from the client, not the broker"
TIMED_OUT: int = KafkaError._TIMED_OUT
TRANSPORT: int = KafkaError._TRANSPORT
ALL_BROKERS_DOWN: int = KafkaError._ALL_BROKERS_DOWN
PARTITION_EOF: int = KafkaError._PARTITION_EOF
AUTO_OFFSET_RESET: int = KafkaError._AUTO_OFFSET_RESET
UNKNOWN_PARTITION: int = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC: int = KafkaError._UNKNOWN_TOPIC
UNKNOWN_TOPIC_OR_PART: int = KafkaError.UNKNOWN_TOPIC_OR_PART
OFFSET_OUT_OF_RANGE: int = KafkaError.OFFSET_OUT_OF_RANGE

#: The connection is gone; librdkafka goes on trying by itself.
DISCONNECTED = frozenset({TRANSPORT, ALL_BROKERS_DOWN})
#: Nobody answered, after librdkafka tried all the time: another attempt only adds to the wait.
UNREACHABLE = DISCONNECTED | {TIMED_OUT}
#: The topic is not there.
MISSING_TOPIC = frozenset({UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC})
#: The topic or the partition is not there.
MISSING = MISSING_TOPIC | {UNKNOWN_PARTITION}
#: The offset is not in the log.
OUT_OF_RANGE = frozenset({AUTO_OFFSET_RESET, OFFSET_OUT_OF_RANGE})
