"""Create an app's clients: for a real cluster or for a test's in-memory broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaException

from weft.clock import REAL_CLOCK, Clock
from weft.errors import ConfigError
from weft.kafka.clientlog import with_client_log
from weft.kafka.log_reader import LogReader
from weft.kafka.ports import (
    AdminPort,
    ConsumerPort,
    KafkaUnavailable,
    ProducerPort,
    TransactionsPort,
    Word,
)
from weft.kafka.probing import refusal
from weft.kafka.settings import ClientSettings, client_settings, with_own_id
from weft.types import DeliveryName

MEMORY_SCHEME = "memory://"


class WordsPort(Protocol):
    """The last word under each key of a compacted topic."""

    def last(self) -> dict[bytes, Word]:
        """By key; what was taken back is not there. Any thread."""

    def now(self) -> float:
        """The time by the clock that stamps the words, in UNIX seconds. Any thread."""

    def is_read(self) -> bool:
        """Of a `whole` topic: all that stood there at first has been read. Any thread."""

    def close(self) -> None:
        """Read no more."""


class Connection(Protocol):
    """Makes the clients of one member."""

    settings: ClientSettings

    def consumer(self) -> ConsumerPort:
        """A new consumer."""

    def producer(
        self, on_served: Callable[[], None], on_failed: Callable[[str], None]
    ) -> ProducerPort:
        """A new producer; `on_failed` gets the reason when producing is no longer possible."""

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Transactions under this id."""

    def log_reader(self, *, as_consumer: bool = False) -> LogReader:
        """Reads stretches of logs, and what the group has committed, without joining it.

        `as_consumer`: in the consumer's isolation level, else as read_committed.
        """

    def last_words(
        self,
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
    ) -> WordsPort:
        """Follows a compacted topic; `failed` gets the reason if it cannot be read.

        `whole`: from the beginning, not the last hour, only what the broker's clock stamped, and a
        tombstone is an empty word. `of_now`: keys that take no room from what lasts.
        """

    def instance_id(self) -> str | None:
        """The user's `group.instance.id`."""
        given = self.settings.consumer.get("group.instance.id")
        return None if given is None else str(given)

    def admin(self) -> AdminPort:
        """A new admin client."""

    def described(self) -> str:
        """The brokers, for messages."""

    def max_poll_interval_s(self) -> float:
        """How long the consumer may stay away from polling."""
        return float(self.settings.consumer.get("max.poll.interval.ms", 300_000)) / 1000

    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are hidden."""
        return str(self.settings.consumer.get("isolation.level")) == "read_committed"

    @property
    def clock(self) -> Clock:
        """The time of this cluster."""

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of a handler: a test's cluster has its crash points around it."""


class RealConnection(Connection):
    """Clients of a Kafka cluster."""

    clock = REAL_CLOCK

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        #: of every consumer of this run: one that is recreated takes the former one's place
        self._consumer = with_own_id(settings.consumer)
        self._own_id = self._consumer is not settings.consumer

    def consumer(self) -> ConsumerPort:
        """A new consumer."""
        from weft.kafka.consumer import KafkaConsumer

        return KafkaConsumer(with_client_log(self._consumer), own_id=self._own_id)

    def producer(
        self, on_served: Callable[[], None], on_failed: Callable[[str], None]
    ) -> ProducerPort:
        """A new producer."""
        from weft.kafka.producer import KafkaProducer

        return KafkaProducer(with_client_log(self.settings.producer), on_served, on_failed)

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Transactions under this id."""
        from weft.kafka.transactions import KafkaTransactions

        config = with_client_log(self.settings.producer)
        return KafkaTransactions(config, transactional_id, own_id=self._own_id)

    def log_reader(self, *, as_consumer: bool = False) -> LogReader:
        """Reads stretches of logs, and what the group has committed, without joining it."""
        from weft.kafka.log_reader import KafkaLogReader

        return KafkaLogReader(self.settings.consumer, as_consumer=as_consumer)

    def last_words(
        self,
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
    ) -> WordsPort:
        """Follows a compacted topic, see `Connection`."""
        from weft.kafka.following import LastWords

        # Our own group's name: rights for another one need not exist.
        named = {"group.id": self.settings.consumer["group.id"]}
        properties = {**self.settings.admin, **named}
        return LastWords(properties, topic, wanted, failed, whole=whole, of_now=of_now)

    def admin(self) -> AdminPort:
        """A new admin client."""
        from weft.kafka.admin import KafkaAdmin

        try:
            return KafkaAdmin(self.settings)
        except KafkaException as error:  # the first client: refused settings are reported here
            if error.args[0].str().startswith("OAuth token not set") and self.settings.admin.get(
                "oauth_cb"
            ):  # it raised, which is logged, or set none
                raise KafkaUnavailable("oauth_cb returned no token") from None
            raise ConfigError(refusal(error.args[0].str(), self.settings.admin)) from None

    def described(self) -> str:
        """The brokers, for messages."""
        return self.settings.bootstrap

    def around(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler itself."""
        return handler


#: in-memory brokers by address, put there by `weft.testing`
MEMORY: dict[str, Callable[[ClientSettings], Connection]] = {}


def connect(
    kafka: Mapping[str, Any],
    producer: Mapping[str, Any],
    *,
    group: str,
    buffer_records: int,
    buffer_bytes: int,
    delivery: DeliveryName,
    fleet_instance_id: str | None = None,
) -> Connection:
    """The clients for these properties; raises ConfigError for what librdkafka does not know."""
    address = str(kafka.get("bootstrap.servers", ""))
    in_memory = address.startswith(MEMORY_SCHEME)
    if in_memory and address not in MEMORY:
        raise ConfigError(
            f"kafka: bootstrap.servers={address}: this in-memory broker does not exist in this "
            "process (any more): use the address of a weft.testing.MemoryKafka that is open"
        )
    settings = client_settings(
        {**kafka, "bootstrap.servers": "memory:9092"} if in_memory else kafka,
        producer,
        group=group,
        buffer_records=buffer_records,
        buffer_bytes=buffer_bytes,
        delivery=delivery,
        fleet_instance_id=fleet_instance_id,
    )
    return MEMORY[address](settings) if in_memory else RealConnection(settings)
