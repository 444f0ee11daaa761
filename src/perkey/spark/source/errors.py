"""Errors of the Kafka source, and librdkafka's error codes by what the source does about them.

PerkeyError
├── ConfigError     an option is wrong (raised while the job is planned)
└── SourceError     the brokers did not return the requested data
    └── DataLoss    records of the range are gone, and `failOnDataLoss` is true
"""

from __future__ import annotations

from confluent_kafka import KafkaError

from perkey.errors import PerkeyError


class SourceError(PerkeyError):
    """Kafka could not be read; the message names the part, and what to check."""


class DataLoss(SourceError):
    """Unread records are gone. `failOnDataLoss=false` continues without them."""


# ruff: noqa: SLF001  # public constants; the underscore means "from the client, not the broker"
TIMED_OUT: int = KafkaError._TIMED_OUT
TRANSPORT: int = KafkaError._TRANSPORT
ALL_BROKERS_DOWN: int = KafkaError._ALL_BROKERS_DOWN
PARTITION_EOF: int = KafkaError._PARTITION_EOF
AUTO_OFFSET_RESET: int = KafkaError._AUTO_OFFSET_RESET
UNKNOWN_PARTITION: int = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC: int = KafkaError._UNKNOWN_TOPIC
UNKNOWN_TOPIC_OR_PART: int = KafkaError.UNKNOWN_TOPIC_OR_PART
OFFSET_OUT_OF_RANGE: int = KafkaError.OFFSET_OUT_OF_RANGE

#: The connection is lost; librdkafka retries by itself.
DISCONNECTED = frozenset({TRANSPORT, ALL_BROKERS_DOWN})
#: No broker answered all librdkafka's retries: another attempt only adds to the wait.
UNREACHABLE = DISCONNECTED | {TIMED_OUT}
#: The brokers are back and not quite ready. A query to the leaders ends with `_NOENT` if the
#: brokers name none, or none in time. A suspended broker was fenced meanwhile: its partitions have
#: a new epoch now. librdkafka's admin client (2.16) uses the leaders and epochs that it knows until
#: it receives all topics again.
NOT_READY = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
#: Permanent errors of a query to the brokers, besides those that end any member of Perkey
#: (`kafka/verdicts.py`): wrong connection settings, an invalid query.
BAD_QUESTION = frozenset(
    {KafkaError._SSL, KafkaError.INVALID_REQUEST, KafkaError.TOPIC_EXCEPTION, KafkaError._FATAL}
)
#: The topic does not exist.
MISSING_TOPIC = frozenset({UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC})
#: The topic or the partition does not exist.
MISSING = MISSING_TOPIC | {UNKNOWN_PARTITION}
#: The offset is not in the log.
OUT_OF_RANGE = frozenset({AUTO_OFFSET_RESET, OFFSET_OUT_OF_RANGE})

#: Another producer has opened this transactional id, or the transaction timed out.
FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
)
