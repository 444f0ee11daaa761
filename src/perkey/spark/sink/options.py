"""The options of the sink, read and checked; named as in Spark's own connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Producer

from perkey.errors import ConfigError
from perkey.kafka import clib
from perkey.kafka.clientlog import with_client_log
from perkey.spark.source.bounds import shown, topic_name
from perkey.spark.source.cluster import CONNECTING, accepted
from perkey.spark.source.javanames import librdkafka_properties
from perkey.spark.source.options import check_brokers_given, fields_of, flag, split_options
from perkey.spark.source.secrets import resolved

#: Options of Spark's own that come along.
SPARKS = frozenset({"checkpointlocation", "includeheaders"})
ID_PREFIX = "perkey-sink"
PREFIX_CHARS_MAX = 200

REFUSED = {
    "transactional.id": "use transactional=true, which makes one for each task",
    "enable.gapless.guarantee": "it is of no use here: remove it",
    "delivery.report.only.error": "the sink sets it itself: remove it",
    "partitioner.class": "it names a Java class: use kafka.partitioner or the column partition",
    "max.block.ms": "the sink waits for room by itself: remove it",
    "value.serializer": "values are binary: cast the column value",
    "key.serializer": "keys are binary: cast the column key",
}
LINGERING = frozenset({"linger.ms", "queue.buffering.max.ms"})
#: Used unless the user set them. Java's partitioner, so that a key goes where Spark's own
#: connector and every Java producer send it. A row that lingers long is in no cache any more when
#: it is sent: 5 ms, librdkafka's own default too, costs a tenth less than 50.
DEFAULTS: dict[str, str | int | bool] = {
    **CONNECTING,
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.kbytes": 65_536,
    "queue.buffering.max.messages": 500_000,
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options, checked. `kafka` may hold secrets, so it is left out of the repr."""

    kafka: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    transactional: bool = False
    id_prefix: str = ID_PREFIX

    @property
    def packs(self) -> bool:
        """Whether rows may be queued many at a time.

        Then nothing ends the user's lingering early, and no callback for tokens is called.
        """
        mechanism = self.kafka.get("sasl.mechanisms", self.kafka.get("sasl.mechanism", ""))
        with_tokens = mechanism.strip().upper() == "OAUTHBEARER"
        return clib.available() and not with_tokens and LINGERING.isdisjoint(self.kafka)

    def producer_config(self) -> dict[str, object]:
        """The configuration of a producer: the user's properties over the defaults."""
        return {**DEFAULTS, **self.kafka, "delivery.report.only.error": True}


def prefix(option: str, text: str) -> str:
    """Parse the prefix of transactional ids."""
    if not 0 < len(text.strip()) <= PREFIX_CHARS_MAX:
        raise ConfigError(f"option {option}={shown(text)}: give 1 to {PREFIX_CHARS_MAX} characters")
    return text.strip()


FIELDS = {
    "topic": ("topic", topic_name),
    "transactional": ("transactional", flag),
    "transactionalIdPrefix": ("id_prefix", prefix),
}


def sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse the values of `.option(...)`. Raises ConfigError naming the option and the fix."""
    given, kafka = split_options(raw, FIELDS, SPARKS)
    check_brokers_given(kafka)
    for name in sorted(REFUSED.keys() & kafka.keys()):
        raise ConfigError(f"option kafka.{name} is not supported: {REFUSED[name]}")
    found = SinkOptions(librdkafka_properties(resolved(kafka)), **fields_of(given, FIELDS))
    if "transactionalIdPrefix" in given and not found.transactional:
        raise ConfigError("option transactionalIdPrefix does nothing without transactional=true")
    idempotent = str(found.kafka.get("enable.idempotence", "true")).strip().lower()
    if found.transactional and idempotent != "true":
        raise ConfigError(
            "options transactional=true and kafka.enable.idempotence=false contradict each other:"
            " remove one"
        )
    return found


def check_producer(options: SinkOptions) -> None:
    """ConfigError if librdkafka refuses a property or a combination; queries no broker."""
    config = {**options.producer_config(), "log_level": 0}
    accepted(Producer, with_client_log(config), options.kafka)
